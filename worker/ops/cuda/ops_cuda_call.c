/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/cuda/ops_cuda_call.h"

#include "worker/ops/cuda/cuda_kernels.h"
#include "worker/ops/cuda/ops_cuda_internal.h"

/* Kernels return 0 or a cudaError_t. */
static void check_kernel(struct device *device, int error,
                         const char *operation) {
    ops_cuda_keep_error(device, (cudaError_t)error, operation);
}

/* cuBLAS has a separate CUDA runtime: cudaGetLastError would report other
 * calls, such as the query of a pending event. */
static void check_product(struct device *device,
                          const struct ops_cuda_blas *blas,
                          cublasStatus_t status) {
    if (status == CUBLAS_STATUS_ALLOC_FAILED)
        ops_cuda_keep_error(device, cudaErrorMemoryAllocation,
                            "a matrix product");
    else if (status)
        ops_cuda_keep_error(device, cudaErrorUnknown,
                            blas->status_string(status));
}

/* Growing SCRATCH waits for the work that uses it and discards all graphs,
 * which refer to the old memory. A sequence is captured only the second time it
 * is issued, when its scratch is large enough. */
static bool ops_cuda_call_reserve(struct device *device,
                                  struct ops_cuda_scratch *scratch,
                                  size_t bytes, const char *operation) {
    if (bytes <= scratch->bytes)
        return true;
    if (device->captures.capturing)
        return ops_cuda_keep_error(device, cudaErrorStreamCaptureUnsupported,
                                   operation);
    ops_cuda_capture_forget(device);
    cudaFree(scratch->memory);
    *scratch = (struct ops_cuda_scratch){0};
    if (!ops_cuda_keep_error(device, cudaMalloc(&scratch->memory, bytes),
                             operation))
        return false;
    scratch->bytes = bytes;
    return true;
}

/* FLOATS as operand of a product, of *TYPE: themselves, or rounded to halves in
 * SCRATCH; NULL: that failed. */
static const void *ops_cuda_call_operand(struct device *device,
                                         const struct ops_cuda_branch *branch,
                                         struct ops_cuda_scratch *scratch,
                                         const float *floats, size_t count,
                                         cudaDataType_t *type) {
    bool bf16 = device->precision == JOB_PRECISION_BF16;
    *type = CUDA_R_32F;
    if (device->precision == JOB_PRECISION_FP32)
        return floats;
    *type = bf16 ? CUDA_R_16BF : CUDA_R_16F;
    if (!ops_cuda_call_reserve(device, scratch, count * sizeof(uint16_t),
                               "halves"))
        return NULL;
    check_kernel(
        device,
        cuda_kernels_to_half(branch->stream,
                             bf16 ? CUDA_KERNELS_BF16 : CUDA_KERNELS_FP16,
                             floats, scratch->memory, count),
        "rounding to halves");
    return device->failed ? NULL : scratch->memory;
}

/* Matrices are row-major here and column-major in cuBLAS, which makes each its
 * transpose: c^T = b^T a^T. LEFT and RIGHT, with their counts, become the
 * product's operands, in SCRATCHES if they are halves. */
static void ops_cuda_call_multiply(struct device *device,
                                   struct ops_cuda_branch *branch,
                                   struct ops_cuda_product *product,
                                   struct ops_cuda_scratch scratches[2],
                                   const float *left, size_t left_count,
                                   const float *right, size_t right_count) {
    if (device->failed)
        return;
    product->left = ops_cuda_call_operand(device, branch, &scratches[0], left,
                                          left_count, &product->type);
    product->right = ops_cuda_call_operand(device, branch, &scratches[1], right,
                                           right_count, &product->type);
    if (product->left && product->right)
        check_product(device, &branch->blas,
                      ops_cuda_blas_multiply(&branch->blas, product));
}

static void ops_cuda_call_linear(struct device *device,
                                 struct ops_cuda_branch *branch,
                                 const struct ops_cuda_call *c) {
    struct ops_cuda_product product = {.left_as = CUBLAS_OP_T,
                                       .right_as = CUBLAS_OP_N,
                                       .m = c->out,
                                       .n = c->n,
                                       .k = c->in,
                                       .left_row = c->in,
                                       .right_row = c->in,
                                       .c = c->to};
    ops_cuda_call_multiply(device, branch, &product, device->operands, c->b,
                           (size_t)c->out * c->in, c->a, (size_t)c->n * c->in);
    check_kernel(device,
                 cuda_kernels_bias_activation(branch->stream, c->c, c->to, c->n,
                                              c->out,
                                              (enum job_activation)c->option),
                 "bias and activation");
}

