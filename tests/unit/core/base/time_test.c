/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/time.h"

#include "tests/lib/test.h"

#include <limits.h>
#include <math.h>
#include <time.h>

TEST(the_clock_never_goes_back) {
    int64_t last = time_now();
    for (int i = 0; i < 10000; i++) {
        int64_t now = time_now();
        assert_true(now >= last);
        last = now;
    }
}

TEST(the_calendar_is_unix_time) {
    assert_true(fabs(time_calendar() - (double)time(NULL)) < 2);
}

TEST(seconds_become_nanoseconds_up_to_never) {
    assert_int_equal(time_from_seconds(0), 0);
    assert_int_equal(time_from_seconds(1.5), 1500 * TIME_MS);
    assert_int_equal(time_from_seconds(1e9), 1000000000 * TIME_S);
    assert_int_equal(time_from_seconds(1e10), TIME_NEVER);
    assert_int_equal(time_from_seconds(INFINITY), TIME_NEVER);
    assert_int_equal(time_from_seconds(NAN), TIME_NEVER);
    assert_true(time_to_seconds(2500 * TIME_MS) == 2.5);
}

TEST(timeouts_are_rounded_up_and_bounded) {
    static const struct {
        int64_t now, deadline;
        int wait;
    } cases[] = {
        {100, 100, 0},
        {100, 99, 0},
        {100, INT64_MIN, 0},
        {100, 101, 1},
        {0, TIME_MS, 1},
        {0, TIME_MS + 1, 2},
        {TIME_S, 3 * TIME_S, 2000},
        {TIME_S, TIME_NEVER, -1},
        {TIME_S, TIME_NEVER - 1, INT_MAX},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(time_poll_ms(cases[i].now, cases[i].deadline),
                         cases[i].wait);
}
