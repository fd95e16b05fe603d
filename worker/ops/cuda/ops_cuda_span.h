/* SPDX-License-Identifier: Apache-2.0 */
/* Spans: what is given between `begin` and `end` of worker/ops/ops.h. A span's
 * calls are held back until its end and then compared with those of earlier
 * spans: the first of its kind goes to the streams call by call, the second is
 * captured as a CUDA graph, and from then on one launch is all the host does.
 * That what is replayed is what was called for needs no agreement on what may
 * differ: all arguments of all calls are the same. */
#ifndef CAPSTAN_OPS_CUDA_SPAN_H
#define CAPSTAN_OPS_CUDA_SPAN_H

#include "worker/ops/cuda/ops_cuda_call.h"

#include <cuda_runtime.h>
#include <stdbool.h>
#include <stdint.h>

/* Calls of a span, more of which are several; and spans that are remembered:
 * the least recently used makes room for a new one. */
enum { OPS_CUDA_SPAN_CALLS = 2048, OPS_CUDA_SPANS = 4 * JOB_MAX_LAYERS };

/* Calls of a lane that another can follow: of earlier ones the first. */
enum { OPS_CUDA_MARKS = 4 };

struct ops_cuda_span {
    struct ops_cuda_call *calls;
    uint32_t count;
    cudaGraphExec_t graph; /* NULL: not yet */
    uint64_t used;         /* the number of the span that it was last */
};

/* Graphs are launched on OPS_COMPUTE, whatever streams their calls are of: what
 * order other streams have with them is kept here. */
struct ops_cuda_spans {
    bool open, capturing;
    bool off;                    /* no more graphs: one could not be captured */
    uint64_t number;             /* of the last that was begun */
    struct ops_cuda_call *calls; /* of the one that is open */
    uint32_t count;
    struct ops_cuda_span known[OPS_CUDA_SPANS];
    uint32_t num_known;
    cudaEvent_t order;
    cudaEvent_t marks[OPS_CUDA_LANES][OPS_CUDA_MARKS]; /* of a capture */
    bool ahead[OPS_STREAMS];  /* has work that OPS_COMPUTE does not follow */
    bool behind[OPS_STREAMS]; /* does not follow what graphs did of it */
    cudaEvent_t passed[OPS_STREAMS]; /* has come when they have; of all but
                                        OPS_COMPUTE */
};

/* STATUS_RETRY when there is no memory. Its streams are open. */
enum status ops_cuda_span_open(struct ops_device *device,
                               struct failure *why) MUST_CHECK;

/* Frees all; not every open has to have been. */
void ops_cuda_span_close(struct ops_device *device);

/* As `begin` and `end` of worker/ops/ops.h. */
void ops_cuda_span_begin(struct ops_device *device);
void ops_cuda_span_end(struct ops_device *device);

/* CALL is done now, or at the end of the span that is open. */
void ops_cuda_span_give(struct ops_device *device,
                        const struct ops_cuda_call *call);

/* STREAM for calls of others: what is put there now is in order with all that
 * the device was given so far, the calls of a span that is open among it. */
cudaStream_t ops_cuda_span_stream(struct ops_device *device,
                                  enum ops_stream stream);

/* No graph of before is launched any more: memory, events or arithmetic that it
 * knows are others from now on. */
void ops_cuda_span_forget(struct ops_device *device);

#endif
