/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/philox.h"

#include "core/tensor/philox_element.h"

#include <string.h>

/* Neighbouring positions are computed together, word by word, so that the
 * compiler vectorizes the loop. */
enum { LANES = 16 };

void philox(uint64_t key, uint64_t stream, uint64_t position,
            uint32_t words[4]) {
    philox_words(key, stream, position, words);
}

/* OUT[4 * i + w] = word w at POSITION + i, i < LANES. */
static void fill_words(uint64_t key, uint64_t stream, uint64_t position,
                       uint32_t out[4 * LANES]) {
    for (int i = 0; i < LANES; i++)
        philox_words(key, stream, position + (uint64_t)i, out + 4 * i);
}

void philox_uniform(uint64_t key, uint64_t stream, uint64_t first, float bound,
                    float *values, size_t count) {
    uint32_t words[4 * LANES];
    uint64_t position = first / 4;
    size_t skip = first % 4;
    while (count > 0) {
        size_t take = 4 * LANES - skip;
        if (take > count)
            take = count;
        fill_words(key, stream, position, words);
        for (size_t i = 0; i < take; i++)
            values[i] = philox_within(words[skip + i], bound);
        values += take;
        count -= take;
        position += LANES;
        skip = 0;
    }
}

void philox_sequence_open(struct philox_sequence *sequence, uint64_t key,
                          uint64_t stream) {
    memset(sequence, 0, sizeof *sequence);
    sequence->key = key;
    sequence->stream = stream;
}

uint32_t philox_next(struct philox_sequence *sequence) {
    if (sequence->left == 0) {
        philox(sequence->key, sequence->stream, sequence->position++,
               sequence->words);
        sequence->left = 4;
    }
    return sequence->words[4 - sequence->left--];
}

/* The upper half of a product, which is uniform (Lemire, Fast Random Integer
 * Generation in an Interval, 2019): a word is drawn again if the lower half is
 * among the 2^32 mod LIMIT values that would give some numbers one word too
 * many. */
uint32_t philox_below(struct philox_sequence *sequence, uint32_t limit) {
    uint64_t product = (uint64_t)philox_next(sequence) * limit;
    if ((uint32_t)product < limit) {
        uint32_t threshold = -limit % limit;
        while ((uint32_t)product < threshold)
            product = (uint64_t)philox_next(sequence) * limit;
    }
    return (uint32_t)(product >> 32);
}
