/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/plan/run_schedule.h"

#include "tests/lib/seed.h"
#include "tests/lib/test.h"

TEST(epochs_end_when_their_batches_are_read) {
    struct run_schedule run_schedule = {
        .total = 30, .accumulation = 1, .epoch_batches = 10};
    for (uint64_t step = 1; step <= 30; step++) {
        assert_int_equal(run_schedule_epochs(&run_schedule, step), step / 10);
        assert_int_equal(run_schedule_ends_epoch(&run_schedule, step),
                         step % 10 == 0);
        assert_int_equal(run_schedule_evaluates(&run_schedule, step),
                         step % 10 == 0);
        assert_false(run_schedule_saves(&run_schedule, step));
    }
    assert_int_equal(run_schedule_total(&run_schedule, 3), 30);
}

TEST(a_group_may_cross_the_end_of_an_epoch) {
    struct run_schedule run_schedule = {
        .total = 99, .accumulation = 4, .epoch_batches = 10};
    assert_false(run_schedule_ends_epoch(&run_schedule, 2)); /* 8 read */
    assert_true(run_schedule_ends_epoch(&run_schedule, 3));  /* 12 */
    assert_true(run_schedule_ends_epoch(&run_schedule, 5));  /* 20 */
    assert_int_equal(run_schedule_total(&run_schedule, 1), 3);
    assert_int_equal(run_schedule_total(&run_schedule, 2), 5);
}

TEST(the_last_step_is_always_saved_and_evaluated) {
    struct run_schedule run_schedule = {.total = 7,
                                        .accumulation = 1,
                                        .epoch_batches = 100,
                                        .checkpoints = true};
    assert_true(run_schedule_saves(&run_schedule, 7));
    assert_true(run_schedule_evaluates(&run_schedule, 7));
    assert_false(run_schedule_saves(&run_schedule, 6));
    run_schedule.checkpoints = false;
    assert_false(run_schedule_saves(&run_schedule, 7));
}

TEST(metrics_are_due_at_multiples_and_the_last_step) {
    struct run_schedule run_schedule = {.start = 25, .total = 47};
    for (uint64_t step = 26; step <= 49; step++) {
        uint64_t expected = step <= 30 ? 30 : step <= 40 ? 40 : 47;
        assert_int_equal(run_schedule_next_multiple(&run_schedule, 10, step),
                         expected);
        assert_int_equal(run_schedule_next_multiple(&run_schedule, 1, step),
                         step < 47 ? step : 47);
        assert_int_equal(
            run_schedule_next_multiple(&run_schedule, 1000000000, step), 47);
    }
}

TEST(saves_are_due_by_step_number_not_by_steps_since_start) {
    struct run_schedule run_schedule = {.start = 25,
                                        .total = 60,
                                        .accumulation = 1,
                                        .epoch_batches = 1000,
                                        .checkpoints = true,
                                        .every_steps = 10};
    for (uint64_t step = 26; step < 60; step++)
        assert_int_equal(run_schedule_saves(&run_schedule, step),
                         step % 10 == 0);
}

TEST(a_delta_is_due_where_nothing_full_is) {
    struct run_schedule run_schedule = {.total = 55,
                                        .accumulation = 1,
                                        .epoch_batches = 35,
                                        .checkpoints = true,
                                        .every_steps = 20,
                                        .every_epochs = 1,
                                        .delta_every_steps = 5};
    for (uint64_t step = 1; step <= 55; step++) {
        bool full = step % 20 == 0 || step == 35 || step == 55;
        assert_int_equal(run_schedule_saves(&run_schedule, step),
                         full || step % 5 == 0);
        assert_int_equal(run_schedule_saves_delta(&run_schedule, step),
                         step % 5 == 0 && !full);
    }
    assert_true(run_schedule_crosses_boundary(&run_schedule, 21, 25));
    assert_false(run_schedule_crosses_boundary(&run_schedule, 21, 24));
    run_schedule.checkpoints = false;
    assert_false(run_schedule_saves_delta(&run_schedule, 5));
}

TEST(a_jump_over_a_due_step_is_detected) {
    struct run_schedule run_schedule = {.start = 40,
                                        .start_batch = 40,
                                        .accumulation = 1,
                                        .epoch_batches = 25,
                                        .every_steps = 20};
    assert_false(run_schedule_crosses_boundary(&run_schedule, 40, 49));
    assert_true(
        run_schedule_crosses_boundary(&run_schedule, 40, 50)); /* an epoch */
    assert_false(run_schedule_crosses_boundary(&run_schedule, 50, 59));
    assert_true(run_schedule_crosses_boundary(&run_schedule, 50, 61));
    assert_false(run_schedule_crosses_boundary(&run_schedule, 61, 61));
    run_schedule.every_steps = 0;
    assert_false(run_schedule_crosses_boundary(&run_schedule, 50, 74));
    assert_true(run_schedule_crosses_boundary(&run_schedule, 50, 75));
}

