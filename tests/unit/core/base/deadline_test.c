/* SPDX-License-Identifier: Apache-2.0 */

#include "core/base/time.h"
#include "tests/lib/test.h"

static const struct deadline sample = {"ps 1 at b:2223", "timeouts.step",
                                       5 * TIME_S, 35 * TIME_S};

TEST(a_wait_is_logged_with_its_deadline) {
    char text[128];
    deadline_text(&sample, 17 * TIME_S, text, sizeof text);
    assert_string_equal(text, "waiting for ps 1 at b:2223 for 12 s; gives up "
                              "in 18 s (timeouts.step)");
    deadline_text(&sample, 50 * TIME_S, text, sizeof text);
    assert_string_equal(text, "waiting for ps 1 at b:2223 for 45 s; gives up "
                              "in 0 s (timeouts.step)");
}

TEST(a_wait_expires_at_its_deadline) {
    assert_false(deadline_passed(&sample, 35 * TIME_S - 1));
    assert_true(deadline_passed(&sample, 35 * TIME_S));
    struct deadline none = {.until = TIME_NEVER};
    assert_false(deadline_passed(&none, INT64_MAX));
    struct deadline endless =
        deadline_start("ps 0", "timeouts.step", 5, TIME_NEVER);
    assert_false(deadline_passed(&endless, INT64_MAX - 2));
    assert_true(endless.until < TIME_NEVER);
}

TEST(a_silence_is_logged_well_before_its_deadline) {
    assert_int_equal(deadline_warn_after(30 * TIME_S), 5 * TIME_S);
    assert_int_equal(deadline_warn_after(TIME_S), 3 * TIME_S);
}

/* A turn that takes a second is none; what was set moves, and not beyond now.
 */
TEST(a_suspension_shifts_the_start_of_waits) {
    int64_t now = 100 * TIME_S, since = 70 * TIME_S, none = 0,
            last = 99 * TIME_S;
    assert_int_equal(deadline_stall(0, now), 0);
    assert_int_equal(deadline_stall(now - TIME_S, now), 0);
    int64_t still = deadline_stall(now - 20 * TIME_S, now);
    assert_int_equal(still, 20 * TIME_S);
    deadline_shift(&since, still, now);
    deadline_shift(&none, still, now);
    deadline_shift(&last, still, now);
    assert_int_equal(since, 90 * TIME_S);
    assert_int_equal(none, 0);
    assert_int_equal(last, now);
}
