/* SPDX-License-Identifier: Apache-2.0 */
/* How the values of a tensor are distributed. A bin is the upper bits of a
 * float32: its sign, its exponent and three bits of the fraction. So each power
 * of 2 has eight bins, any two histograms add up exactly, and values that are
 * not finite have bins of their own. Sums are in double, in fixed lanes. */
#ifndef CAPSTAN_HISTOGRAM_H
#define CAPSTAN_HISTOGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HISTOGRAM_BINS = 1 << 12, HISTOGRAM_LANES = 8 };

/* Of fewer than 2^32 values. Least and most are of the finite ones. */
struct histogram {
    uint32_t counts[HISTOGRAM_BINS];
    uint64_t elements;
    double sums[HISTOGRAM_LANES], squares[HISTOGRAM_LANES];
    float least, most;
};

/* Empties *HISTOGRAM. */
void histogram_clear(struct histogram *histogram);

/* Adds FLOATS. COUNT is a multiple of HISTOGRAM_LANES in each call but the
 * last. */
void histogram_add(struct histogram *histogram, const float *floats,
                   size_t count);

/* The sum of the finite values, and of their squares. */
double histogram_sum(const struct histogram *histogram);
double histogram_squares(const struct histogram *histogram);

/* Are the values of BIN finite? */
static inline bool histogram_is_finite(uint32_t bin) {
    return (bin & (HISTOGRAM_BINS / 2 - 1)) < 255u << 3;
}

/* The place of a finite BIN among all by value, from 0, and back. */
static inline uint32_t histogram_place(uint32_t bin) {
    const uint32_t half = HISTOGRAM_BINS / 2;
    return bin < half ? half + bin : HISTOGRAM_BINS - 1 - bin;
}

/* Values at PLACE are from below histogram_limit(PLACE - 1) or equal to it, up
 * to this. */
double histogram_limit(uint32_t place);

#endif