TEST(every_second_epoch_is_saved_even_when_a_step_skips_one) {
    struct run_schedule run_schedule = {.total = 1000,
                                        .accumulation = 5,
                                        .epoch_batches = 2,
                                        .checkpoints = true,
                                        .every_epochs = 2};
    for (uint64_t step = 1; step < 100; step++) {
        uint64_t before = (step - 1) * 5 / 2 / 2, after = step * 5 / 2 / 2;
        assert_int_equal(run_schedule_saves(&run_schedule, step),
                         after > before);
    }
}

TEST(without_remaining_epochs_no_step_remains) {
    struct run_schedule run_schedule = {
        .start = 40, .start_batch = 40, .accumulation = 1, .epoch_batches = 10};
    assert_int_equal(run_schedule_total(&run_schedule, 5), 50);
    assert_int_equal(run_schedule_total(&run_schedule, 4), 40);
    assert_int_equal(run_schedule_total(&run_schedule, 1), 40);
    assert_int_equal(run_schedule_total(&run_schedule, 0), 40);
}

/* By counting batches one by one. */
TEST(counting_gives_the_same_steps) {
    struct philox_sequence random;
    seed_open(&random);
    for (int history = 0; history < 500; history++) {
        struct run_schedule run_schedule = {
            .start = philox_below(&random, 50),
            .start_batch = philox_below(&random, 50),
            .accumulation = 1 + philox_below(&random, 6),
            .epoch_batches = 1 + philox_below(&random, 20)};
        uint64_t epochs = 1 + philox_below(&random, 8), read = 0, ended = 0;
        for (uint64_t i = 0;
             i < run_schedule.start_batch * run_schedule.accumulation; i++)
            ended += ++read % run_schedule.epoch_batches == 0;
        uint64_t step = run_schedule.start,
                 total = run_schedule_total(&run_schedule, epochs);
        assert_int_equal(total > step, ended < epochs);
        for (; ended < epochs; step++) {
            uint64_t before = ended;
            for (uint64_t i = 0; i < run_schedule.accumulation; i++)
                ended += ++read % run_schedule.epoch_batches == 0;
            assert_int_equal(run_schedule_epochs(&run_schedule, step + 1),
                             ended);
            assert_int_equal(run_schedule_ends_epoch(&run_schedule, step + 1),
                             ended > before);
        }
        assert_int_equal(total, step);
    }
}

TEST(shares_are_equal_and_hold_all_samples) {
    assert_int_equal(run_schedule_share_samples(60000, 4), 15000);
    assert_int_equal(run_schedule_share_samples(60001, 4), 15001);
    assert_int_equal(run_schedule_share_samples(3, 7), 1);
    assert_int_equal(run_schedule_share_samples(5, 1), 5);
}

TEST(a_short_last_batch_is_kept_or_dropped) {
    assert_int_equal(run_schedule_share_batches(23, 2, 5, false), 3);
    assert_int_equal(run_schedule_share_batches(23, 2, 5, true), 2);
    assert_int_equal(run_schedule_share_batches(20, 2, 5, false), 2);
    assert_int_equal(run_schedule_share_batches(20, 2, 5, true), 2);
}

TEST(less_than_a_batch_is_empty_when_dropped) {
    assert_int_equal(run_schedule_share_batches(7, 2, 5, true), 0);
    assert_int_equal(run_schedule_share_batches(7, 2, 5, false), 1);
}

TEST(a_run_has_fifty_points_or_more_if_the_job_gives_no_number) {
    static const uint64_t cases[][2] = {
        {0, 1},           {1, 1},
        {99, 1},          {100, 2},
        {249, 2},         {250, 5},
        {499, 5},         {500, 10},
        {2820, 50},       {5000, 100},
        {9999, 100},      {10000, 200},
        {25000, 500},     {50000, 1000},
        {1000000, 20000}, {RUN_SCHEDULE_ENDLESS, 100},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct run_schedule schedule = {.total = cases[i][0]};
        assert_int_equal(run_schedule_point_steps(&schedule, 0), cases[i][1]);
        assert_int_equal(run_schedule_point_steps(&schedule, 7), 7);
    }
    for (uint64_t total = 100; total < 100000; total++) {
        const struct run_schedule schedule = {.total = total};
        uint64_t each = run_schedule_point_steps(&schedule, 0);
        uint64_t points = (total + each - 1) / each;
        assert_true(points >= 50 && points <= 125);
    }
}

TEST(copies_take_a_twentieth_of_what_trainers_send) {
    static const uint64_t cases[][3] = {
        {12, 8, 100},  {12, 2, 120},          {12, 1, 240},
        {12, 7, 100},  {100, 9, 240},         {50, 1, 1000},
        {51, 1, 1000}, {1ull << 60, 1, 1000}, {12, 0, 1000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(run_schedule_copy_steps(cases[i][0], cases[i][1]),
                         cases[i][2]);
}
