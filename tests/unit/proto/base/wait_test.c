/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/base/wait.h"

#include "proto/base/time.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const struct wait sample = {"ps 1 at b:2223", "timeouts.step",
                                   5 * TIME_S, 35 * TIME_S};

static void a_wait_is_told_with_its_end(void **state) {
    (void)state;
    char text[128];
    wait_text(&sample, 17 * TIME_S, text, sizeof text);
    assert_string_equal(text, "waiting for ps 1 at b:2223 since 12 s, gives up "
                              "in 18 s (timeouts.step)");
    wait_text(&sample, 50 * TIME_S, text, sizeof text);
    assert_string_equal(text, "waiting for ps 1 at b:2223 since 45 s, gives up "
                              "in 0 s (timeouts.step)");
}

static void a_wait_is_over_at_its_end(void **state) {
    (void)state;
    assert_false(wait_over(&sample, 35 * TIME_S - 1));
    assert_true(wait_over(&sample, 35 * TIME_S));
    struct wait none = {.until = TIME_NEVER};
    assert_false(wait_over(&none, INT64_MAX));
    struct wait endless = wait_for("ps 0", "timeouts.step", 5, TIME_NEVER);
    assert_false(wait_over(&endless, INT64_MAX - 2));
    assert_true(endless.until < TIME_NEVER);
}

static void a_silence_is_told_long_before_it_counts(void **state) {
    (void)state;
    assert_int_equal(wait_silence(30 * TIME_S), 5 * TIME_S);
    assert_int_equal(wait_silence(TIME_S), 3 * TIME_S);
}

/* A turn that takes a second is none; what was set moves, and not beyond now.
 */
static void a_standstill_moves_what_waits_began_at(void **state) {
    (void)state;
    int64_t now = 100 * TIME_S, since = 70 * TIME_S, none = 0,
            last = 99 * TIME_S;
    assert_int_equal(wait_stood_still(0, now), 0);
    assert_int_equal(wait_stood_still(now - TIME_S, now), 0);
    int64_t still = wait_stood_still(now - 20 * TIME_S, now);
    assert_int_equal(still, 20 * TIME_S);
    wait_move(&since, still, now);
    wait_move(&none, still, now);
    wait_move(&last, still, now);
    assert_int_equal(since, 90 * TIME_S);
    assert_int_equal(none, 0);
    assert_int_equal(last, now);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wait_is_told_with_its_end),
        cmocka_unit_test(a_wait_is_over_at_its_end),
        cmocka_unit_test(a_silence_is_told_long_before_it_counts),
        cmocka_unit_test(a_standstill_moves_what_waits_began_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
