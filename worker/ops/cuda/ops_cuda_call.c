/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/cuda/ops_cuda_call.h"

#include "worker/ops/cuda/cuda_kernels.h"
#include "worker/ops/cuda/ops_cuda_parts.h"

/* The kernels' contract: 0 or a cudaError_t. */
static void note_kernel(struct ops_device *device, int error,
                        const char *what) {
    ops_cuda_note(device, (cudaError_t)error, what);
}

/* cuBLAS has a runtime of its own: the last error of ours is of other calls,
 * and may be that an event had not come. */
static void note_product(struct ops_device *device,
                         const struct ops_cuda_blas *blas,
                         cublasStatus_t status) {
    if (status == CUBLAS_STATUS_ALLOC_FAILED)
        ops_cuda_note(device, cudaErrorMemoryAllocation,
                      "a product of matrices");
    else if (status)
        ops_cuda_note(device, cudaErrorUnknown, blas->status_string(status));
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
                           const struct ops_cuda_lane *lane,
                           struct ops_cuda_room *room, const float *floats,
                           size_t count, cudaDataType_t *type) {
    bool bf16 = device->precision == JOB_HALF_BF16;
    *type = CUDA_R_32F;
    if (device->precision == JOB_PRECISE)
        return floats;
    *type = bf16 ? CUDA_R_16BF : CUDA_R_16F;
    if (!make_room(device, room, count * sizeof(uint16_t), "halves"))
        return NULL;
    note_kernel(device,
                cuda_kernels_to_half(
                    lane->stream, bf16 ? CUDA_KERNELS_BF16 : CUDA_KERNELS_FP16,
                    floats, room->memory, count),
                "rounding to halves");
    return device->failed ? NULL : room->memory;
}

/* Matrices are row-major here and column-major there, where each is its
 * transpose: c^T = b^T a^T. LEFT and RIGHT, of so many floats, become the
 * product's, in ROOMS if they are halves. */
static void multiply(struct ops_device *device, struct ops_cuda_lane *lane,
                     struct ops_cuda_product *product,
                     struct ops_cuda_room rooms[2], const float *left,
                     size_t left_count, const float *right,
                     size_t right_count) {
    if (device->failed)
        return;
    product->left =
        operand(device, lane, &rooms[0], left, left_count, &product->type);
    product->right =
        operand(device, lane, &rooms[1], right, right_count, &product->type);
    if (product->left && product->right)
        note_product(device, &lane->blas,
                     ops_cuda_blas_multiply(&lane->blas, product));
}

static void linear(struct ops_device *device, struct ops_cuda_lane *lane,
                   const struct ops_cuda_call *c) {
    struct ops_cuda_product product = {.left_as = CUBLAS_OP_T,
                                       .right_as = CUBLAS_OP_N,
                                       .m = c->out,
                                       .n = c->n,
                                       .k = c->in,
                                       .left_row = c->in,
                                       .right_row = c->in,
                                       .c = c->to};
    multiply(device, lane, &product, device->operands, c->b,
             (size_t)c->out * c->in, c->a, (size_t)c->n * c->in);
    note_kernel(device,
                cuda_kernels_bias_activation(lane->stream, c->c, c->to, c->n,
                                             c->out,
                                             (enum job_activation)c->word),
                "bias and activation");
}

static void input_gradient(struct ops_device *device,
                           struct ops_cuda_lane *lane,
                           const struct ops_cuda_call *c) {
    struct ops_cuda_product product = {.left_as = CUBLAS_OP_N,
                                       .right_as = CUBLAS_OP_N,
                                       .m = c->in,
                                       .n = c->n,
                                       .k = c->out,
                                       .left_row = c->in,
                                       .right_row = c->out,
                                       .c = c->to};
    multiply(device, lane, &product, device->operands, c->b,
             (size_t)c->out * c->in, c->a, (size_t)c->n * c->out);
}

static void weight_gradient(struct ops_device *device,
                            struct ops_cuda_lane *lane,
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
    multiply(device, lane, &product, device->of_weights, c->b,
             (size_t)c->n * c->in, c->a, (size_t)c->n * c->out);
}

static void column_sums(struct ops_device *device, struct ops_cuda_lane *lane,
                        const struct ops_cuda_call *c) {
    size_t bytes = cuda_kernels_column_sums_room(c->n, c->out);
    if (make_room(device, &device->sums, bytes, "partial sums"))
        note_kernel(device,
                    cuda_kernels_column_sums(lane->stream, c->a, c->to, c->n,
                                             c->out, c->add,
                                             device->sums.memory),
                    "column sums");
}

static void activation_gradient(struct ops_device *device,
                                struct ops_cuda_lane *lane,
                                const struct ops_cuda_call *c) {
    note_kernel(device,
                cuda_kernels_activation_gradient(
                    lane->stream, (enum job_activation)c->word, c->a, c->to,
                    (size_t)c->n * c->out),
                "the gradient of an activation");
}

static void loss(struct ops_device *device, struct ops_cuda_lane *lane,
                 const struct ops_cuda_call *c) {
    size_t bytes = cuda_kernels_loss_room(c->n);
    if (make_room(device, &device->sums, bytes, "partial sums"))
        note_kernel(device,
                    cuda_kernels_losses(lane->stream, (enum job_loss)c->word,
                                        c->a, c->b, c->to, c->n, c->out,
                                        c->scale, NULL, device->sums.memory),
                    "the loss");
}

