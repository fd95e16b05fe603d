/* SPDX-License-Identifier: Apache-2.0 */
/* bf16: the upper half of a float32, so sign and exponent are whole and 7 bits
 * of the fraction are left. Integer operations alone, the same bits on every
 * device. A file for another device may define BF16_ELEMENT as its own function
 * qualifiers before it includes this one. */
#ifndef CAPSTAN_BF16_H
#define CAPSTAN_BF16_H

#include <stdint.h>
#include <string.h>

#ifndef BF16_ELEMENT
#define BF16_ELEMENT static inline
#endif

/* The nearest bf16, of two equally near ones the even: half of the last place
 * kept is added, less one where that is even, and carries as far as it does, up
 * to infinity. A NaN stays one: its sign and upper bits are kept, and it is
 * made quiet, for its lower bits may have been all that it had. */
BF16_ELEMENT uint16_t bf16_from_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    uint32_t quiet = bits >> 16 | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/* Exact. */
BF16_ELEMENT float bf16_to_float(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
