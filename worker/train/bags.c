/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/train/bags.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { AHEAD = 32 /* ids whose rows are on their way */, MAX_LOCAL = 16 };

/* What the weights of bag B are divided by. */
static float divisor_of(const struct bags *bags, size_t b) {
    float sum = 0;
    if (bags->combiner == BATCH_SUM)
        return 1;
    for (uint32_t j = bags->offsets[b]; j < bags->offsets[b + 1]; j++) {
        float weight = bags->weights ? bags->weights[j] : 1;
        sum += bags->combiner == BATCH_MEAN ? weight : weight * weight;
    }
    if (sum == 0)
        return 1;
    return bags->combiner == BATCH_MEAN ? sum : sqrtf(sum);
}

/* What a bag's ids count, as weights[j] / divisor; SHARE without weights. */
static inline float weight_of(const struct bags *bags, uint32_t j,
                              float divisor, float share) {
    return bags->weights ? bags->weights[j] / divisor : share;
}

/* Adds WEIGHT times each of DIM floats; without a product where it is 1. */
static inline void add_scaled(float *restrict to, const float *restrict from,
                              float weight, uint32_t dim) {
    if (weight == 1)
        for (uint32_t d = 0; d < dim; d++)
            to[d] += from[d];
    else
        for (uint32_t d = 0; d < dim; d++)
            to[d] += weight * from[d];
}

/* LOCAL: DIM is a constant of at most MAX_LOCAL, so that a bag's sum is kept in
 * registers. */
static inline void sum_bags(const struct bags *bags, const float *rows,
                            const uint32_t *positions, float *sums,
                            uint32_t dim, bool local) {
    uint32_t last = bags->offsets[bags->count] - 1;
    float own[MAX_LOCAL];
    for (size_t b = 0; b < bags->count; b++, sums += bags->width) {
        float divisor = divisor_of(bags, b), share = 1 / divisor;
        float *to = local ? memcpy(own, sums, dim * sizeof *sums) : sums;
        for (uint32_t j = bags->offsets[b]; j < bags->offsets[b + 1]; j++) {
            uint32_t next = j + AHEAD < last ? j + AHEAD : last;
            __builtin_prefetch(rows + positions[next]);
            add_scaled(to, rows + positions[j],
                       weight_of(bags, j, divisor, share), dim);
        }
        if (local)
            memcpy(sums, own, dim * sizeof *sums);
    }
}

static inline void spread_bags(const struct bags *bags, const float *sums,
                               const uint32_t *positions, float *gradients,
                               uint32_t dim) {
    for (size_t b = 0; b < bags->count; b++, sums += bags->width) {
        float divisor = divisor_of(bags, b), share = 1 / divisor;
        for (uint32_t j = bags->offsets[b]; j < bags->offsets[b + 1]; j++)
            add_scaled(gradients + (positions ? positions[j] : (size_t)j * dim),
                       sums, weight_of(bags, j, divisor, share), dim);
    }
}

/* Common widths have loops of their own, which the compiler unrolls. */
void bags_add_rows(const struct bags *bags, const float *rows,
                   const uint32_t *positions, float *sums) {
    switch (bags->dim) {
    case 1:
        sum_bags(bags, rows, positions, sums, 1, true);
        return;
    case 8:
        sum_bags(bags, rows, positions, sums, 8, true);
        return;
    case 16:
        sum_bags(bags, rows, positions, sums, 16, true);
        return;
    default:
        sum_bags(bags, rows, positions, sums, bags->dim, false);
    }
}

void bags_add_gradients(const struct bags *bags, const float *sums,
                        const uint32_t *positions, float *gradients) {
    switch (bags->dim) {
    case 1:
        spread_bags(bags, sums, positions, gradients, 1);
        return;
    case 8:
        spread_bags(bags, sums, positions, gradients, 8);
        return;
    case 16:
        spread_bags(bags, sums, positions, gradients, 16);
        return;
    default:
        spread_bags(bags, sums, positions, gradients, bags->dim);
    }
}