static void input_gradient(struct device *device,
                           struct ops_cuda_branch *branch,
                           const struct ops_cuda_call *c) {
    struct ops_cuda_product product = {.left_as = CUBLAS_OP_N,
                                       .right_as = CUBLAS_OP_N,
                                       .m = c->in,
                                       .n = c->n,
                                       .k = c->out,
                                       .left_row = c->in,
                                       .right_row = c->out,
                                       .c = c->to};
    ops_cuda_call_multiply(device, branch, &product, device->operands, c->b,
                           (size_t)c->out * c->in, c->a, (size_t)c->n * c->out);
}

static void weight_gradient(struct device *device,
                            struct ops_cuda_branch *branch,
                            const struct ops_cuda_call *c) {
    struct ops_cuda_product product = {.left_as = CUBLAS_OP_N,
                                       .right_as = CUBLAS_OP_T,
                                       .m = c->in,
                                       .n = c->out,
                                       .k = c->n,
                                       .left_row = c->in,
                                       .right_row = c->out,
                                       .c = c->to,
                                       .add = c->add};
    ops_cuda_call_multiply(device, branch, &product, device->weight_operands,
                           c->b, (size_t)c->n * c->in, c->a,
                           (size_t)c->n * c->out);
}

static void ops_cuda_call_column_sums(struct device *device,
                                      struct ops_cuda_branch *branch,
                                      const struct ops_cuda_call *c) {
    size_t bytes = cuda_kernels_column_sums_scratch(c->n, c->out);
    if (ops_cuda_call_reserve(device, &device->sums, bytes, "partial sums"))
        check_kernel(device,
                     cuda_kernels_column_sums(branch->stream, c->a, c->to, c->n,
                                              c->out, c->add,
                                              device->sums.memory),
                     "column sums");
}

static void ops_cuda_call_activation_gradient(struct device *device,
                                              struct ops_cuda_branch *branch,
                                              const struct ops_cuda_call *c) {
    check_kernel(device,
                 cuda_kernels_activation_gradient(
                     branch->stream, (enum job_activation)c->option, c->a,
                     c->to, (size_t)c->n * c->out),
                 "the gradient of an activation");
}

static void ops_cuda_call_loss(struct device *device,
                               struct ops_cuda_branch *branch,
                               const struct ops_cuda_call *c) {
    size_t bytes = cuda_kernels_loss_scratch(c->n);
    if (ops_cuda_call_reserve(device, &device->sums, bytes, "partial sums"))
        check_kernel(
            device,
            cuda_kernels_sample_losses(branch->stream, (enum job_loss)c->option,
                                       c->a, c->b, c->to, c->n, c->out,
                                       c->scale, NULL, device->sums.memory),
            "the loss");
}

static void loss_sum(struct device *device, struct ops_cuda_branch *branch,
                     const struct ops_cuda_call *c) {
    check_kernel(device,
                 cuda_kernels_sum_losses(branch->stream, device->sums.memory,
                                         c->n, c->second, c->third),
                 "the loss");
}

static void ops_cuda_call_rows(struct device *device,
                               struct ops_cuda_branch *branch,
                               const struct ops_cuda_call *c) {
    check_kernel(device, cuda_kernels_rows(branch->stream, &c->rows),
                 "rows of fields");
}

static void ops_cuda_call_copy(struct device *device,
                               const struct ops_cuda_call *c,
                               enum cudaMemcpyKind direction,
                               const char *operation) {
    ops_cuda_keep_error(device,
                        cudaMemcpyAsync(c->to, c->a, c->bytes, direction,
                                        device->streams[c->stream]),
                        operation);
}

static void ops_cuda_call_compute(struct device *device,
                                  struct ops_cuda_branch *branch,
                                  const struct ops_cuda_call *c) {
    switch ((enum ops_cuda_kind)c->kind) {
    case OPS_CUDA_LINEAR:
        ops_cuda_call_linear(device, branch, c);
        return;
    case OPS_CUDA_INPUT_GRADIENT:
        input_gradient(device, branch, c);
        return;
    case OPS_CUDA_WEIGHT_GRADIENT:
        weight_gradient(device, branch, c);
        return;
    case OPS_CUDA_COLUMN_SUMS:
        ops_cuda_call_column_sums(device, branch, c);
        return;
    case OPS_CUDA_ACTIVATION_GRADIENT:
        ops_cuda_call_activation_gradient(device, branch, c);
        return;
    case OPS_CUDA_LOSS:
        ops_cuda_call_loss(device, branch, c);
        return;
    case OPS_CUDA_LOSS_SUM:
        loss_sum(device, branch, c);
        return;
    case OPS_CUDA_ROWS:
        ops_cuda_call_rows(device, branch, c);
        return;
    default:
        return;
    }
}

