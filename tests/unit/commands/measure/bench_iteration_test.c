/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/bench_iteration.h"

#include "core/base/time.h"
#include "tests/lib/seed.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdlib.h>

static double percentile(int64_t *latencies, size_t count, double share) {
    struct bench_iteration iteration = {.latencies = latencies,
                                        .samples = count};
    return bench_iteration_latency_us(&iteration, share);
}

TEST(a_percentile_is_the_value_of_the_nearest_rank) {
    const struct {
        double share, value;
    } cases[] = {{0, 1},    {0.1, 1}, {0.11, 2},  {0.5, 5},
                 {0.51, 6}, {0.9, 9}, {0.99, 10}, {1, 10}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t values[] = {7, 3, 10, 1, 9, 5, 2, 8, 4, 6};
        for (size_t v = 0; v < 10; v++)
            values[v] *= TIME_US;
        assert_true(percentile(values, 10, cases[i].share) == cases[i].value);
    }
}

/* By counting: at least SHARE of the values are not above it, and of what is
 * smaller than it fewer are. */
TEST(percentiles_of_random_values_split_them_as_defined) {
    struct philox_sequence sequence;
    seed_open(&sequence);
    for (int round = 0; round < 200; round++) {
        size_t count = 1 + philox_below(&sequence, 300);
        size_t most = 0, below = 0;
        int64_t values[300];
        double share = (double)philox_below(&sequence, 1001) / 1000;
        for (size_t i = 0; i < count; i++)
            values[i] = philox_below(&sequence, 40) * TIME_US;
        double found = percentile(values, count, share) * (double)TIME_US;
        for (size_t i = 0; i < count; i++) {
            most += (double)values[i] <= found;
            below += (double)values[i] < found;
        }
        assert_true((double)most >= share * (double)count);
        assert_true(!below || (double)below < share * (double)count);
    }
}

TEST(a_median_is_the_middle_or_the_mean_of_two) {
    double one[] = {4}, two[] = {4, 1}, three[] = {9, 1, 4};
    double four[] = {9, 1, 4, 6};
    assert_true(bench_iteration_median(one, 1) == 4);
    assert_true(bench_iteration_median(two, 2) == 2.5);
    assert_true(bench_iteration_median(three, 3) == 4);
    assert_true(bench_iteration_median(four, 4) == 5);
}

TEST(no_values_have_no_percentile) {
    struct bench_iteration iteration = {0};
    assert_true(isnan(bench_iteration_median(NULL, 0)));
    assert_true(isnan(bench_iteration_latency_us(&iteration, 0.5)));
    assert_true(bench_iteration_vectors_s(&iteration) == 0);
}

TEST(latencies_are_kept_up_to_the_capacity) {
    int64_t capacity[3];
    struct bench_iteration iteration = {.latencies = capacity, .capacity = 3};
    for (int64_t us = 5; us >= 1; us--)
        bench_iteration_record(&iteration, us * TIME_US);
    assert_int_equal(iteration.samples, 3);
    assert_true(bench_iteration_latency_us(&iteration, 0.5) == 4);
    assert_true(bench_iteration_latency_us(&iteration, 0.99) == 5);
}

TEST(an_iteration_lasts_for_its_count_or_its_duration) {
    struct bench_iteration times = {.times = 3, .duration = 10};
    assert_true(bench_iteration_continues(&times, 2, 1000));
    assert_false(bench_iteration_continues(&times, 3, 0));
    struct bench_iteration timed = {.duration = 10};
    assert_true(bench_iteration_continues(&timed, 0, 1000)); /* at least one */
    assert_true(bench_iteration_continues(&timed, 7, 9));
    assert_false(bench_iteration_continues(&timed, 1, 10));
    atomic_bool stop = true;
    times.stop = timed.stop = &stop;
    assert_false(bench_iteration_continues(&times, 0, 0));
    assert_false(bench_iteration_continues(&timed, 0, 0));
}

TEST(rates_are_per_second) {
    struct bench_iteration iteration = {
        .vectors = 3, .messages = 12, .elapsed = TIME_S / 2};
    assert_true(bench_iteration_vectors_s(&iteration) == 6);
    assert_true(bench_iteration_messages_s(&iteration) == 24);
    assert_string_equal(bench_iteration_kind_name(BENCH_ITERATION_PUSH_PULL),
                        "push_pull");
}
