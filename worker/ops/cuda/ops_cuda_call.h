/* SPDX-License-Identifier: Apache-2.0 */
/* What a GPU is asked to do, as a value: it can be kept, compared with another,
 * and done later. */
#ifndef CAPSTAN_OPS_CUDA_CALL_H
#define CAPSTAN_OPS_CUDA_CALL_H

#include "worker/ops/ops.h"

#include <stdint.h>

enum ops_cuda_kind {
    OPS_CUDA_UPLOAD,
    OPS_CUDA_DOWNLOAD,
    OPS_CUDA_RECORD,
    OPS_CUDA_STREAM_WAIT,
    OPS_CUDA_LINEAR,
    OPS_CUDA_INPUT_GRADIENT,
    OPS_CUDA_WEIGHT_GRADIENT,
    OPS_CUDA_COLUMN_SUMS,
    OPS_CUDA_ACTIVATION_GRADIENT,
    OPS_CUDA_LOSS,     /* of each sample, to a room of the device */
    OPS_CUDA_LOSS_SUM, /* of those */
};

/* One call of worker/ops/ops.h: what it reads (a, b, c) and writes (to, second,
 * third) in the order of its parameters, the rest by their names. Without
 * padding, so that two are the same when their bytes are. */
struct ops_cuda_call {
    const void *a, *b, *c;
    void *to, *second, *third;
    struct ops_event *event;
    uint64_t bytes;
    uint32_t kind, stream;
    uint32_t option; /* activation or loss; of a follow: the event was recorded
                      outside the span */
    uint32_t n, in, out, add;
    float scale;
};
_Static_assert(sizeof(struct ops_cuda_call) == 8 * 8 + 8 * 4, "no padding");

/* Puts CALL on its stream; what goes wrong is noted. */
void ops_cuda_call_execute(struct ops_device *device,
                           const struct ops_cuda_call *call);

/* Where what OPS_COMPUTE is given goes in a graph: a pass itself, the gradients
 * of weights, which none of it waits for, and sums that it does not wait for
 * either. Products of the first two have memory of their own. */
enum ops_cuda_branch_name {
    OPS_CUDA_MAIN,
    OPS_CUDA_WEIGHT_GRADIENTS,
    OPS_CUDA_SUMS,
    OPS_CUDA_BRANCHES
};
enum ops_cuda_branch_name ops_cuda_call_branch(
    const struct ops_cuda_call *call);

/* CALL, of OPS_COMPUTE, is put on LANE. */
void ops_cuda_call_execute_on(struct ops_device *device,
                              const struct ops_cuda_call *call,
                              enum ops_cuda_branch_name branch);

/* Does one of two calls write what the other reads or writes? */
bool ops_cuda_call_conflicts(const struct ops_cuda_call *one,
                             const struct ops_cuda_call *other);

#endif
