/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/cuda/ops_cuda_update.h"

#include "worker/ops/cuda/cuda_kernels.h"
#include "worker/ops/cuda/ops_cuda_internal.h"

#include <string.h>

_Static_assert(sizeof(float) == sizeof(uint32_t),
               "a float of 0 is a word of 0");

void ops_cuda_update_copy(struct device *device, enum device_stream stream,
                          void *to, const void *from, size_t bytes) {
    ops_cuda_keep_error(
        device,
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice,
                        ops_cuda_capture_stream(device, stream)),
        "a copy within it");
}

void ops_cuda_update_fill(struct device *device, enum device_stream stream,
                          float *x, size_t count, float value) {
    int error = cuda_kernels_fill(ops_cuda_capture_stream(device, stream), x,
                                  count, value);
    ops_cuda_keep_error(device, (cudaError_t)error, "filling a vector");
}

void ops_cuda_update_scale(struct device *device, enum device_stream stream,
                           float *x, size_t count, float by) {
    int error = cuda_kernels_scale(ops_cuda_capture_stream(device, stream), x,
                                   count, by, NULL);
    ops_cuda_keep_error(device, (cudaError_t)error, "scaling a vector");
}

void ops_cuda_update_find_overflow(struct device *device,
                                   enum device_stream stream, const float *x,
                                   size_t count, uint32_t *found) {
    cudaStream_t native_stream = ops_cuda_capture_stream(device, stream);
    int error = cuda_kernels_fill(native_stream, (float *)found, 1, 0);
    if (!error)
        error = cuda_kernels_find_overflow(native_stream, x, count, found);
    ops_cuda_keep_error(device, (cudaError_t)error, "the overflow check");
}

void ops_cuda_update_square_sums(struct device *device,
                                 enum device_stream stream, const float *x,
                                 size_t count, float scale, double *pieces) {
    int error = cuda_kernels_square_sums(
        ops_cuda_capture_stream(device, stream), x, count, scale, NULL, pieces);
    ops_cuda_keep_error(device, (cudaError_t)error, "sums of squares");
}

void ops_cuda_update_reduce_sum(struct device *device,
                                enum device_stream stream, const double *pieces,
                                size_t count, double *sum) {
    int error = cuda_kernels_reduce_sum(ops_cuda_capture_stream(device, stream),
                                        pieces, count, sum);
    ops_cuda_keep_error(device, (cudaError_t)error, "adding up");
}

void ops_cuda_update_clip(struct device *device, enum device_stream stream,
                          const double *squares, size_t count, size_t step,
                          double limit, float *factor) {
    int error = cuda_kernels_clip(ops_cuda_capture_stream(device, stream),
                                  squares, count, step, limit, factor);
    ops_cuda_keep_error(device, (cudaError_t)error, "clipping");
}

/* As in rule_apply, for the same bits as on the CPU. */
static bool is_noop(const struct optimizer *rule,
                    const struct rule_update *update) {
    bool divides_by_0 = rule->type == OPTIMIZER_FTRL && update->rate == 0;
    return update->num_gradients == 0 || divides_by_0;
}

void ops_cuda_update_rule(struct device *device, enum device_stream stream,
                          const struct optimizer *rule,
                          const struct rule_update *update,
                          const float *factor) {
    if (is_noop(rule, update))
        return;
    struct cuda_kernels_update kernel = {.form = rule_form_of(rule),
                                         .constants =
                                             rule_form_constants(rule, update),
                                         .factor = factor,
                                         .elements = update->elements,
                                         .gradient = update->gradients[0],
                                         .weights = update->weights_out};
    memcpy(kernel.state, update->state_out, sizeof kernel.state);
    int error =
        cuda_kernels_rule(ops_cuda_capture_stream(device, stream), &kernel);
    ops_cuda_keep_error(device, (cudaError_t)error, "an update");
}
