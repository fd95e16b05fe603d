/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/fp16.h"

#include "tests/lib/seed.h"
#include "tests/lib/test.h"

#include <math.h>

enum { HALVES = 1 << 16, QUIET = 0x0200 };

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The compiler's own type. */
static uint16_t compilers_half(float value) {
    _Float16 half = (_Float16)value;
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    return bits;
}

static float compilers_float(uint16_t bits) {
    _Float16 half;
    memcpy(&half, &bits, sizeof half);
    return (float)half;
}

/* What the format's fields say: sign, 5 bits of exponent, 10 of fraction. */
static double meaning(uint16_t half) {
    int exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
    double sign = half >> 15 ? -1 : 1;
    if (exponent == 0x1f)
        return fraction ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, -24);
    return sign * ldexp(1024 + fraction, exponent - 15 - 10);
}

/* VALUE to the nearest with 11 significant bits, fewer below 2^-14, by a
 * double's own rounding. */
static double nearest(float value) {
    int exponent;
    if (isnan(value) || isinf(value))
        return (double)value;
    frexp((double)value, &exponent);
    int place = exponent - 1 < -14 ? -24 : exponent - 1 - 10;
    double rounded = ldexp(rint(ldexp((double)value, -place)), place);
    return fabs(rounded) >= 65536 ? copysign(INFINITY, rounded) : rounded;
}

static void check(float value) {
    uint16_t half = fp16_from_float(value);
    uint32_t bits = bits_of(value);
    if (isnan(value)) {
        assert_int_equal(half,
                         (bits >> 16 & 0x8000) | 0x7e00 | (bits >> 13 & 0x3ff));
        return;
    }
    double expected = nearest(value), found = meaning(half);
    if (!(found == expected) || !signbit(found) != !signbit(expected))
        fail_msg("%08x became %04x: %a, not %a", bits, half, found, expected);
    if (half != compilers_half(value))
        fail_msg("%08x became %04x, the compiler's is %04x", bits, half,
                 compilers_half(value));
}

TEST(every_fp16_decodes_by_its_fields) {
    for (uint32_t half = 0; half < HALVES; half++) {
        float value = fp16_to_float((uint16_t)half);
        float compilers = compilers_float((uint16_t)half);
        double expected = meaning((uint16_t)half);
        if (isnan(expected)) {
            assert_true(isnan(value) && isnan(compilers));
            assert_int_equal(bits_of(value) >> 13 & 0x3ff, half & 0x3ff);
            assert_int_equal(bits_of(value) >> 31, half >> 15);
            continue;
        }
        assert_true((double)value == expected);
        assert_int_equal(bits_of(value), bits_of(compilers));
    }
}

TEST(every_fp16_rounds_to_itself) {
    for (uint32_t half = 0; half < HALVES; half++) {
        float value = fp16_to_float((uint16_t)half);
        uint32_t quiet = isnan(value) ? QUIET : 0;
        assert_int_equal(fp16_from_float(value), half | quiet);
    }
}

/* Between two neighbours: the middle, and the floats beside both and it. */
TEST(rounding_is_to_nearest_ties_to_even) {
    for (uint32_t half = 0; half < 0x7c00; half++) {
        double low = meaning((uint16_t)half);
        double high = half == 0x7bff ? 65536 : meaning((uint16_t)(half + 1));
        float places[] = {(float)low, (float)((low + high) / 2), (float)high};
        for (int i = 0; i < 3; i++) {
            check(places[i]);
            check(nextafterf(places[i], INFINITY));
            check(nextafterf(places[i], -INFINITY));
            check(-places[i]);
            check(-nextafterf(places[i], INFINITY));
            check(-nextafterf(places[i], -INFINITY));
        }
    }
}

/* All exponents and signs, with fractions at which rounding turns. */
TEST(floats_of_every_magnitude_round_to_nearest) {
    static const uint32_t lower[] = {0,      1,      0x0fff, 0x1000, 0x1001,
                                     0x1fff, 0x2fff, 0x3000, 0x7fff, 0xffff};
    for (uint32_t upper = 0; upper < HALVES; upper++)
        for (int i = 0; i < 10; i++)
            check(float_of(upper << 16 | lower[i]));
}

TEST(random_floats_round_to_nearest) {
    struct philox_sequence random;
    seed_open(&random);
    for (int i = 0; i < 1000000; i++)
        check(float_of(philox_next(&random)));
}

TEST(limits_of_the_range_follow_the_format) {
    static const struct {
        uint32_t bits;
        uint16_t half;
    } cases[] = {
        {0x00000000, 0x0000}, {0x80000000, 0x8000}, /* zeros */
        {0x3f800000, 0x3c00}, {0x3f801000, 0x3c00}, /* 1, a tie to even */
        {0x3f803000, 0x3c02}, {0x3f801001, 0x3c01}, /* up: even, nearer */
        {0x477fe000, 0x7bff}, {0x477fefff, 0x7bff}, /* 65504, below 65520 */
        {0x477ff000, 0x7c00}, {0x7f7fffff, 0x7c00}, {0xff7fffff, 0xfc00},
        {0x38800000, 0x0400}, {0x387fffff, 0x0400}, /* 2^-14, the first whole */
        {0x387fc000, 0x03ff}, {0x33800000, 0x0001}, /* 2^-24 */
        {0x33000000, 0x0000}, {0x33000001, 0x0001}, /* the tie below it */
        {0x33c00000, 0x0002}, {0x00000001, 0x0000}, {0x807fffff, 0x8000},
        {0x7f800000, 0x7c00}, {0xff800000, 0xfc00}, /* infinities */
        {0x7f800001, 0x7e00}, {0xffc00000, 0xfe00}, {0x7fffffff, 0x7fff},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(fp16_from_float(float_of(cases[i].bits)),
                         cases[i].half);
}