static void loss_sum(struct ops_device *device, struct ops_cuda_lane *lane,
                     const struct ops_cuda_call *c) {
    note_kernel(device,
                cuda_kernels_add_losses(lane->stream, device->sums.memory, c->n,
                                        c->second, c->third),
                "the loss");
}

static void copy(struct ops_device *device, const struct ops_cuda_call *c,
                 enum cudaMemcpyKind way, const char *what) {
    ops_cuda_note(
        device,
        cudaMemcpyAsync(c->to, c->a, c->bytes, way, device->streams[c->stream]),
        what);
}

static void compute(struct ops_device *device, struct ops_cuda_lane *lane,
                    const struct ops_cuda_call *c) {
    switch ((enum ops_cuda_kind)c->kind) {
    case OPS_CUDA_LINEAR:
        linear(device, lane, c);
        return;
    case OPS_CUDA_INPUT_GRADIENT:
        input_gradient(device, lane, c);
        return;
    case OPS_CUDA_WEIGHT_GRADIENT:
        weight_gradient(device, lane, c);
        return;
    case OPS_CUDA_COLUMN_SUMS:
        column_sums(device, lane, c);
        return;
    case OPS_CUDA_ACTIVATION_GRADIENT:
        activation_gradient(device, lane, c);
        return;
    case OPS_CUDA_LOSS:
        loss(device, lane, c);
        return;
    case OPS_CUDA_LOSS_SUM:
        loss_sum(device, lane, c);
        return;
    default:
        return;
    }
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
    default:
        compute(device, &device->lanes[OPS_CUDA_ALONG], c);
        return;
    }
}

enum ops_cuda_lane_name ops_cuda_call_lane(const struct ops_cuda_call *call) {
    switch ((enum ops_cuda_kind)call->kind) {
    case OPS_CUDA_WEIGHT_GRADIENT:
        return OPS_CUDA_ASIDE;
    case OPS_CUDA_COLUMN_SUMS:
    case OPS_CUDA_LOSS_SUM:
        return OPS_CUDA_SUMS;
    default:
        return OPS_CUDA_ALONG;
    }
}

void ops_cuda_call_do_in(struct ops_device *device,
                         const struct ops_cuda_call *call,
                         enum ops_cuda_lane_name lane) {
    if (lane == OPS_CUDA_ALONG)
        ops_cuda_call_do(device, call);
    else
        compute(device, &device->lanes[lane], call);
}

/* What a call reads or writes. */
struct piece {
    const void *at; /* NULL: nothing */
    uint64_t bytes;
};
enum { READ = 3, PIECES = 6 }; /* those it reads first */

static void find_pieces(const struct ops_cuda_call *c,
                        struct piece pieces[PIECES]) {
    uint64_t x = (uint64_t)c->n * c->in * sizeof(float);
    uint64_t y = (uint64_t)c->n * c->out * sizeof(float);
    uint64_t w = (uint64_t)c->in * c->out * sizeof(float);
    uint64_t bias = c->out * sizeof(float), labels = c->n * sizeof(uint32_t);
    const uint64_t bytes[][PIECES] = {
        [OPS_CUDA_UPLOAD] = {c->bytes, 0, 0, c->bytes},
        [OPS_CUDA_DOWNLOAD] = {c->bytes, 0, 0, c->bytes},
        [OPS_CUDA_LINEAR] = {x, w, bias, y},
        [OPS_CUDA_INPUT_GRADIENT] = {y, w, 0, x},
        [OPS_CUDA_WEIGHT_GRADIENT] = {y, x, 0, w},
        [OPS_CUDA_COLUMN_SUMS] = {y, 0, 0, bias},
        [OPS_CUDA_ACTIVATION_GRADIENT] = {y, 0, 0, y},
        [OPS_CUDA_LOSS] = {y, labels, 0, y},
        [OPS_CUDA_LOSS_SUM] = {0, 0, 0, 0, sizeof(double), sizeof(uint32_t)},
    };
    const void *const at[PIECES] = {c->a,  c->b,      c->c,
                                    c->to, c->second, c->third};
    for (int i = 0; i < PIECES; i++)
        pieces[i] = (struct piece){at[i], at[i] ? bytes[c->kind][i] : 0};
}

static bool overlap(const struct piece *one, const struct piece *other) {
    uintptr_t first = (uintptr_t)one->at, second = (uintptr_t)other->at;
    return first < second + other->bytes && second < first + one->bytes;
}

/* Losses and column sums are added up in one room. */
static bool uses_sums(const struct ops_cuda_call *call) {
    return call->kind == OPS_CUDA_LOSS || call->kind == OPS_CUDA_LOSS_SUM ||
           call->kind == OPS_CUDA_COLUMN_SUMS;
}

bool ops_cuda_call_meet(const struct ops_cuda_call *one,
                        const struct ops_cuda_call *other) {
    struct piece of_one[PIECES], of_other[PIECES];
    find_pieces(one, of_one);
    find_pieces(other, of_other);
    for (int i = 0; i < PIECES; i++)
        for (int j = 0; j < PIECES; j++)
            if ((i >= READ || j >= READ) && overlap(&of_one[i], &of_other[j]))
                return true;
    return uses_sums(one) && uses_sums(other);
}
