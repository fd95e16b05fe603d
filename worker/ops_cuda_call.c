#include "worker/ops_cuda_call.h"

#include "worker/cuda_kernels.h"
#include "worker/ops_cuda_parts.h"

static cudaStream_t computing(const struct ops_device *device) {
    return device->streams[OPS_COMPUTE];
}

/* The kernels' contract: 0 or a cudaError_t. */
static void note_kernel(struct ops_device *device, int error,
                        const char *what) {
    ops_cuda_note(device, (cudaError_t)error, what);
}

static void note_product(struct ops_device *device, cublasStatus_t status) {
    if (status == CUBLAS_STATUS_SUCCESS)
        return;
    cudaError_t error = status == CUBLAS_STATUS_ALLOC_FAILED
                            ? cudaErrorMemoryAllocation
                            : cudaGetLastError();
    ops_cuda_note(device, error ? error : cudaErrorUnknown,
                  "a product of matrices");
}

/* Where ROOM has to grow, it waits for what uses it, and no graph knows the old
 * one any more. A span is captured when it has been given before, so that its
 * rooms are there. */
static bool make_room(struct ops_device *device, struct ops_cuda_room *room,
                      size_t bytes, const char *what) {
    if (bytes <= room->bytes)
        return true;
    if (device->spans.capturing)
        return ops_cuda_note(device, cudaErrorStreamCaptureUnsupported, what);
    ops_cuda_span_forget(device);
    cudaFree(room->memory);
    *room = (struct ops_cuda_room){0};
    if (!ops_cuda_note(device, cudaMalloc(&room->memory, bytes), what))
        return false;
    room->bytes = bytes;
    return true;
}

/* FLOATS as a product takes them, of *TYPE: themselves, or as the nearest
 * halves; NULL: that failed. */
static const void *operand(struct ops_device *device,
                           struct ops_cuda_room *room, const float *floats,
                           size_t count, cudaDataType_t *type) {
    bool bf16 = device->precision == JOB_HALF_BF16;
    *type = CUDA_R_32F;
    if (device->precision == JOB_PRECISE)
        return floats;
    *type = bf16 ? CUDA_R_16BF : CUDA_R_16F;
    if (!make_room(device, room, count * sizeof(uint16_t), "halves"))
        return NULL;
    note_kernel(
        device,
        cuda_kernels_to_half(computing(device),
                             bf16 ? CUDA_KERNELS_BF16 : CUDA_KERNELS_FP16,
                             floats, room->memory, count),
        "rounding to halves");
    return device->failed ? NULL : room->memory;
}

/* Matrices are row-major here and column-major there, where each is its
 * transpose: c^T = b^T a^T. LEFT and RIGHT, of so many floats, become the
 * product's. */
static void multiply(struct ops_device *device,
                     struct ops_cuda_product *product, const float *left,
                     size_t left_count, const float *right,
                     size_t right_count) {
    if (device->failed)
        return;
    product->left =
        operand(device, &device->operands[0], left, left_count, &product->type);
    product->right = operand(device, &device->operands[1], right, right_count,
                             &product->type);
    if (product->left && product->right)
        note_product(device, ops_cuda_blas_multiply(&device->blas, product));
}

static void linear(struct ops_device *device, const struct ops_cuda_call *c) {
    struct ops_cuda_product product = {.left_as = CUBLAS_OP_T,
                                       .right_as = CUBLAS_OP_N,
                                       .m = c->out,
                                       .n = c->n,
                                       .k = c->in,
                                       .left_row = c->in,
                                       .right_row = c->in,
                                       .c = c->to};
    multiply(device, &product, c->b, (size_t)c->out * c->in, c->a,
             (size_t)c->n * c->in);
    note_kernel(device,
                cuda_kernels_bias_activation(computing(device), c->c, c->to,
                                             c->n, c->out,
                                             (enum job_activation)c->word),
                "bias and activation");
}

static void input_gradient(struct ops_device *device,
                           const struct ops_cuda_call *c) {
    struct ops_cuda_product product = {.left_as = CUBLAS_OP_N,
                                       .right_as = CUBLAS_OP_N,
                                       .m = c->in,
                                       .n = c->n,
                                       .k = c->out,
                                       .left_row = c->in,
                                       .right_row = c->out,
                                       .c = c->to};
    multiply(device, &product, c->b, (size_t)c->out * c->in, c->a,
             (size_t)c->n * c->out);
}

static void weight_gradient(struct ops_device *device,
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
    multiply(device, &product, c->b, (size_t)c->n * c->in, c->a,
             (size_t)c->n * c->out);
}

static void column_sums(struct ops_device *device,
                        const struct ops_cuda_call *c) {
    size_t bytes = cuda_kernels_column_sums_room(c->n, c->out);
    if (make_room(device, &device->sums, bytes, "partial sums"))
        note_kernel(device,
                    cuda_kernels_column_sums(computing(device), c->a, c->to,
                                             c->n, c->out, c->add,
                                             device->sums.memory),
                    "column sums");
}

static void activation_gradient(struct ops_device *device,
                                const struct ops_cuda_call *c) {
    note_kernel(device,
                cuda_kernels_activation_gradient(
                    computing(device), (enum job_activation)c->word, c->a,
                    c->to, (size_t)c->n * c->out),
                "the gradient of an activation");
}

static void loss(struct ops_device *device, const struct ops_cuda_call *c) {
    size_t bytes = cuda_kernels_loss_room(c->n);
    if (make_room(device, &device->sums, bytes, "partial sums"))
        note_kernel(device,
                    cuda_kernels_loss(computing(device), (enum job_loss)c->word,
                                      c->a, c->b, c->to, c->n, c->out, c->scale,
                                      NULL, device->sums.memory, c->second,
                                      c->third),
                    "the loss");
}

static void copy(struct ops_device *device, const struct ops_cuda_call *c,
                 enum cudaMemcpyKind way, const char *what) {
    ops_cuda_note(
        device,
        cudaMemcpyAsync(c->to, c->a, c->bytes, way, device->streams[c->stream]),
        what);
}

void ops_cuda_call_do(struct ops_device *device,
                      const struct ops_cuda_call *c) {
    cudaStream_t stream = device->streams[c->stream];
    switch ((enum ops_cuda_kind)c->kind) {
    case OPS_CUDA_UPLOAD:
        copy(device, c, cudaMemcpyHostToDevice, "a copy to it");
        return;
    case OPS_CUDA_DOWNLOAD:
        copy(device, c, cudaMemcpyDeviceToHost, "a copy from it");
        return;
    case OPS_CUDA_RECORD:
        ops_cuda_note(device, cudaEventRecord(c->event->event, stream),
                      "recording an event");
        return;
    case OPS_CUDA_FOLLOW:
        ops_cuda_note(device, cudaStreamWaitEvent(stream, c->event->event, 0),
                      "following an event");
        return;
    case OPS_CUDA_LINEAR:
        linear(device, c);
        return;
    case OPS_CUDA_INPUT_GRADIENT:
        input_gradient(device, c);
        return;
    case OPS_CUDA_WEIGHT_GRADIENT:
        weight_gradient(device, c);
        return;
    case OPS_CUDA_COLUMN_SUMS:
        column_sums(device, c);
        return;
    case OPS_CUDA_ACTIVATION_GRADIENT:
        activation_gradient(device, c);
        return;
    case OPS_CUDA_LOSS:
        loss(device, c);
        return;
    }
}
