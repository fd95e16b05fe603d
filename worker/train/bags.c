/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/train/bags.h"

#include <math.h>

enum { AHEAD = 32 /* ids whose rows are on their way */, MAX_QUADS = 4 };

/* Four floats, at any alignment of floats. */
typedef float quad __attribute__((vector_size(16), aligned(4), may_alias));

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

/* What ID counts: its weight / DIVISOR, which is SHARE without weights. */
static inline float id_weight(const struct bags *bags, uint32_t id,
                              float divisor, float share) {
    return bags->weights ? bags->weights[id] / divisor : share;
}

static inline size_t row_place(const struct bags *bags,
                               const uint32_t *positions, uint32_t id) {
    return positions ? positions[id] : (size_t)id * bags->dim;
}

static inline void prefetch_ahead(const struct bags *bags, const float *rows,
                                  const uint32_t *positions, uint32_t id) {
    uint32_t last = bags->offsets[bags->count] - 1;
    __builtin_prefetch(rows + positions[id + AHEAD < last ? id + AHEAD : last]);
}

/* The first 4 QUADS columns, a constant of at most MAX_QUADS, so that a bag's
 * sum stays in registers. */
static inline void sum_quads(const struct bags *bags, const float *rows,
                             const uint32_t *positions, float *sums,
                             uint32_t quads) {
    for (size_t b = 0; b < bags->count; b++, sums += bags->width) {
        float divisor = divisor_of(bags, b), share = 1 / divisor;
        quad sum[MAX_QUADS];
        for (uint32_t q = 0; q < quads; q++)
            sum[q] = ((const quad *)sums)[q];
        for (uint32_t j = bags->offsets[b]; j < bags->offsets[b + 1]; j++) {
            const quad *row = (const quad *)(rows + positions[j]);
            float weight = id_weight(bags, j, divisor, share);
            prefetch_ahead(bags, rows, positions, j);
            for (uint32_t q = 0; q < quads; q++)
                sum[q] += weight * row[q];
        }
        for (uint32_t q = 0; q < quads; q++)
            ((quad *)sums)[q] = sum[q];
    }
}

/* The first column. */
static void sum_column(const struct bags *bags, const float *rows,
                       const uint32_t *positions, float *sums) {
    for (size_t b = 0; b < bags->count; b++, sums += bags->width) {
        float divisor = divisor_of(bags, b), share = 1 / divisor, sum = *sums;
        for (uint32_t j = bags->offsets[b]; j < bags->offsets[b + 1]; j++) {
            prefetch_ahead(bags, rows, positions, j);
            sum += id_weight(bags, j, divisor, share) * rows[positions[j]];
        }
        *sums = sum;
    }
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

static inline void spread_rows(const struct bags *bags, const float *sums,
                               const uint32_t *positions, float *gradients,
                               uint32_t dim) {
    for (size_t b = 0; b < bags->count; b++, sums += bags->width) {
        float divisor = divisor_of(bags, b), share = 1 / divisor;
        for (uint32_t j = bags->offsets[b]; j < bags->offsets[b + 1]; j++)
            add_scaled(gradients + row_place(bags, positions, j), sums,
                       id_weight(bags, j, divisor, share), dim);
    }
}

void bags_add_rows(const struct bags *bags, const float *rows,
                   const uint32_t *positions, float *sums) {
    uint32_t c = 0, dim = bags->dim;
    for (; dim - c >= 16; c += 16)
        sum_quads(bags, rows + c, positions, sums + c, 4);
    for (; dim - c >= 4; c += 4)
        sum_quads(bags, rows + c, positions, sums + c, 1);
    for (; c < dim; c++)
        sum_column(bags, rows + c, positions, sums + c);
}

/* Common widths have loops of their own, which the compiler unrolls. */
void bags_add_gradients(const struct bags *bags, const float *sums,
                        const uint32_t *positions, float *gradients) {
    switch (bags->dim) {
    case 1:
        spread_rows(bags, sums, positions, gradients, 1);
        return;
    case 8:
        spread_rows(bags, sums, positions, gradients, 8);
        return;
    case 16:
        spread_rows(bags, sums, positions, gradients, 16);
        return;
    default:
        spread_rows(bags, sums, positions, gradients, bags->dim);
    }
}
