/* SPDX-License-Identifier: Apache-2.0 */
/* Philox4x32-10, a counter-based generator: the numbers at a position are a
 * pure function of key and position. Salmon, Moraes, Dror, Shaw: Parallel
 * Random Numbers: As Easy as 1, 2, 3, SC 2011.
 *
 * In that paper's words the 128-bit counter is, low word first, POSITION's low
 * and high half, then STREAM's low and high half; the 64-bit key is KEY's low
 * half, then its high half. */
#ifndef CAPSTAN_PHILOX_H
#define CAPSTAN_PHILOX_H

#include <stddef.h>
#include <stdint.h>

/* The four words at (KEY, STREAM, POSITION). */
void philox(uint64_t key, uint64_t stream, uint64_t position,
            uint32_t words[4]);

/* VALUES[i] = uniform in [-BOUND, BOUND) for element FIRST + i of STREAM, i <
 * COUNT: 24 random bits, exact up to the one product with BOUND. Element e is
 * made of word e mod 4 at position e / 4, so its value does not depend on
 * FIRST or COUNT. */
void philox_uniform(uint64_t key, uint64_t stream, uint64_t first, float bound,
                    float *values, size_t count);

/* A random sequence for shuffles and simulations from the same function: the
 * words at positions 0, 1, 2, ... of (key, stream). */
struct philox_sequence {
    uint64_t key, stream, position;
    uint32_t words[4];
    unsigned left;
};

/* Starts SEQUENCE at the first number of (KEY, STREAM). */
void philox_sequence_open(struct philox_sequence *sequence, uint64_t key,
                          uint64_t stream);

/* The next 32 bits. */
uint32_t philox_next(struct philox_sequence *sequence);

/* Uniform in [0, LIMIT), LIMIT > 0, without bias (Lemire 2019). */
uint32_t philox_below(struct philox_sequence *sequence, uint32_t limit);

#endif
