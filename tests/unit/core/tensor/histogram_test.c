/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/histogram.h"

#include "tests/lib/test.h"

#include <float.h>
#include <math.h>

static struct histogram histogram;

static void fill(const float *floats, size_t count) {
    histogram_clear(&histogram);
    histogram_add(&histogram, floats, count);
}

/* The place of the one value. */
static uint32_t place_of(float value) {
    fill(&value, 1);
    for (uint32_t bin = 0; bin < HISTOGRAM_BINS; bin++)
        if (histogram.counts[bin])
            return histogram_place(bin);
    fail_msg("%g is nowhere", value);
    return 0;
}

TEST(a_value_is_within_the_limits_of_its_place) {
    static const float values[] = {0,      1e-45f,  FLT_MIN, 0.1f,  1,
                                   1.125f, 1.1249f, 3,       1e20f, FLT_MAX};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        uint32_t place = place_of(values[i]);
        assert_true(values[i] < histogram_limit(place));
        assert_true(values[i] >= histogram_limit(place - 1));
        place = place_of(-values[i]);
        assert_true(-values[i] <= histogram_limit(place));
        assert_true(-values[i] > histogram_limit(place - 1));
    }
}

TEST(limits_ascend_by_an_eighth_of_a_power_of_2_at_most) {
    for (uint32_t place = 1; place < HISTOGRAM_BINS; place++) {
        double from = histogram_limit(place - 1), to = histogram_limit(place);
        assert_true(from < to || fabs(from) == ldexp(1, 128));
        if (from >= FLT_MIN && to < ldexp(1, 128))
            assert_true(to / from <= 1.125);
    }
}

TEST(values_that_are_not_finite_are_apart) {
    const float floats[] = {2, NAN, -3, INFINITY, 0.5f, -INFINITY, -NAN};
    uint64_t finite = 0;
    fill(floats, 7);
    for (uint32_t bin = 0; bin < HISTOGRAM_BINS; bin++)
        finite += histogram_is_finite(bin) ? histogram.counts[bin] : 0;
    assert_int_equal(finite, 3);
    assert_int_equal(histogram.elements, 7);
    assert_true(histogram.least == -3 && histogram.most == 2);
    assert_true(histogram_sum(&histogram) == -0.5);
    assert_true(histogram_squares(&histogram) == 13.25);
}

TEST(sums_do_not_depend_on_the_pieces_that_are_added) {
    float floats[1000];
    for (int i = 0; i < 1000; i++)
        floats[i] = (float)(i % 37) / 7 - 1;
    fill(floats, 1000);
    double sum = histogram_sum(&histogram);
    double squares = histogram_squares(&histogram);
    histogram_clear(&histogram);
    histogram_add(&histogram, floats, 512);
    histogram_add(&histogram, floats + 512, 488);
    assert_true(histogram_sum(&histogram) == sum);
    assert_true(histogram_squares(&histogram) == squares);
}
