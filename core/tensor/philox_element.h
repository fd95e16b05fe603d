/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of Philox4x32-10 for one position and the numbers made of its
 * words: integer and exact float operations, so every device gives the same
 * bits. philox.h defines key, stream and position. A file for another device
 * may define PHILOX_ELEMENT as its function qualifiers before it includes this
 * one. */
#ifndef CAPSTAN_PHILOX_ELEMENT_H
#define CAPSTAN_PHILOX_ELEMENT_H

#include <stdint.h>

#ifndef PHILOX_ELEMENT
#define PHILOX_ELEMENT static inline
#endif

/* The paper's rounds, multipliers and Weyl increments for four 32-bit words. */
#define PHILOX_ROUNDS 10
#define PHILOX_MULTIPLIER_0 UINT64_C(0xD2511F53)
#define PHILOX_MULTIPLIER_1 UINT64_C(0xCD9E8D57)
#define PHILOX_INCREMENT_0 UINT32_C(0x9E3779B9)
#define PHILOX_INCREMENT_1 UINT32_C(0xBB67AE85)

PHILOX_ELEMENT void philox_mix(uint32_t words[4], uint32_t key_0,
                               uint32_t key_1) {
    uint64_t product_0 = PHILOX_MULTIPLIER_0 * words[0];
    uint64_t product_1 = PHILOX_MULTIPLIER_1 * words[2];
    words[0] = (uint32_t)(product_1 >> 32) ^ words[1] ^ key_0;
    words[1] = (uint32_t)product_1;
    words[2] = (uint32_t)(product_0 >> 32) ^ words[3] ^ key_1;
    words[3] = (uint32_t)product_0;
}

/* The four words at (KEY, STREAM, POSITION). */
PHILOX_ELEMENT void philox_words(uint64_t key, uint64_t stream,
                                 uint64_t position, uint32_t words[4]) {
    uint32_t key_0 = (uint32_t)key, key_1 = (uint32_t)(key >> 32);
    words[0] = (uint32_t)position;
    words[1] = (uint32_t)(position >> 32);
    words[2] = (uint32_t)stream;
    words[3] = (uint32_t)(stream >> 32);
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        philox_mix(words, key_0, key_1);
        key_0 += PHILOX_INCREMENT_0;
        key_1 += PHILOX_INCREMENT_1;
    }
}

/* Uniform in [-BOUND, BOUND): 24 bits of WORD, exact up to the product with
 * BOUND. */
PHILOX_ELEMENT float philox_within(uint32_t word, float bound) {
    int32_t signed_24 = (int32_t)(word >> 8) - (1 << 23);
    return (float)signed_24 * 0x1p-23f * bound;
}

#endif
