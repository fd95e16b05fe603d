/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/diagnostics.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static void each_typing_error_counts_one(void **state) {
    (void)state;
    assert_int_equal(diagnostics_nearest_distance("type", "type"), 0);
    assert_int_equal(diagnostics_nearest_distance("type", "Type"), 0);
    assert_int_equal(diagnostics_nearest_distance("type", "tpye"), 1);
    assert_int_equal(diagnostics_nearest_distance("type", "typ"), 1);
    assert_int_equal(diagnostics_nearest_distance("type", "tyype"), 1);
    assert_int_equal(diagnostics_nearest_distance("type", "tape"), 1);
    assert_int_equal(diagnostics_nearest_distance("kitten", "sitting"), 3);
    assert_int_equal(diagnostics_nearest_distance("", "abc"), 3);
}

static void a_very_long_word_is_as_far_as_its_length(void **state) {
    (void)state;
    char word[200];
    memset(word, 'a', sizeof word - 1);
    word[sizeof word - 1] = 0;
    assert_int_equal(diagnostics_nearest_distance(word, "a"), 199);
    assert_int_equal(diagnostics_nearest_distance("a", word), 199);
    word[63] = 0;
    assert_int_equal(diagnostics_nearest_distance(word, ""), 63);
}

static void a_longer_word_may_have_more_errors(void **state) {
    (void)state;
    assert_int_equal(diagnostics_nearest_limit("lr"), 1);
    assert_int_equal(diagnostics_nearest_limit("momentum"), 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_typing_error_counts_one),
        cmocka_unit_test(a_very_long_word_is_as_far_as_its_length),
        cmocka_unit_test(a_longer_word_may_have_more_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
