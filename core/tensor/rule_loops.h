/* SPDX-License-Identifier: Apache-2.0 */
/* The loops behind rule.h, compiled once for each set of vector instructions.
 * Only rule.c and the tests include this. */
#ifndef CAPSTAN_RULE_LOOPS_H
#define CAPSTAN_RULE_LOOPS_H

#include "core/tensor/rule.h"
#include "core/tensor/rule_element.h"

#include <stddef.h>

/* Doubles in which sums of squares are kept: element i is added to lane i mod
 * RULE_LANES. */
enum { RULE_LANES = 16 };

/* Applies COUNT elements of UPDATE from FIRST on; SUMS are their summed
 * gradients, at any alignment. */
typedef void rule_kernel(const struct rule_constants *constants,
                         const struct rule_update *update, const void *sums,
                         size_t first, size_t count);

struct rule_loops {
    const char *name;
    rule_kernel *kernel[RULE_FORMS];

    /* SUMS[i] = gradients[0][first + i] + gradients[1][first + i] + ..., in
     * this order; num_gradients >= 1. One for each enum job_wire. */
    void (*sum[2])(const void *const *gradients, unsigned num_gradients,
                   size_t first, size_t count, float *sums);

    /* Adds the squares of scale * SUMS[i] to LANES. */
    void (*add_squares)(const void *sums, size_t count, float scale,
                        double lanes[RULE_LANES]);

    /* Is every one of SUMS neither NaN nor infinite? */
    bool (*is_finite)(const void *sums, size_t count);

    void (*to_bf16)(const float *floats, size_t count, void *bf16);
};

extern const struct rule_loops rule_loops_plain, rule_loops_avx2,
    rule_loops_avx512;

#endif
