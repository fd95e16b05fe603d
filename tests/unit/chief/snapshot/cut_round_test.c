/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/snapshot/cut_round.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void a_cut_is_one_above_the_highest_round_of_all(void **state) {
    struct cut_round cut;
    (void)state;
    cut_round_ask(&cut, 3);
    assert_false(cut_round_marked(&cut, 4, 100));
    assert_false(cut_round_marked(&cut, 6, 100));
    assert_int_equal(cut.stage, CUT_ASKING);
    assert_true(cut_round_marked(&cut, 5, 100));
    assert_int_equal(cut.round, 7);
    assert_int_equal(cut.stage, CUT_TAKING);
}

static void no_cut_is_after_the_last_round(void **state) {
    struct cut_round cut;
    (void)state;
    cut_round_ask(&cut, 2);
    assert_false(cut_round_marked(&cut, 10, 10));
    assert_true(cut_round_marked(&cut, 9, 10));
    assert_int_equal(cut.round, 10);
}

static void marks_of_a_cut_agreed_on_are_not_counted(void **state) {
    struct cut_round cut;
    (void)state;
    cut_round_ask(&cut, 1);
    assert_true(cut_round_marked(&cut, 3, 10));
    assert_false(cut_round_marked(&cut, 8, 10));
    assert_int_equal(cut.round, 4);
}

static void it_is_held_and_written_when_all_have(void **state) {
    struct cut_round cut;
    (void)state;
    cut_round_take(&cut, 2);
    assert_false(cut_round_held(&cut));
    assert_false(cut_round_done(&cut)); /* quick disk, slow neighbour */
    assert_true(cut_round_held(&cut));
    assert_int_equal(cut.stage, CUT_HELD);
    assert_true(cut_round_done(&cut));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cut_is_one_above_the_highest_round_of_all),
        cmocka_unit_test(no_cut_is_after_the_last_round),
        cmocka_unit_test(marks_of_a_cut_agreed_on_are_not_counted),
        cmocka_unit_test(it_is_held_and_written_when_all_have),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
