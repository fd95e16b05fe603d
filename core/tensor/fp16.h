/* SPDX-License-Identifier: Apache-2.0 */
/* fp16, IEEE 754's binary16: 5 bits of exponent, 10 of fraction; the largest
 * value is 65504, the smallest above 0 is 2^-24. Only integer operations and
 * one exact product are used, so every device gives the same bits. A file for
 * another device may define FP16_ELEMENT as its function qualifiers before it
 * includes this one. */
#ifndef CAPSTAN_FP16_H
#define CAPSTAN_FP16_H

#include <stdint.h>
#include <string.h>

#ifndef FP16_ELEMENT
#define FP16_ELEMENT static inline
#endif

/* Rounds SIZE, the bits of a float32 of at least 2^-14 without its sign, as
 * bf16.h does, after rebasing the exponent. The carry reaches infinity; all
 * larger values become infinity too. */
FP16_ELEMENT uint32_t fp16_normal(uint32_t size) {
    uint32_t rounded = (size - (112u << 23) + 0xfffu + (size >> 13 & 1)) >> 13;
    return rounded < 0x7c00u ? rounded : 0x7c00u;
}

/* SIZE below 2^-14 as a multiple of 2^-24. A value below half of that is
 * shifted out completely. */
FP16_ELEMENT uint32_t fp16_denormal(uint32_t size) {
    uint32_t fraction = (size & 0x7fffffu) | 0x800000u;
    uint32_t exponent = size >> 23;
    uint32_t shift = exponent < 101 ? 25 : 126 - exponent; /* 14 to 25 */
    uint32_t less_than_half = (1u << (shift - 1)) - 1;
    uint32_t odd = fraction >> shift & 1;
    return (fraction + less_than_half + odd) >> shift;
}

/* Rounds to the nearest fp16, ties to even; infinity from 65520 on. A NaN stays
 * a NaN: sign and upper bits are kept and the quiet bit is set. */
FP16_ELEMENT uint16_t fp16_from_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t size = bits & 0x7fffffffu;
    uint32_t quiet = 0x7e00u | (size >> 13 & 0x3ffu);
    uint32_t rounded =
        size < 113u << 23 ? fp16_denormal(size) : fp16_normal(size);
    return (uint16_t)((bits >> 16 & 0x8000u) |
                      (size > 0x7f800000u ? quiet : rounded));
}

/* Exact. */
FP16_ELEMENT float fp16_to_float(uint16_t half) {
    uint32_t size = half & 0x7fffu, sign = (uint32_t)(half & 0x8000u) << 16;
    float value = (float)size * 0x1p-24f; /* a denormal */
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (size >= 0x400u)
        bits = (size << 13) + (size < 0x7c00u ? 112u << 23 : 224u << 23);
    bits |= sign;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
