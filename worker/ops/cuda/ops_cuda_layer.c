/* SPDX-License-Identifier: Apache-2.0 */
/* What a model's pass computes on a GPU: products by cuBLAS, the rest by
 * cuda_kernels.h. */
#include "worker/ops/cuda/cuda_kernels.h"
#include "worker/ops/cuda/ops_cuda_internal.h"

#include <limits.h>

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
static bool ops_cuda_layer_reserve(struct device *device,
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

/* Matrices are row-major here and column-major in cuBLAS, which makes each its
 * transpose: c^T = b^T a^T. The operands are in reverse order and not yet
 * set. */
static struct ops_cuda_product ops_cuda_layer_product(const struct op *op) {
    struct ops_cuda_product product = {.left_as = CUBLAS_OP_N,
                                       .right_as = CUBLAS_OP_N,
                                       .m = op->in,
                                       .n = op->n,
                                       .k = op->out,
                                       .left_row = op->in,
                                       .right_row = op->out,
                                       .c = (float *)op->writes[0].data,
                                       .add = op->add};
    if (op->kind == OP_LINEAR) {
        product.left_as = CUBLAS_OP_T;
        product.m = op->out;
        product.k = product.right_row = op->in;
    } else if (op->kind == OP_LINEAR_WEIGHT_GRADIENT) {
        product.right_as = CUBLAS_OP_T;
        product.n = op->out;
        product.k = op->n;
    }
    return product;
}

static struct ops_cuda_scratch *scratches_of(struct device *device,
                                             const struct op *op) {
    return op->kind == OP_LINEAR_WEIGHT_GRADIENT ? device->weight_operands
                                                 : device->operands;
}

/* cuBLAS counts in int. */
static bool supports_product(const struct op *op) {
    return op->n <= INT_MAX && op->in <= INT_MAX && op->out <= INT_MAX;
}

/* Room for the two operands as halves. */
static bool prepare_product(struct device *device, const struct op *op) {
    struct ops_cuda_scratch *scratches = scratches_of(device, op);
    struct ops_cuda_product product = ops_cuda_layer_product(op);
    size_t left = (size_t)product.m * product.k * sizeof(uint16_t);
    size_t right = (size_t)product.k * product.n * sizeof(uint16_t);
    return !job_precision_is_half(device->precision) ||
           (ops_cuda_layer_reserve(device, &scratches[0], left, "halves") &&
            ops_cuda_layer_reserve(device, &scratches[1], right, "halves"));
}

/* FLOATS as operand of a product, of *TYPE: themselves, or rounded to halves in
 * SCRATCH; NULL: that failed. */
static const void *ops_cuda_layer_operand(
    struct device *device, const struct ops_cuda_branch *branch,
    const struct ops_cuda_scratch *scratch, const float *floats, size_t count,
    cudaDataType_t *type) {
    bool bf16 = device->precision == JOB_PRECISION_BF16;
    *type = CUDA_R_32F;
    if (!job_precision_is_half(device->precision))
        return floats;
    *type = bf16 ? CUDA_R_16BF : CUDA_R_16F;
    int error = cuda_kernels_to_half(
        branch->stream, bf16 ? CUDA_KERNELS_BF16 : CUDA_KERNELS_FP16, floats,
        scratch->memory, count);
    return ops_cuda_keep_error(device, (cudaError_t)error, "rounding to halves")
               ? scratch->memory
               : NULL;
}

static int ops_cuda_layer_multiply(struct device *device,
                                   struct ops_cuda_branch *branch,
                                   const struct op *op) {
    struct ops_cuda_scratch *scratches = scratches_of(device, op);
    struct ops_cuda_product product = ops_cuda_layer_product(op);
    product.tf32 = device->precision == JOB_PRECISION_TF32;
    if (device->failed)
        return 0;
    product.left =
        ops_cuda_layer_operand(device, branch, &scratches[0], op->reads[1].data,
                               (size_t)product.m * product.k, &product.type);
    product.right =
        ops_cuda_layer_operand(device, branch, &scratches[1], op->reads[0].data,
                               (size_t)product.k * product.n, &product.type);
    if (product.left && product.right)
        check_product(device, &branch->blas,
                      ops_cuda_blas_multiply(&branch->blas, &product));
    return 0;
}

static int ops_cuda_layer_linear(struct device *device,
                                 struct ops_cuda_branch *branch,
                                 const struct op *op) {
    ops_cuda_layer_multiply(device, branch, op);
    return cuda_kernels_bias_activation(branch->stream, op->reads[2].data,
                                        op->writes[0].data, op->n, op->out,
                                        (enum job_activation)op->activation);
}

static bool prepare_column_sums(struct device *device, const struct op *op) {
    return ops_cuda_layer_reserve(
        device, &device->sums, cuda_kernels_column_sums_scratch(op->n, op->out),
        "partial sums");
}

static int ops_cuda_layer_column_sums(struct device *device,
                                      struct ops_cuda_branch *branch,
                                      const struct op *op) {
    return cuda_kernels_column_sums(branch->stream, op->reads[0].data,
                                    op->writes[0].data, op->n, op->out, op->add,
                                    device->sums.memory);
}

static int ops_cuda_layer_activation_gradient(struct device *device,
                                              struct ops_cuda_branch *branch,
                                              const struct op *op) {
    (void)device;
    return cuda_kernels_activation_gradient(
        branch->stream, (enum job_activation)op->activation, op->reads[0].data,
        op->writes[0].data, (size_t)op->n * op->out);
}

static bool prepare_loss(struct device *device, const struct op *op) {
    return ops_cuda_layer_reserve(device, &device->sums,
                                  cuda_kernels_loss_scratch(op->n),
                                  "partial sums");
}

static int ops_cuda_layer_loss(struct device *device,
                               struct ops_cuda_branch *branch,
                               const struct op *op) {
    return cuda_kernels_sample_losses(
        branch->stream, (enum job_loss)op->loss, op->reads[0].data,
        op->reads[1].data, op->reads[2].data, op->writes[0].data, op->n,
        op->out, op->scale, NULL, device->sums.memory);
}

static int ops_cuda_layer_loss_sum(struct device *device,
                                   struct ops_cuda_branch *branch,
                                   const struct op *op) {
    return cuda_kernels_sum_losses(branch->stream, device->sums.memory, op->n,
                                   op->writes[1].data, op->writes[2].data);
}

static int ops_cuda_layer_rows(struct device *device,
                               struct ops_cuda_branch *branch,
                               const struct op *op) {
    (void)device;
    return cuda_kernels_rows(branch->stream, op);
}

#define LAYER_ROWS(ROW)                                                        \
    ROW(OP_LINEAR, "bias and activation", ops_cuda_layer_linear,               \
        prepare_product, supports_product)                                     \
    ROW(OP_LINEAR_INPUT_GRADIENT, "a matrix product", ops_cuda_layer_multiply, \
        prepare_product, supports_product)                                     \
    ROW(OP_LINEAR_WEIGHT_GRADIENT, "a matrix product",                         \
        ops_cuda_layer_multiply, prepare_product, supports_product,            \
        .branch = OPS_CUDA_WEIGHT_GRADIENTS)                                   \
    ROW(OP_COLUMN_SUMS, "column sums", ops_cuda_layer_column_sums,             \
        prepare_column_sums, .branch = OPS_CUDA_SUMS, .uses_sums = true)       \
    ROW(OP_ACTIVATION_GRADIENT, "the gradient of an activation",               \
        ops_cuda_layer_activation_gradient)                                    \
    ROW(OP_LOSS, "the loss", ops_cuda_layer_loss, prepare_loss,                \
        .uses_sums = true)                                                     \
    ROW(OPS_CUDA_LOSS_SUM, "the loss", ops_cuda_layer_loss_sum,                \
        .branch = OPS_CUDA_SUMS, .uses_sums = true)                            \
    ROW(OP_ROWS_COPY, "rows of fields", ops_cuda_layer_rows)                   \
    ROW(OP_ROWS_PAIRS, "rows of fields", ops_cuda_layer_rows)                  \
    ROW(OP_ROWS_PAIRS_GRADIENT, "rows of fields", ops_cuda_layer_rows)         \
    ROW(OP_ROWS_DOTS, "rows of fields", ops_cuda_layer_rows)                   \
    ROW(OP_ROWS_DOTS_GRADIENT, "rows of fields", ops_cuda_layer_rows)          \
    ROW(OP_ROWS_DROPOUT, "rows of fields", ops_cuda_layer_rows)
const struct ops_cuda_kind ops_cuda_layer_kinds[OPS_CUDA_OPS] = {
    LAYER_ROWS(OP_ROW)};
_Static_assert(LAYER_ROWS(OP_ONE) == OP_FILL - OP_LINEAR + 1,
               "each op of layers and rows has its row");
