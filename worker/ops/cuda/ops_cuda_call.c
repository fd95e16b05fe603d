/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/cuda/ops_cuda_call.h"

#include "worker/ops/cuda/ops_cuda_internal.h"

const struct ops_cuda_kind *ops_cuda_call_kind(uint32_t kind) {
    if (kind >= OPS_CUDA_OPS)
        return NULL;
    if (ops_cuda_layer_kinds[kind].run)
        return &ops_cuda_layer_kinds[kind];
    return ops_cuda_update_kinds[kind].run ? &ops_cuda_update_kinds[kind]
                                           : NULL;
}

static void ops_cuda_call_run(struct device *device,
                              struct ops_cuda_branch *branch,
                              const struct op *op) {
    const struct ops_cuda_kind *kind = ops_cuda_call_kind(op->kind);
    if (!kind->prepare || kind->prepare(device, op))
        ops_cuda_keep_error(device, (cudaError_t)kind->run(device, branch, op),
                            kind->operation);
}

static void ops_cuda_call_copy(struct device *device,
                               const struct ops_cuda_call *call,
                               enum cudaMemcpyKind direction,
                               const char *operation) {
    ops_cuda_keep_error(device,
                        cudaMemcpyAsync(call->op.writes[0].data,
                                        call->op.reads[0].data,
                                        call->op.reads[0].bytes, direction,
                                        device->streams[call->stream]),
                        operation);
}

void ops_cuda_call_execute(struct device *device,
                           const struct ops_cuda_call *call) {
    struct ops_cuda_branch other = {.stream = device->streams[call->stream]};
    switch (call->op.kind) {
    case OPS_CUDA_UPLOAD:
        ops_cuda_call_copy(device, call, cudaMemcpyHostToDevice,
                           "a copy to it");
        return;
    case OPS_CUDA_DOWNLOAD:
        ops_cuda_call_copy(device, call, cudaMemcpyDeviceToHost,
                           "a copy from it");
        return;
    case OPS_CUDA_RECORD:
        ops_cuda_keep_error(device,
                            cudaEventRecord(call->event->event, other.stream),
                            "recording an event");
        return;
    case OPS_CUDA_STREAM_WAIT:
        ops_cuda_keep_error(
            device, cudaStreamWaitEvent(other.stream, call->event->event, 0),
            "waiting for an event");
        return;
    default:
        ops_cuda_call_run(device,
                          call->stream == STREAM_COMPUTE
                              ? &device->branches[OPS_CUDA_MAIN]
                              : &other,
                          &call->op);
        return;
    }
}

enum ops_cuda_branch_name ops_cuda_call_branch(
    const struct ops_cuda_call *call) {
    const struct ops_cuda_kind *kind = ops_cuda_call_kind(call->op.kind);
    return kind ? kind->branch : OPS_CUDA_MAIN;
}

void ops_cuda_call_execute_on_branch(struct device *device,
                                     const struct ops_cuda_call *call) {
    enum ops_cuda_branch_name branch = ops_cuda_call_branch(call);
    if (branch == OPS_CUDA_MAIN)
        ops_cuda_call_execute(device, call);
    else
        ops_cuda_call_run(device, &device->branches[branch], &call->op);
}

static bool ops_cuda_call_overlap(const struct op_tensor *one,
                                  const struct op_tensor *other) {
    uintptr_t first = (uintptr_t)one->data, second = (uintptr_t)other->data;
    return first < second + other->bytes && second < first + one->bytes;
}

static bool uses_sums(const struct ops_cuda_call *call) {
    const struct ops_cuda_kind *kind = ops_cuda_call_kind(call->op.kind);
    return kind && kind->uses_sums;
}

bool ops_cuda_call_conflicts(const struct ops_cuda_call *one,
                             const struct ops_cuda_call *other) {
    for (unsigned i = 0; i < OP_TENSORS; i++)
        for (unsigned j = 0; j < OP_TENSORS; j++)
            if ((i >= OP_READS || j >= OP_READS) &&
                ops_cuda_call_overlap(op_tensor_at(&one->op, i),
                                      op_tensor_at(&other->op, j)))
                return true;
    return uses_sums(one) && uses_sums(other);
}
