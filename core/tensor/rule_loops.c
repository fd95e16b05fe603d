/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled once for each VARIANT: plain, avx2 or avx512. The compiler
 * vectorizes the loops; each element is computed alone, so the vector width
 * does not change the result. */
#include "core/tensor/rule_loops.h"

#include "core/tensor/bf16.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* A float and a bf16 at any alignment, as in a message. */
typedef float unaligned_float __attribute__((aligned(1), may_alias));
typedef uint32_t unaligned_bits __attribute__((aligned(1), may_alias));
typedef uint16_t unaligned_bf16 __attribute__((aligned(1), may_alias));

typedef float element(const struct rule_constants *constants, float sum,
                      float weight, float *slots);

/* An output is its own source or does not overlap any source, so no element
 * depends on another: `ivdep` tells the compiler so. */
static ALWAYS_INLINE void update_elements(
    element *rule, unsigned slots, const struct rule_constants *constants,
    const struct rule_update *update, const unaligned_float *sums, size_t first,
    size_t count) {
    struct rule_constants c = *constants;
    const float *weights = update->weights + first;
    float *weights_out = update->weights_out + first;
    const float *in_0 = slots > 0 ? update->state[0] + first : NULL;
    const float *in_1 = slots > 1 ? update->state[1] + first : NULL;
    const float *in_2 = slots > 2 ? update->state[2] + first : NULL;
    float *out_0 = slots > 0 ? update->state_out[0] + first : NULL;
    float *out_1 = slots > 1 ? update->state_out[1] + first : NULL;
    float *out_2 = slots > 2 ? update->state_out[2] + first : NULL;
#pragma GCC ivdep
    for (size_t i = 0; i < count; i++) {
        float s[RULE_MAX_SLOTS] = {slots > 0 ? in_0[i] : 0,
                                   slots > 1 ? in_1[i] : 0,
                                   slots > 2 ? in_2[i] : 0};
        weights_out[i] = rule(&c, sums[i], weights[i], s);
        if (slots > 0)
            out_0[i] = s[0];
        if (slots > 1)
            out_1[i] = s[1];
        if (slots > 2)
            out_2[i] = s[2];
    }
}

/* kernel_NAME, the loop of rule_NAME, for each form. */
#define KERNEL(FORM, NAME, SLOTS, ...)                                         \
    static void kernel_##NAME(const struct rule_constants *constants,          \
                              const struct rule_update *update,                \
                              const void *sums, size_t first, size_t count) {  \
        update_elements(rule_##NAME, SLOTS, constants, update, sums, first,    \
                        count);                                                \
    }
RULE_ROWS(KERNEL)

/* Element I of a gradient. */
typedef float reader(const void *gradient, size_t i);

static ALWAYS_INLINE float read_float32(const void *gradient, size_t i) {
    return ((const unaligned_float *)gradient)[i];
}

static ALWAYS_INLINE float read_bf16(const void *gradient, size_t i) {
    return bf16_to_float(((const unaligned_bf16 *)gradient)[i]);
}

/* Four gradients at a time, so that several memory reads are in flight. The
 * order of additions is still that of the ranks. */
static ALWAYS_INLINE void rule_loops_sum(reader *at,
                                         const void *const *gradients,
                                         unsigned num_gradients, size_t first,
                                         size_t end, float *restrict sums) {
    const void *a = gradients[0];
    if (num_gradients == 1) {
        for (size_t i = first; i < end; i++)
            sums[i - first] = at(a, i);
        return;
    }
    const void *b = gradients[1];
    for (size_t i = first; i < end; i++)
        sums[i - first] = at(a, i) + at(b, i);
    unsigned k = 2;
    for (; k + 4 <= num_gradients; k += 4) {
        const void *c = gradients[k + 2], *d = gradients[k + 3];
        a = gradients[k];
        b = gradients[k + 1];
        for (size_t i = first; i < end; i++)
            sums[i - first] =
                sums[i - first] + at(a, i) + at(b, i) + at(c, i) + at(d, i);
    }
    for (; k < num_gradients; k++) {
        a = gradients[k];
        for (size_t i = first; i < end; i++)
            sums[i - first] += at(a, i);
    }
}

static void sum_float32(const void *const *gradients, unsigned num_gradients,
                        size_t first, size_t count, float *sums) {
    rule_loops_sum(read_float32, gradients, num_gradients, first, first + count,
                   sums);
}

static void sum_bf16(const void *const *gradients, unsigned num_gradients,
                     size_t first, size_t count, float *sums) {
    rule_loops_sum(read_bf16, gradients, num_gradients, first, first + count,
                   sums);
}

static void to_bf16(const float *restrict floats, size_t count,
                    void *restrict bf16) {
    unaligned_bf16 *out = bf16;
    for (size_t i = 0; i < count; i++)
        out[i] = bf16_from_float(floats[i]);
}

/* Element i goes to lane i mod RULE_LANES, in double; the local copy of the
 * lanes can stay in registers. */
static void rule_loops_add_squares(const void *sums, size_t count, float scale,
                                   double lanes[RULE_LANES]) {
    const unaligned_float *x = sums;
    double own[RULE_LANES];
    for (unsigned lane = 0; lane < RULE_LANES; lane++)
        own[lane] = lanes[lane];
    size_t i = 0;
    for (; i + RULE_LANES <= count; i += RULE_LANES)
        for (unsigned lane = 0; lane < RULE_LANES; lane++) {
            double value = scale * x[i + lane];
            own[lane] += value * value;
        }
    for (unsigned lane = 0; i < count; i++, lane++) {
        double value = scale * x[i];
        own[lane] += value * value;
    }
    for (unsigned lane = 0; lane < RULE_LANES; lane++)
        lanes[lane] = own[lane];
}

/* An exponent of all ones is an infinity or a NaN. */
static bool rule_loops_is_finite(const void *sums, size_t count) {
    const unaligned_bits *bits = sums;
    uint32_t largest = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t magnitude = bits[i] & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest < 0x7f800000;
}

#define JOIN_(A, B) A##B
#define JOIN(A, B) JOIN_(A, B)
#define TEXT_(A) #A
#define TEXT(A) TEXT_(A)

#define KERNEL_OF(FORM, NAME, ...) [RULE_##FORM] = kernel_##NAME,
const struct rule_loops JOIN(rule_loops_, VARIANT) = {
    .name = TEXT(VARIANT),
    .kernel = {RULE_ROWS(KERNEL_OF)},
    .sum = {[JOB_WIRE_FLOAT32] = sum_float32, [JOB_WIRE_BF16] = sum_bf16},
    .add_squares = rule_loops_add_squares,
    .is_finite = rule_loops_is_finite,
    .to_bf16 = to_bf16,
};
