/* SPDX-License-Identifier: Apache-2.0 */
/* A device call as a value: it can be stored, compared and executed later. */
#ifndef CAPSTAN_OPS_CUDA_CALL_H
#define CAPSTAN_OPS_CUDA_CALL_H

#include "worker/ops/device.h"

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
    OPS_CUDA_LOSS,     /* of each sample, to scratch memory */
    OPS_CUDA_LOSS_SUM, /* the sum of those */
    OPS_CUDA_ROWS,
};

/* One call of worker/ops/device.h: the pointers that it reads (a, b, c) and
 * writes (to, second, third) in the order of its parameters, and the rest by
 * name. Without padding, so that two calls are equal if their bytes are. */
struct ops_cuda_call {
    const void *a, *b, *c;
    void *to, *second, *third;
    struct device_event *event;
    uint64_t bytes;
    uint32_t kind, stream;
    uint32_t option; /* activation or loss; of a stream wait: the event was
                        recorded outside the capture */
    uint32_t n, in, out, add;
    float scale;
    struct ops_rows rows;
};
_Static_assert(sizeof(struct ops_rows) == 6 * 8 + 8 * 4 &&
                   sizeof(struct ops_cuda_call) ==
                       8 * 8 + 8 * 4 + sizeof(struct ops_rows),
               "no padding");

/* Executes CALL on its stream; the device keeps an error. */
void ops_cuda_call_execute(struct device *device,
                           const struct ops_cuda_call *call);

/* The parallel branches of STREAM_COMPUTE in a graph: the pass itself, the
 * gradients of weights, which it does not wait for, and sums, likewise. The
 * first two have their own scratch memory for products. */
enum ops_cuda_branch_name {
    OPS_CUDA_MAIN,
    OPS_CUDA_WEIGHT_GRADIENTS,
    OPS_CUDA_SUMS,
    OPS_CUDA_BRANCHES
};
enum ops_cuda_branch_name ops_cuda_call_branch(
    const struct ops_cuda_call *call);

/* Executes CALL, of STREAM_COMPUTE, on BRANCH. */
void ops_cuda_call_execute_on(struct device *device,
                              const struct ops_cuda_call *call,
                              enum ops_cuda_branch_name branch);

/* True if one of two calls writes what the other reads or writes. */
bool ops_cuda_call_conflicts(const struct ops_cuda_call *one,
                             const struct ops_cuda_call *other);

#endif
