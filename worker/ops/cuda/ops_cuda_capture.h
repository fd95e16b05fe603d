/* SPDX-License-Identifier: Apache-2.0 */
/* Spans: what is given between `begin` and `end` of worker/ops/ops.h. A span's
 * calls are held back until its end and then compared with those of earlier
 * spans: the first of its kind goes to the streams call by call, the second is
 * captured as a CUDA graph, and from then on one launch is all the host does.
 * That what is replayed is what was called for needs no agreement on what may
 * differ: all arguments of all calls are the same. */
#ifndef CAPSTAN_OPS_CUDA_CAPTURE_H
#define CAPSTAN_OPS_CUDA_CAPTURE_H

#include "worker/ops/cuda/ops_cuda_call.h"

#include <cuda_runtime.h>
#include <stdbool.h>
#include <stdint.h>

/* Calls of a span, more of which are several; and spans that are remembered:
 * the least recently used makes room for a new one. */
enum { OPS_CUDA_CAPTURE_CALLS = 2048, OPS_CUDA_CAPTURES = 4 * JOB_MAX_LAYERS };

/* Calls of a lane that another can follow: of earlier ones the first. */
enum { OPS_CUDA_BRANCH_EVENTS = 4 };

struct ops_cuda_capture {
    struct ops_cuda_call *calls;
    uint32_t count;
    cudaGraphExec_t graph; /* NULL: not yet */
    uint64_t used;         /* the number of the span that it was last */
};

/* Graphs are launched on OPS_COMPUTE, whatever streams their calls are of: what
 * order other streams have with them is kept here. */
struct ops_cuda_captures {
    bool open, capturing;
    bool disabled;               /* no more graphs: one could not be captured */
    uint64_t number;             /* of the last that was begun */
    struct ops_cuda_call *calls; /* of the one that is open */
    uint32_t count;
    struct ops_cuda_capture cached[OPS_CUDA_CAPTURES];
    uint32_t num_cached;
    cudaEvent_t order;
    cudaEvent_t branch_events[OPS_CUDA_BRANCHES]
                             [OPS_CUDA_BRANCH_EVENTS]; /* of a capture */
    bool unordered[OPS_STREAMS]; /* has work that OPS_COMPUTE does not follow */
    bool waits_for_graph[OPS_STREAMS];  /* does not follow what graphs did of it
                                         */
    cudaEvent_t completed[OPS_STREAMS]; /* has come when they have; of all but
                                        OPS_COMPUTE */
};

/* STATUS_RETRY when there is no memory. Its streams are open. */
enum status ops_cuda_capture_open(struct ops_device *device,
                                  struct failure *why) MUST_CHECK;

/* Frees all; not every open has to have been. */
void ops_cuda_capture_close(struct ops_device *device);

/* As `begin` and `end` of worker/ops/ops.h. */
void ops_cuda_capture_begin(struct ops_device *device);
void ops_cuda_capture_end(struct ops_device *device);

/* CALL is done now, or at the end of the span that is open. */
void ops_cuda_capture_submit(struct ops_device *device,
                             const struct ops_cuda_call *call);

/* STREAM for calls of others: what is put there now is in order with all that
 * the device was given so far, the calls of a span that is open among it. */
cudaStream_t ops_cuda_capture_stream(struct ops_device *device,
                                     enum ops_stream stream);

/* No graph of before is launched any more: memory, events or arithmetic that it
 * knows are others from now on. */
void ops_cuda_capture_forget(struct ops_device *device);

#endif
