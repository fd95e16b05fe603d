#include "worker/ops_cuda_update.h"

#include "worker/cuda_kernels.h"

#include <string.h>

_Static_assert(sizeof(float) == sizeof(uint32_t),
               "a float of 0 is a word of 0");

cudaError_t ops_cuda_update_find_overflow(cudaStream_t stream, const float *x,
                                          size_t count, uint32_t *found) {
    int error = cuda_kernels_fill(stream, (float *)found, 1, 0);
    if (!error)
        error = cuda_kernels_find_overflow(stream, x, count, found);
    return (cudaError_t)error;
}

/* As rule_apply, which the CPU's bits are those of. */
static bool changes_nothing(const struct optimizer *rule,
                            const struct rule_update *update) {
    bool divides_by_0 = rule->type == OPTIMIZER_FTRL && update->rate == 0;
    return update->num_gradients == 0 || divides_by_0;
}

cudaError_t ops_cuda_update_rule(cudaStream_t stream,
                                 struct rule_constants *constants,
                                 const struct optimizer *rule,
                                 const struct rule_update *update) {
    if (changes_nothing(rule, update))
        return cudaSuccess;
    struct rule_constants now = rule_form_constants(rule, update);
    struct cuda_kernels_update sweep = {.form = rule_form_of(rule),
                                        .constants = constants,
                                        .elements = update->elements,
                                        .gradient = update->gradients[0],
                                        .weights = update->weights_out};
    memcpy(sweep.state, update->state_out, sizeof sweep.state);
    int error = cuda_kernels_constants(stream, &now, constants);
    if (!error)
        error = cuda_kernels_rule(stream, &sweep);
    return (cudaError_t)error;
}
