/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 is the upper half of a float32: the sign, the exponent and 7 bits of the
 * fraction. Only integer operations are used, so every device gives the same
 * bits. A file for another device may define BF16_ELEMENT as its function
 * qualifiers before it includes this one. */
#ifndef CAPSTAN_BF16_H
#define CAPSTAN_BF16_H

#include <stdint.h>
#include <string.h>

#ifndef BF16_ELEMENT
#define BF16_ELEMENT static inline
#endif

/* Rounds to the nearest bf16, ties to even: adds half of the last place kept,
 * less one if that place is even; the carry may reach infinity. A NaN stays a
 * NaN: sign and upper bits are kept and the quiet bit is set, as the nonzero
 * bits may all be in the lower half. */
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
