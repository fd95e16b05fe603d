/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/control/membership.h"

#include "tests/lib/test.h"

TEST(a_pending_trainer_is_not_in_the_view) {
    struct membership_view_entry entry =
        membership_view_make_entry(7, 0, false);
    assert_int_equal(entry.incarnation, 0);
    assert_false(entry.live);
}

TEST(a_departed_trainer_is_known_and_not_waited_for) {
    struct membership_view_entry entry = membership_view_make_entry(7, 5, true);
    assert_int_equal(entry.incarnation, 7);
    assert_int_equal(entry.from, 5);
    assert_false(entry.live);
    assert_true(membership_view_make_entry(7, 5, false).live);
}

TEST(a_trainer_starts_once_when_every_ps_has_the_view) {
    assert_false(membership_view_may_start(5, false, 2, 3));
    assert_true(membership_view_may_start(5, false, 3, 3));
    assert_false(membership_view_may_start(5, true, 3, 3));
    assert_false(membership_view_may_start(0, false, 3, 3));
}
