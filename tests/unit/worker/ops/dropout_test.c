/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/dropout.h"

#include "tests/lib/test.h"

#include <math.h>

TEST(the_threshold_is_the_rate_times_the_word_range) {
    assert_int_equal(dropout_threshold(0), 0);
    assert_int_equal(dropout_threshold(0.5), 1u << 31);
    assert_int_equal(dropout_threshold(0.25), 1u << 30);
    assert_int_equal(dropout_threshold(1 - 0x1p-32), UINT32_MAX);
}

TEST(words_below_the_threshold_drop_their_element) {
    assert_true(dropout_element(3, 99, 100, 2) == 0);
    assert_true(dropout_element(3, 100, 100, 2) == 6);
    assert_true(dropout_element(3, 0, 0, 1) == 3);
    assert_true(dropout_element(3, UINT32_MAX, UINT32_MAX, 2) == 6);
}

TEST(kept_elements_are_scaled_up) {
    assert_true(dropout_scale(0) == 1);
    assert_true(dropout_scale(0.5) == 2);
    assert_true(dropout_scale(0.75) == 4);
}

TEST(a_dropped_nan_stays_nan) {
    assert_true(isnan(dropout_element(NAN, 0, 1, 2)));
    assert_true(isnan(dropout_element(INFINITY, 0, 1, 2)));
}
