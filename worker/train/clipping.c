/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/train/clipping.h"

#include <math.h>

/* SUM plus the squares of a block's gradient, piece by piece. */
static double clipping_add_squares(double sum, const struct rule_loops *loops,
                                   const float *gradient, uint32_t elements) {
    double pieces[(1 << 20) / sizeof(float) / RULE_PIECE]; /* 1 MiB at most */
    const void *floats = gradient;
    struct rule_update update = {.gradients = &floats,
                                 .num_gradients = 1,
                                 .scale = 1,
                                 .elements = elements};
    rule_square_sums(loops, &update, pieces);
    for (uint32_t i = 0; i < (elements + RULE_PIECE - 1) / RULE_PIECE; i++)
        sum += pieces[i];
    return sum;
}

void clipping_apply(const struct layout *layout, float *const *gradients,
                    struct row_batch *rows, double limit,
                    const struct rule_loops *loops) {
    size_t variants;
    double sum = 0;
    if (!loops)
        loops = rule_variants(&variants)[0];
    for (uint32_t b = 0; b < layout->num_blocks; b++) {
        const struct block *block = &layout->blocks[b];
        sum = clipping_add_squares(sum, loops,
                                   gradients[block->parameter] + block->offset,
                                   block->elements);
    }
    for (size_t i = 0; rows && i < rows->floats; i++)
        sum += (double)rows->gradients[i] * (double)rows->gradients[i];
    double factor = limit / (sqrt(sum) + 1e-6);
    for (uint32_t p = 0; factor < 1 && p < layout->num_parameters; p++)
        for (uint64_t i = 0; i < layout->parameters[p].elements; i++)
            gradients[p][i] *= (float)factor;
    for (size_t i = 0; factor < 1 && rows && i < rows->floats; i++)
        rows->gradients[i] *= (float)factor;
}
