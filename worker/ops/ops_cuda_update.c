#include "worker/ops/ops_cuda_update.h"

#include "worker/ops/cuda_kernels.h"
#include "worker/ops/ops_cuda_parts.h"

#include <string.h>

_Static_assert(sizeof(float) == sizeof(uint32_t),
               "a float of 0 is a word of 0");

void ops_cuda_update_copy(struct ops_device *device, enum ops_stream stream,
                          void *to, const void *from, size_t bytes) {
    ops_cuda_note(device,
                  cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice,
                                  ops_cuda_span_stream(device, stream)),
                  "a copy within it");
}

void ops_cuda_update_fill(struct ops_device *device, enum ops_stream stream,
                          float *x, size_t count, float value) {
    int error = cuda_kernels_fill(ops_cuda_span_stream(device, stream), x,
                                  count, value);
    ops_cuda_note(device, (cudaError_t)error, "filling a vector");
}

void ops_cuda_update_scale(struct ops_device *device, enum ops_stream stream,
                           float *x, size_t count, float by) {
    int error = cuda_kernels_scale(ops_cuda_span_stream(device, stream), x,
                                   count, by, NULL);
    ops_cuda_note(device, (cudaError_t)error, "scaling a vector");
}

void ops_cuda_update_find_overflow(struct ops_device *device,
                                   enum ops_stream stream, const float *x,
                                   size_t count, uint32_t *found) {
    cudaStream_t native = ops_cuda_span_stream(device, stream);
    int error = cuda_kernels_fill(native, (float *)found, 1, 0);
    if (!error)
        error = cuda_kernels_find_overflow(native, x, count, found);
    ops_cuda_note(device, (cudaError_t)error, "looking for overflows");
}

void ops_cuda_update_square_sums(struct ops_device *device,
                                 enum ops_stream stream, const float *x,
                                 size_t count, float scale, double *pieces) {
    int error = cuda_kernels_square_sums(ops_cuda_span_stream(device, stream),
                                         x, count, scale, NULL, pieces);
    ops_cuda_note(device, (cudaError_t)error, "sums of squares");
}

/* As rule_apply, which the CPU's bits are those of. */
static bool changes_nothing(const struct optimizer *rule,
                            const struct rule_update *update) {
    bool divides_by_0 = rule->type == OPTIMIZER_FTRL && update->rate == 0;
    return update->num_gradients == 0 || divides_by_0;
}

/* Constants are a stream's own: no update before still needs them when they
 * become others. */
void ops_cuda_update_rule(struct ops_device *device, enum ops_stream stream,
                          const struct optimizer *rule,
                          const struct rule_update *update) {
    if (changes_nothing(rule, update))
        return;
    cudaStream_t native = ops_cuda_span_stream(device, stream);
    struct rule_constants now = rule_form_constants(rule, update);
    struct cuda_kernels_update sweep = {.form = rule_form_of(rule),
                                        .constants = device->constants + stream,
                                        .elements = update->elements,
                                        .gradient = update->gradients[0],
                                        .weights = update->weights_out};
    memcpy(sweep.state, update->state_out, sizeof sweep.state);
    int error =
        cuda_kernels_constants(native, &now, device->constants + stream);
    if (!error)
        error = cuda_kernels_rule(native, &sweep);
    ops_cuda_note(device, (cudaError_t)error, "an update");
}
