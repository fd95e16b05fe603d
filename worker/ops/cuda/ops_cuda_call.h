/* SPDX-License-Identifier: Apache-2.0 */
/* A device call as a value: it can be stored, compared and executed later. */
#ifndef CAPSTAN_OPS_CUDA_CALL_H
#define CAPSTAN_OPS_CUDA_CALL_H

#include "worker/ops/device.h"

#include <stdint.h>

/* Kinds of calls beside those of op.h. */
enum ops_cuda_call_kind {
    OPS_CUDA_LOSS_SUM = OP_KINDS, /* the second part of OP_LOSS: what it writes
                                     but dz, from each sample's loss in scratch
                                     memory, which the first part fills */
    OPS_CUDA_OPS,
    OPS_CUDA_UPLOAD = OPS_CUDA_OPS, /* these two read one tensor and write
                                       one */
    OPS_CUDA_DOWNLOAD,
    OPS_CUDA_RECORD,
    OPS_CUDA_STREAM_WAIT,
};

/* One call of worker/ops/device.h. Without padding, so that two calls are equal
 * if their bytes are. */
struct ops_cuda_call {
    struct op op;
    struct device_event *event; /* of a record or a wait */
    uint32_t stream;
    uint32_t outside; /* of a wait: 1 if the event was recorded outside the
                         capture */
};
_Static_assert(sizeof(struct ops_cuda_call) ==
                   sizeof(struct op) + 8 + 2 * sizeof(uint32_t),
               "no padding");

/* The parallel branches of STREAM_COMPUTE in a graph: the pass itself, the
 * gradients of weights, which it does not wait for, and sums, likewise. The
 * first two have their own scratch memory for products. */
enum ops_cuda_branch_name {
    OPS_CUDA_MAIN,
    OPS_CUDA_WEIGHT_GRADIENTS,
    OPS_CUDA_SUMS,
    OPS_CUDA_BRANCHES
};
struct ops_cuda_branch; /* ops_cuda_internal.h */

/* What CUDA does for a kind of op. */
struct ops_cuda_kind {
    const char *operation; /* in errors */
    /* Enqueues it on BRANCH; 0, or a cudaError_t. */
    int (*run)(struct device *device, struct ops_cuda_branch *branch,
               const struct op *op);
    /* Reserves scratch memory; false: the device keeps the error. NULL: it uses
     * none. */
    bool (*prepare)(struct device *device, const struct op *op);
    /* NULL: every op of the kind is supported. */
    bool (*supports)(const struct op *op);
    enum ops_cuda_branch_name branch;
    bool uses_sums; /* has results in the one scratch memory of sums */
};

/* By kind; the rows of kinds that the other table has are 0. */
extern const struct ops_cuda_kind ops_cuda_layer_kinds[OPS_CUDA_OPS],
    ops_cuda_update_kinds[OPS_CUDA_OPS];

/* The row of KIND, or NULL. */
const struct ops_cuda_kind *ops_cuda_call_kind(uint32_t kind);

/* Executes CALL on its stream; the device keeps an error. */
void ops_cuda_call_execute(struct device *device,
                           const struct ops_cuda_call *call);

/* The branch of a call of STREAM_COMPUTE. */
enum ops_cuda_branch_name ops_cuda_call_branch(
    const struct ops_cuda_call *call);

/* Executes CALL, of STREAM_COMPUTE, on its branch. */
void ops_cuda_call_execute_on_branch(struct device *device,
                                     const struct ops_cuda_call *call);

/* True if one of two calls writes what the other reads or writes. */
bool ops_cuda_call_conflicts(const struct ops_cuda_call *one,
                             const struct ops_cuda_call *other);

#endif
