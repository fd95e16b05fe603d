/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/diagnostics.h"

#include "tests/lib/test.h"

TEST(each_typing_error_counts_one) {
    assert_int_equal(diagnostics_nearest_distance("type", "type"), 0);
    assert_int_equal(diagnostics_nearest_distance("type", "Type"), 0);
    assert_int_equal(diagnostics_nearest_distance("type", "tpye"), 1);
    assert_int_equal(diagnostics_nearest_distance("type", "typ"), 1);
    assert_int_equal(diagnostics_nearest_distance("type", "tyype"), 1);
    assert_int_equal(diagnostics_nearest_distance("type", "tape"), 1);
    assert_int_equal(diagnostics_nearest_distance("kitten", "sitting"), 3);
    assert_int_equal(diagnostics_nearest_distance("", "abc"), 3);
}

TEST(a_very_long_word_is_as_far_as_its_length) {
    char word[200];
    memset(word, 'a', sizeof word - 1);
    word[sizeof word - 1] = 0;
    assert_int_equal(diagnostics_nearest_distance(word, "a"), 199);
    assert_int_equal(diagnostics_nearest_distance("a", word), 199);
    word[63] = 0;
    assert_int_equal(diagnostics_nearest_distance(word, ""), 63);
}

TEST(a_longer_word_may_have_more_errors) {
    assert_int_equal(diagnostics_nearest_limit("lr"), 1);
    assert_int_equal(diagnostics_nearest_limit("momentum"), 3);
}