void ops_cuda_call_execute(struct device *device,
                           const struct ops_cuda_call *c) {
    cudaStream_t stream = device->streams[c->stream];
    switch ((enum ops_cuda_kind)c->kind) {
    case OPS_CUDA_UPLOAD:
        ops_cuda_call_copy(device, c, cudaMemcpyHostToDevice, "a copy to it");
        return;
    case OPS_CUDA_DOWNLOAD:
        ops_cuda_call_copy(device, c, cudaMemcpyDeviceToHost, "a copy from it");
        return;
    case OPS_CUDA_RECORD:
        ops_cuda_keep_error(device, cudaEventRecord(c->event->event, stream),
                            "recording an event");
        return;
    case OPS_CUDA_STREAM_WAIT:
        ops_cuda_keep_error(device,
                            cudaStreamWaitEvent(stream, c->event->event, 0),
                            "waiting for an event");
        return;
    default:
        ops_cuda_call_compute(device, &device->branches[OPS_CUDA_MAIN], c);
        return;
    }
}

enum ops_cuda_branch_name ops_cuda_call_branch(
    const struct ops_cuda_call *call) {
    switch ((enum ops_cuda_kind)call->kind) {
    case OPS_CUDA_WEIGHT_GRADIENT:
        return OPS_CUDA_WEIGHT_GRADIENTS;
    case OPS_CUDA_COLUMN_SUMS:
    case OPS_CUDA_LOSS_SUM:
        return OPS_CUDA_SUMS;
    default:
        return OPS_CUDA_MAIN;
    }
}

void ops_cuda_call_execute_on(struct device *device,
                              const struct ops_cuda_call *call,
                              enum ops_cuda_branch_name branch) {
    if (branch == OPS_CUDA_MAIN)
        ops_cuda_call_execute(device, call);
    else
        ops_cuda_call_compute(device, &device->branches[branch], call);
}

/* A range that a call reads or writes. */
struct operand_range {
    const void *at; /* NULL: none */
    uint64_t bytes;
};
enum { READ = 3, OPERANDS = 6 }; /* the ranges read come first */

static void find_operands(const struct ops_cuda_call *c,
                          struct operand_range ranges[OPERANDS]) {
    uint64_t x = (uint64_t)c->n * c->in * sizeof(float);
    uint64_t y = (uint64_t)c->n * c->out * sizeof(float);
    uint64_t w = (uint64_t)c->in * c->out * sizeof(float);
    uint64_t bias = c->out * sizeof(float), labels = c->n * sizeof(uint32_t);
    const uint64_t bytes[][OPERANDS] = {
        [OPS_CUDA_UPLOAD] = {c->bytes, 0, 0, c->bytes},
        [OPS_CUDA_DOWNLOAD] = {c->bytes, 0, 0, c->bytes},
        [OPS_CUDA_LINEAR] = {x, w, bias, y},
        [OPS_CUDA_INPUT_GRADIENT] = {y, w, 0, x},
        [OPS_CUDA_WEIGHT_GRADIENT] = {y, x, 0, w},
        [OPS_CUDA_COLUMN_SUMS] = {y, 0, 0, bias},
        [OPS_CUDA_ACTIVATION_GRADIENT] = {y, 0, 0, y},
        [OPS_CUDA_LOSS] = {y, labels, 0, y},
        [OPS_CUDA_LOSS_SUM] = {0, 0, 0, 0, sizeof(double), sizeof(uint32_t)},
        [OPS_CUDA_ROWS] = {ops_rows_x(&c->rows) * sizeof(float),
                           ops_rows_dy(&c->rows) * sizeof(float), 0,
                           ops_rows_y(&c->rows) * sizeof(float)},
    };
    const void *const at[OPERANDS] = {c->a,  c->b,      c->c,
                                      c->to, c->second, c->third};
    for (int i = 0; i < OPERANDS; i++)
        ranges[i] =
            (struct operand_range){at[i], at[i] ? bytes[c->kind][i] : 0};
}

static bool ops_cuda_call_overlap(const struct operand_range *one,
                                  const struct operand_range *other) {
    uintptr_t first = (uintptr_t)one->at, second = (uintptr_t)other->at;
    return first < second + other->bytes && second < first + one->bytes;
}

/* Losses and column sums share one scratch buffer. */
static bool uses_sums(const struct ops_cuda_call *call) {
    return call->kind == OPS_CUDA_LOSS || call->kind == OPS_CUDA_LOSS_SUM ||
           call->kind == OPS_CUDA_COLUMN_SUMS;
}

bool ops_cuda_call_conflicts(const struct ops_cuda_call *one,
                             const struct ops_cuda_call *other) {
    struct operand_range of_one[OPERANDS], of_other[OPERANDS];
    find_operands(one, of_one);
    find_operands(other, of_other);
    for (int i = 0; i < OPERANDS; i++)
        for (int j = 0; j < OPERANDS; j++)
            if ((i >= READ || j >= READ) &&
                ops_cuda_call_overlap(&of_one[i], &of_other[j]))
                return true;
    return uses_sums(one) && uses_sums(other);
}
