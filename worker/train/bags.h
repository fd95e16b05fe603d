/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of rows by bag. The sum of bag b is that of the rows of ids offsets[b]
 * to offsets[b + 1] - 1, each times its weight, over the combiner's divisor; of
 * no ids it is 0. tf.nn.embedding_lookup_sparse defines the combiners so; for
 * sum, and for mean without weights, torch.nn.EmbeddingBag is the same. */
#ifndef CAPSTAN_BAGS_H
#define CAPSTAN_BAGS_H

#include "worker/data/batch.h"

struct bags {
    size_t count;
    const uint32_t *offsets; /* [count + 1] */
    const float *weights;    /* of the ids; NULL: 1 each */
    enum batch_combiner combiner;
    uint32_t dim; /* floats of a row, and of a sum */
    size_t width; /* floats from a sum to the next bag's */
};

/* Adds each bag's sum to SUMS. The row of id j begins at ROWS + positions[j].
 */
void bags_add_rows(const struct bags *bags, const float *rows,
                   const uint32_t *positions, float *sums);

/* Adds to GRADIENTS of rows those that follow from the gradients of SUMS.
 * POSITIONS NULL: each id has a row of its own, the next dim floats. */
void bags_add_gradients(const struct bags *bags, const float *sums,
                        const uint32_t *positions, float *gradients);

#endif
