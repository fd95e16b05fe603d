/* SPDX-License-Identifier: Apache-2.0 */
/* Update rules, one kernel per form: rule_element.h's arithmetic over the whole
 * arena at once. */
#include "worker/ops/cuda/cuda_launch.h"

#include "core/tensor/rule_element.h"

#include <utility>

#define SLOTS_OF(FORM, NAME, SLOTS, ...)                                       \
    case RULE_##FORM:                                                          \
        return SLOTS;
static __host__ __device__ constexpr int slots_of(enum rule_form form) {
    switch (form) {
        RULE_ROWS(SLOTS_OF)
    case RULE_FORMS:
        break;
    }
    return -1;
}

#define APPLY(FORM, NAME, ...)                                                 \
    case RULE_##FORM:                                                          \
        return rule_##NAME(c, sum, weight, slots);
template <enum rule_form OF>
CUDA_ELEMENT float cuda_rule_apply(const struct rule_constants *c, float sum,
                                   float weight, float *slots) {
    switch (OF) {
        RULE_ROWS(APPLY)
    case RULE_FORMS:
        break;
    }
    return weight;
}

template <enum rule_form FORM>
static __global__ void update_weights(struct cuda_kernels_update update) {
    constexpr int slots = slots_of(FORM);
    if (update.skip && *update.skip)
        return;
    struct rule_constants c = update.constants;
    c.scale = cuda_scale(c.scale, update.factor);
    for (size_t i = cuda_first(); i < update.elements; i += cuda_stride()) {
        float state[RULE_MAX_SLOTS] = {};
        for (int slot = 0; slot < slots; slot++)
            state[slot] = update.state[slot][i];
        update.weights[i] = cuda_rule_apply<FORM>(&c, update.gradient[i],
                                                  update.weights[i], state);
        for (int slot = 0; slot < slots; slot++)
            update.state[slot][i] = state[slot];
    }
}

typedef void cuda_rule_kernel(struct cuda_kernels_update update);

/* An instance of update_weights for each form. */
template <size_t... FORMS>
static cuda_rule_kernel *kernel_of(enum rule_form form,
                                   std::index_sequence<FORMS...>) {
    static cuda_rule_kernel *const kernels[] = {
        update_weights<static_cast<enum rule_form>(FORMS)>...};
    return kernels[form];
}

int cuda_kernels_rule(struct CUstream_st *stream,
                      const struct cuda_kernels_update *update) {
    if (update->form >= RULE_FORMS)
        return cudaErrorInvalidValue;
    cuda_rule_kernel *kernel =
        kernel_of(update->form, std::make_index_sequence<RULE_FORMS>());
    return cuda_launch(stream, cuda_blocks(update->elements, CUDA_THREADS),
                       kernel, *update);
}

static __global__ void cuda_rule_fill(float *x, size_t count, float value) {
    for (size_t i = cuda_first(); i < count; i += cuda_stride())
        x[i] = value;
}

int cuda_kernels_fill(struct CUstream_st *stream, float *x, size_t count,
                      float value) {
    return cuda_launch(stream, cuda_blocks(count, CUDA_THREADS), cuda_rule_fill,
                       x, count, value);
}

static __global__ void scale_values(float *x, size_t count, float scale,
                                    const float *factor) {
    float whole = cuda_scale(scale, factor);
    for (size_t i = cuda_first(); i < count; i += cuda_stride())
        x[i] *= whole;
}

int cuda_kernels_scale(struct CUstream_st *stream, float *x, size_t count,
                       float scale, const float *factor) {
    return cuda_launch(stream, cuda_blocks(count, CUDA_THREADS), scale_values,
                       x, count, scale, factor);
}
