/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout's arithmetic for one element, the same bits on every device: word e
 * mod 4 of position e / 4 decides about element e (philox.h). A file for
 * another device may define DROPOUT_ELEMENT as its own function qualifiers
 * before it includes this one. */
#ifndef CAPSTAN_DROPOUT_H
#define CAPSTAN_DROPOUT_H

#include <stdint.h>

#ifndef DROPOUT_ELEMENT
#define DROPOUT_ELEMENT static inline
#endif

/* Words below the threshold drop their element: RATE, in [0, 1), of 2^32. */
DROPOUT_ELEMENT uint32_t dropout_threshold(double rate) {
    return (uint32_t)(rate * 0x1p32);
}

/* The factor of kept elements, which preserves the mean. */
DROPOUT_ELEMENT float dropout_scale(double rate) {
    return (float)(1 / (1 - rate));
}

/* A dropped element is multiplied by 0 as in torch, so that a NaN shows. */
DROPOUT_ELEMENT float dropout_element(float x, uint32_t word,
                                      uint32_t threshold, float gain) {
    return x * (word < threshold ? 0 : gain);
}

#endif
