/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout's arithmetic for one element, the same bits on every device: word
 * e mod 4 of position e / 4 decides over element e (philox.h). A file for
 * another device may define DROPOUT_ELEMENT as its own function qualifiers
 * before it includes this one. */
#ifndef CAPSTAN_DROPOUT_H
#define CAPSTAN_DROPOUT_H

#include <stdint.h>

#ifndef DROPOUT_ELEMENT
#define DROPOUT_ELEMENT static inline
#endif

/* Words below it leave their element out: RATE, in [0, 1), of 2^32. */
DROPOUT_ELEMENT uint32_t dropout_threshold(double rate) {
    return (uint32_t)(rate * 0x1p32);
}

/* What the elements kept are multiplied by, so that the mean stays. */
DROPOUT_ELEMENT float dropout_scale(double rate) {
    return (float)(1 / (1 - rate));
}

/* A product where the element is left out too, as torch has it: a NaN shows. */
DROPOUT_ELEMENT float dropout_element(float x, uint32_t word,
                                      uint32_t threshold, float gain) {
    return x * (word < threshold ? 0 : gain);
}

#endif
