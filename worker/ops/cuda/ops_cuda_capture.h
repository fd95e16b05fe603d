/* SPDX-License-Identifier: Apache-2.0 */
/* Captures: the calls between `capture_begin` and `capture_end` of
 * worker/ops/device.h. They are deferred until the end and compared with
 * earlier captures. A new sequence is executed call by call, its second
 * occurrence is captured as a CUDA graph, and later ones are a single launch. A
 * replay is correct without further checks because all arguments of all calls
 * are equal. */
#ifndef CAPSTAN_OPS_CUDA_CAPTURE_H
#define CAPSTAN_OPS_CUDA_CAPTURE_H

#include "worker/ops/cuda/ops_cuda_call.h"

#include <cuda_runtime.h>
#include <stdbool.h>
#include <stdint.h>

/* Maximum calls per capture, beyond which it is split; and captures that are
 * cached: a new one replaces the least recently used. */
enum { OPS_CUDA_CAPTURE_CALLS = 2048, OPS_CUDA_CAPTURES = 4 * JOB_MAX_WIDTHS };

/* Calls of a branch that another branch can wait for; for older ones the first
 * of these. */
enum { OPS_CUDA_BRANCH_EVENTS = 4 };

struct ops_cuda_capture {
    struct ops_cuda_call *calls;
    uint32_t count;
    cudaGraphExec_t graph; /* NULL: not captured yet */
    uint64_t used;         /* the number of its last use */
};

/* Graphs are launched on STREAM_COMPUTE, whatever the streams of their calls;
 * the order of other streams relative to them is kept here. */
struct ops_cuda_captures {
    bool open, capturing;
    bool disabled;   /* no graphs: asked for, or a capture has failed */
    uint64_t number; /* of the last capture begun */
    struct ops_cuda_call *calls; /* of the open capture */
    uint32_t count;
    struct ops_cuda_capture cached[OPS_CUDA_CAPTURES];
    uint32_t num_cached;
    cudaEvent_t order;
    cudaEvent_t
        branch_events[OPS_CUDA_BRANCHES]
                     [OPS_CUDA_BRANCH_EVENTS]; /* used while capturing */
    bool unordered[DEVICE_STREAMS]; /* has work that STREAM_COMPUTE does not
                                    wait for yet */
    bool waits_for_graph[DEVICE_STREAMS];  /* does not wait yet for the graphs'
                                           work  on it */
    cudaEvent_t completed[DEVICE_STREAMS]; /* completes with that work; all
                                           streams but STREAM_COMPUTE */
};

/* STATUS_RETRY: no memory. The device's streams are open. */
enum status ops_cuda_capture_open(struct device *device,
                                  struct failure *why) MUST_CHECK;

/* Frees all, also after a failed open. */
void ops_cuda_capture_close(struct device *device);

/* As `capture_begin` and `capture_end` of worker/ops/device.h. */
void ops_cuda_capture_begin(struct device *device);
void ops_cuda_capture_end(struct device *device);

/* Executes OP, or another call of ops_cuda_call.h, perhaps with EVENT, on
 * STREAM: now, or at the end of the open capture. */
void ops_cuda_capture_submit(struct device *device, enum device_stream stream,
                             const struct op *op, struct device_event *event);

/* STREAM for a library's own calls: they are in order with all work enqueued on
 * the device so far, including an open capture's calls. */
cudaStream_t ops_cuda_capture_stream(struct device *device,
                                     enum device_stream stream);

/* Discards all graphs: call when memory, events or arithmetic that they refer
 * to change. */
void ops_cuda_capture_forget(struct device *device);

#endif
