/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of OP_ROWS_* (op.h) for one sample x[fields, width], in the
 * order written here on every device. A file for another device may define
 * ROWS_ELEMENT as its own function qualifiers before it includes this one. */
#ifndef CAPSTAN_ROWS_ELEMENT_H
#define CAPSTAN_ROWS_ELEMENT_H

#include <stddef.h>
#include <stdint.h>

#ifndef ROWS_ELEMENT
#define ROWS_ELEMENT static inline
#endif

enum { ROWS_LANES = 8 };

/* Half of (the square of a sum minus the sum of the squares). */
ROWS_ELEMENT float rows_pairs_of(float sum, float squares) {
    return 0.5f * (sum * sum - squares);
}

/* The sum of value K of all fields; *SQUARES: of the squares. */
ROWS_ELEMENT float rows_field_sum(const float *x, uint32_t fields,
                                  uint32_t width, uint32_t k, float *squares) {
    float sum = 0;
    *squares = 0;
    for (uint32_t f = 0; f < fields; f++) {
        float value = x[(size_t)f * width + k];
        sum += value;
        *squares += value * value;
    }
    return sum;
}

/* The place of the pair of fields A > B among all, as torch.tril_indices. */
ROWS_ELEMENT size_t rows_pair(uint32_t a, uint32_t b) {
    return (size_t)a * (a - 1) / 2 + b;
}

/* The product of two rows: eight sums, of every eighth product, then theirs. */
ROWS_ELEMENT float rows_dot(const float *a, const float *b, uint32_t width) {
    float sums[ROWS_LANES] = {0}, sum = 0;
    uint32_t k = 0;
    for (; k + ROWS_LANES <= width; k += ROWS_LANES)
        for (uint32_t lane = 0; lane < ROWS_LANES; lane++)
            sums[lane] += a[k + lane] * b[k + lane];
    for (uint32_t lane = 0; k < width; k++, lane++)
        sums[lane] += a[k] * b[k];
    for (uint32_t lane = 0; lane < ROWS_LANES; lane++)
        sum += sums[lane];
    return sum;
}

/* Value K of the gradient of field A, by those of the pairs, DY. */
ROWS_ELEMENT float rows_dot_gradient(const float *x, const float *dy,
                                     uint32_t fields, uint32_t width,
                                     uint32_t a, uint32_t k) {
    float sum = 0;
    for (uint32_t b = 0; b < fields; b++)
        if (b != a)
            sum += dy[b < a ? rows_pair(a, b) : rows_pair(b, a)] *
                   x[(size_t)b * width + k];
    return sum;
}

#endif
