/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/bf16.h"

#include "core/tensor/rule.h"
#include "tests/lib/seed.h"
#include "tests/lib/test.h"

#include <math.h>

enum { HALVES = 1 << 16 };

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

/* What the format's fields say: sign, 8 bits of exponent, 7 of fraction. */
static double meaning(uint16_t half) {
    int exponent = half >> 7 & 0xff, fraction = half & 0x7f;
    double sign = half >> 15 ? -1 : 1;
    if (exponent == 0xff)
        return fraction ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, 1 - 127 - 7);
    return sign * ldexp(128 + fraction, exponent - 127 - 7);
}

/* VALUE to the nearest with 8 significant bits, fewer below 2^-126, by a
 * double's own rounding. */
static double nearest(float value) {
    int exponent;
    if (isnan(value) || isinf(value))
        return (double)value;
    frexp((double)value, &exponent);
    int place = exponent - 1 < -126 ? -126 - 7 : exponent - 1 - 7;
    double rounded = ldexp(rint(ldexp((double)value, -place)), place);
    return fabs(rounded) >= ldexp(1, 128) ? copysign(INFINITY, rounded)
                                          : rounded;
}

static void check(float value, uint16_t half) {
    uint32_t bits = bits_of(value);
    if (isnan(value)) {
        if (half != (bits >> 16 | 0x40))
            fail_msg("NaN %08x became %04x", bits, half);
        return;
    }
    double expected = nearest(value), found = meaning(half);
    if (!(found == expected) || !signbit(found) != !signbit(expected))
        fail_msg("%08x became %04x: %a, not %a", bits, half, found, expected);
}

TEST(every_bf16_decodes_by_its_fields) {
    for (uint32_t half = 0; half < HALVES; half++) {
        float value = bf16_to_float((uint16_t)half);
        double expected = meaning((uint16_t)half);
        assert_int_equal(bits_of(value), half << 16);
        assert_true(isnan(value) ? isnan(expected) : (double)value == expected);
    }
}

TEST(every_bf16_rounds_to_itself) {
    for (uint32_t half = 0; half < HALVES; half++) {
        float value = bf16_to_float((uint16_t)half);
        uint32_t quiet = isnan(value) ? 0x40 : 0;
        assert_int_equal(bf16_from_float(value), half | quiet);
    }
}

/* The lower halves at which rounding turns: ties and what is beside them. */
static const uint16_t lower[] = {0,      1,      0x7ffe, 0x7fff,
                                 0x8000, 0x8001, 0xfffe, 0xffff};
enum { LOWER = sizeof lower / sizeof *lower };

TEST(rounding_is_to_nearest_ties_to_even) {
    for (uint32_t upper = 0; upper < HALVES; upper++)
        for (int i = 0; i < LOWER; i++) {
            float value = float_of(upper << 16 | lower[i]);
            check(value, bf16_from_float(value));
        }
}

TEST(random_floats_round_to_nearest) {
    struct philox_sequence random;
    seed_open(&random);
    for (int i = 0; i < 1000000; i++) {
        uint32_t upper = philox_below(&random, HALVES);
        float value = float_of(upper << 16 | philox_below(&random, HALVES));
        check(value, bf16_from_float(value));
    }
}

TEST(limits_of_the_range_follow_the_format) {
    static const struct {
        uint32_t bits;
        uint16_t half;
    } cases[] = {
        {0x00000000, 0x0000}, {0x80000000, 0x8000}, /* zeros */
        {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, /* 1, a tie to even */
        {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81}, /* up: even, nearer */
        {0x00000001, 0x0000}, {0x00008000, 0x0000}, /* denormals */
        {0x00008001, 0x0001}, {0x007fffff, 0x0080}, {0x807fffff, 0x8080},
        {0x7f7f7fff, 0x7f7f}, {0x7f7f8000, 0x7f80}, /* to infinity */
        {0x7f7fffff, 0x7f80}, {0xff7fffff, 0xff80}, {0x7f800000, 0x7f80},
        {0xff800000, 0xff80}, {0x7f800001, 0x7fc0}, /* NaN in the low half */
        {0xff800001, 0xffc0}, {0x7fffffff, 0x7fff}, {0xffffffff, 0xffff},
        {0x7fc12345, 0x7fc1}, {0x7f912345, 0x7fd1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(bf16_from_float(float_of(cases[i].bits)),
                         cases[i].half);
}

/* All halves with each of LOWER, through each variant's loops, between memory
 * that begins at an odd byte. */
TEST(every_variant_gives_the_same_bits) {
    enum { COUNT = HALVES * LOWER };
    float *floats = malloc(COUNT * sizeof *floats);
    float *back = malloc(COUNT * sizeof *back);
    char *room = malloc(COUNT * sizeof(uint16_t) + 1), *packed = room + 1;
    size_t count;
    const struct rule_loops *const *variants = rule_variants(&count);
    assert_true(floats && back && room);
    for (uint32_t i = 0; i < COUNT; i++)
        floats[i] = float_of(i / LOWER << 16 | lower[i % LOWER]);
    for (size_t v = 0; v < count; v++)
        for (uint32_t size = COUNT; size > 0; size /= 13) {
            rule_to_bf16(variants[v], floats, size, packed);
            rule_from_bf16(variants[v], packed, size, back);
            for (uint32_t i = 0; i < size; i++) {
                uint16_t half;
                memcpy(&half, packed + i * sizeof half, sizeof half);
                assert_int_equal(half, bf16_from_float(floats[i]));
                assert_int_equal(bits_of(back[i]), (uint32_t)half << 16);
            }
        }
    free(floats);
    free(back);
    free(room);
}
