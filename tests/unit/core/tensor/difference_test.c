/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/difference.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static struct difference of(const float *a, const float *b, uint64_t count) {
    struct difference out = {0};
    difference_add_floats(&out, a, b, count,
                          (struct difference_place){.at = 0});
    return out;
}

/* The sums of all pieces are those of a plain loop in double, bit for bit. */
TEST(pieces_give_what_a_plain_loop_gives) {
    enum { COUNT = 5000 };
    float a[COUNT], b[COUNT];
    double squares = 0, most = 0;
    uint64_t different = 0, at = 0;
    srand(7);
    for (int i = 0; i < COUNT; i++) {
        a[i] = (float)rand() / (float)RAND_MAX - 0.5f;
        b[i] = rand() % 3 ? a[i] : a[i] + (float)rand() / (float)RAND_MAX;
        double by = fabs((double)a[i] - (double)b[i]);
        different += a[i] != b[i];
        squares += by * by;
        if (by > most) {
            most = by;
            at = (uint64_t)i;
        }
    }
    for (uint64_t piece = 1; piece <= COUNT; piece = piece * 3 + 1) {
        struct difference out = {0};
        for (uint64_t i = 0; i < COUNT; i += piece)
            difference_add_floats(&out, a + i, b + i,
                                  piece < COUNT - i ? piece : COUNT - i,
                                  (struct difference_place){.at = i});
        assert_int_equal(out.elements, COUNT);
        assert_int_equal(out.different, different);
        assert_int_equal(out.not_finite, 0);
        assert_true(out.squares == squares && out.most == most);
        assert_int_equal(out.largest.at, at);
        assert_true(out.largest.a == (double)a[at]);
        assert_true(out.largest.b == (double)b[at]);
    }
}

TEST(nans_are_compared_by_their_bits) {
    const float nan = float_of(0x7fc00000), other = float_of(0x7fc00001);
    const float a[] = {nan, nan, 1, INFINITY, 2, INFINITY};
    const float b[] = {nan, other, nan, 1, 3, INFINITY};
    struct difference out = of(a, b, 6);
    assert_int_equal(out.different, 4);
    assert_int_equal(out.not_finite, 3);
    assert_int_equal(out.first_not_finite.at, 1);
    assert_true(out.squares == 1 && out.most == 1);
    assert_int_equal(out.largest.at, 4);
}

TEST(zeros_of_two_signs_differ_by_nothing) {
    const float a[] = {1, 0}, b[] = {1, -0.0f};
    struct difference out = of(a, b, 2);
    assert_int_equal(out.different, 1);
    assert_true(out.squares == 0 && out.most == 0);
    assert_int_equal(out.largest.at, 1);
}

TEST(integers_are_compared_as_integers) {
    const int64_t a[] = {1, INT64_MIN, INT64_C(1) << 53, 5};
    const int64_t b[] = {1, INT64_MAX, (INT64_C(1) << 53) + 1, 2};
    float x[8], y[8];
    struct difference out = {0};
    memcpy(x, a, sizeof a);
    memcpy(y, b, sizeof b);
    for (uint64_t i = 0; i < 8; i += 4)
        difference_add_integers(&out, x + i, y + i, 4,
                                (struct difference_place){.at = i});
    assert_int_equal(out.elements, 4);
    assert_int_equal(out.different, 3);
    assert_true(out.most == 18446744073709551615.0);
    assert_int_equal(out.largest.at, 1);
    out = (struct difference){0};
    difference_add_integers(&out, x + 4, y + 4, 4,
                            (struct difference_place){.at = 4});
    assert_true(out.squares == 10 && out.most == 3);
    assert_int_equal(out.largest.at, 3);
}
