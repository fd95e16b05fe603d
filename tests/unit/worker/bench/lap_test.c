/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/bench/lap.h"

#include "proto/base/time.h"
#include "tests/lib/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

static void a_percentile_is_the_value_of_the_nearest_rank(void **state) {
    (void)state;
    const struct {
        double share, value;
    } cases[] = {{0, 1},    {0.1, 1}, {0.11, 2},  {0.5, 5},
                 {0.51, 6}, {0.9, 9}, {0.99, 10}, {1, 10}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double values[] = {7, 3, 10, 1, 9, 5, 2, 8, 4, 6};
        assert_true(lap_percentile(values, 10, cases[i].share) ==
                    cases[i].value);
    }
}

/* By counting: at least SHARE of the values are not above it, and of what is
 * smaller than it fewer are. */
static void percentiles_of_random_values_split_them_as_said(void **state) {
    (void)state;
    struct philox_sequence sequence;
    seed_open(&sequence);
    for (int round = 0; round < 200; round++) {
        size_t count = 1 + philox_below(&sequence, 300);
        size_t most = 0, below = 0;
        double values[300], share;
        share = (double)philox_below(&sequence, 1001) / 1000;
        for (size_t i = 0; i < count; i++)
            values[i] = (double)philox_below(&sequence, 40);
        double found = lap_percentile(values, count, share);
        for (size_t i = 0; i < count; i++) {
            most += values[i] <= found;
            below += values[i] < found;
        }
        assert_true((double)most >= share * (double)count);
        assert_true(!below || (double)below < share * (double)count);
    }
}

static void a_median_is_the_middle_or_the_mean_of_two(void **state) {
    (void)state;
    double one[] = {4}, two[] = {4, 1}, three[] = {9, 1, 4};
    double four[] = {9, 1, 4, 6};
    assert_true(lap_median(one, 1) == 4);
    assert_true(lap_median(two, 2) == 2.5);
    assert_true(lap_median(three, 3) == 4);
    assert_true(lap_median(four, 4) == 5);
}

static void nothing_has_no_percentile(void **state) {
    (void)state;
    struct lap lap = {0};
    assert_true(isnan(lap_percentile(NULL, 0, 0.5)));
    assert_true(isnan(lap_median(NULL, 0)));
    assert_true(isnan(lap_latency_us(&lap, 0.5)));
    assert_true(lap_vectors_s(&lap) == 0);
}

static void latencies_are_kept_while_there_is_room(void **state) {
    (void)state;
    int64_t room[3];
    struct lap lap = {.latencies = room, .room = 3};
    for (int64_t us = 5; us >= 1; us--)
        lap_note(&lap, us * TIME_US);
    assert_int_equal(lap.samples, 3);
    assert_true(lap_latency_us(&lap, 0.5) == 4);
    assert_true(lap_latency_us(&lap, 0.99) == 5);
}

static void a_lap_goes_on_for_its_times_or_its_duration(void **state) {
    (void)state;
    struct lap times = {.times = 3, .duration = 10};
    assert_true(lap_goes_on(&times, 2, 1000));
    assert_false(lap_goes_on(&times, 3, 0));
    struct lap timed = {.duration = 10};
    assert_true(lap_goes_on(&timed, 0, 1000)); /* at least one */
    assert_true(lap_goes_on(&timed, 7, 9));
    assert_false(lap_goes_on(&timed, 1, 10));
    atomic_bool stop = true;
    times.stop = timed.stop = &stop;
    assert_false(lap_goes_on(&times, 0, 0));
    assert_false(lap_goes_on(&timed, 0, 0));
}

static void rates_are_of_a_second(void **state) {
    (void)state;
    struct lap lap = {.vectors = 3, .messages = 12, .elapsed = TIME_S / 2};
    assert_true(lap_vectors_s(&lap) == 6);
    assert_true(lap_messages_s(&lap) == 24);
    assert_string_equal(lap_kind_name(LAP_PUSH_PULL), "push_pull");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_percentile_is_the_value_of_the_nearest_rank),
        cmocka_unit_test(percentiles_of_random_values_split_them_as_said),
        cmocka_unit_test(a_median_is_the_middle_or_the_mean_of_two),
        cmocka_unit_test(nothing_has_no_percentile),
        cmocka_unit_test(latencies_are_kept_while_there_is_room),
        cmocka_unit_test(a_lap_goes_on_for_its_times_or_its_duration),
        cmocka_unit_test(rates_are_of_a_second),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
