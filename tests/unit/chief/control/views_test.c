/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/control/views.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void who_waits_to_be_let_in_is_nobody(void **state) {
    (void)state;
    struct views_entry entry = views_list(7, 0, false);
    assert_int_equal(entry.incarnation, 0);
    assert_false(entry.live);
}

static void who_left_is_known_and_not_awaited(void **state) {
    (void)state;
    struct views_entry entry = views_list(7, 5, true);
    assert_int_equal(entry.incarnation, 7);
    assert_int_equal(entry.from, 5);
    assert_false(entry.live);
    assert_true(views_list(7, 5, false).live);
}

static void a_trainer_starts_once_when_every_ps_has_the_view(void **state) {
    (void)state;
    assert_false(views_may_start(5, false, 2, 3));
    assert_true(views_may_start(5, false, 3, 3));
    assert_false(views_may_start(5, true, 3, 3));
    assert_false(views_may_start(0, false, 3, 3));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_waits_to_be_let_in_is_nobody),
        cmocka_unit_test(who_left_is_known_and_not_awaited),
        cmocka_unit_test(a_trainer_starts_once_when_every_ps_has_the_view),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
