/* SPDX-License-Identifier: Apache-2.0 */
/* What two sequences of numbers differ in. Numbers are equal if their bits are:
 * a NaN equals the same NaN, and 0 differs from -0 by 0. Differences are taken
 * in double, squares are summed in the order of the elements, so that the sums
 * do not depend on the pieces in which they come. */
#ifndef CAPSTAN_DIFFERENCE_H
#define CAPSTAN_DIFFERENCE_H

#include <stdint.h>

/* Where two numbers differ: element `at` of a tensor, or column `at` of a
 * table's row `id`. */
struct difference_place {
    uint64_t id, at;
    double a, b; /* the numbers */
};

/* All zero at first. Differences with a NaN or an infinity are counted, but are
 * not in `squares` and `largest`, where they would hide all others. */
struct difference {
    uint64_t elements, different, not_finite;
    double squares, most; /* of the finite ones: sum, and the largest itself */
    struct difference_place largest, first_not_finite;
};

/* Adds COUNT elements of A and B; PLACE is that of the first. */
void difference_add_floats(struct difference *out, const float *a,
                           const float *b, uint64_t count,
                           struct difference_place place);

/* The same for int64, each in two of COUNT floats of memory; `at` of PLACE
 * counts floats too. */
void difference_add_integers(struct difference *out, const float *a,
                             const float *b, uint64_t count,
                             struct difference_place place);

#endif
