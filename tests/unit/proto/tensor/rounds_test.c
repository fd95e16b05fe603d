/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/tensor/rounds.h"

#include "tests/lib/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void epochs_end_where_their_batches_are_read(void **state) {
    (void)state;
    struct rounds rounds = {
        .total = 30, .accumulation = 1, .epoch_batches = 10};
    for (uint64_t step = 1; step <= 30; step++) {
        assert_int_equal(rounds_epochs(&rounds, step), step / 10);
        assert_int_equal(rounds_ends_epoch(&rounds, step), step % 10 == 0);
        assert_int_equal(rounds_evaluates(&rounds, step), step % 10 == 0);
        assert_false(rounds_saves(&rounds, step));
    }
    assert_int_equal(rounds_total(&rounds, 3), 30);
}

static void a_group_may_cross_the_end_of_an_epoch(void **state) {
    (void)state;
    struct rounds rounds = {
        .total = 99, .accumulation = 4, .epoch_batches = 10};
    assert_false(rounds_ends_epoch(&rounds, 2)); /* 8 read */
    assert_true(rounds_ends_epoch(&rounds, 3));  /* 12 */
    assert_true(rounds_ends_epoch(&rounds, 5));  /* 20 */
    assert_int_equal(rounds_total(&rounds, 1), 3);
    assert_int_equal(rounds_total(&rounds, 2), 5);
}

static void the_last_step_is_saved_and_evaluated_whatever_it_is(void **state) {
    (void)state;
    struct rounds rounds = {.total = 7,
                            .accumulation = 1,
                            .epoch_batches = 100,
                            .checkpoints = true};
    assert_true(rounds_saves(&rounds, 7));
    assert_true(rounds_evaluates(&rounds, 7));
    assert_false(rounds_saves(&rounds, 6));
    rounds.checkpoints = false;
    assert_false(rounds_saves(&rounds, 7));
}

static void points_are_multiples_and_the_last_step(void **state) {
    (void)state;
    struct rounds rounds = {.start = 25, .total = 47};
    for (uint64_t step = 26; step <= 49; step++) {
        uint64_t expected = step <= 30 ? 30 : step <= 40 ? 40 : 47;
        assert_int_equal(rounds_point(&rounds, 10, step), expected);
        assert_int_equal(rounds_point(&rounds, 1, step), step < 47 ? step : 47);
        assert_int_equal(rounds_point(&rounds, 1000000000, step), 47);
    }
}

static void steps_are_saved_by_their_number_not_since_the_start(void **state) {
    (void)state;
    struct rounds rounds = {.start = 25,
                            .total = 60,
                            .accumulation = 1,
                            .epoch_batches = 1000,
                            .checkpoints = true,
                            .every_steps = 10};
    for (uint64_t step = 26; step < 60; step++)
        assert_int_equal(rounds_saves(&rounds, step), step % 10 == 0);
}

static void a_jump_over_what_is_due_is_seen(void **state) {
    (void)state;
    struct rounds rounds = {.start = 40,
                            .start_batch = 40,
                            .accumulation = 1,
                            .epoch_batches = 25,
                            .every_steps = 20};
    assert_false(rounds_passed(&rounds, 40, 49));
    assert_true(rounds_passed(&rounds, 40, 50)); /* an epoch */
    assert_false(rounds_passed(&rounds, 50, 59));
    assert_true(rounds_passed(&rounds, 50, 61));
    assert_false(rounds_passed(&rounds, 61, 61));
    rounds.every_steps = 0;
    assert_false(rounds_passed(&rounds, 50, 74));
    assert_true(rounds_passed(&rounds, 50, 75));
}

static void every_second_epoch_is_saved_even_when_a_step_skips_one(
    void **state) {
    (void)state;
    struct rounds rounds = {.total = 1000,
                            .accumulation = 5,
                            .epoch_batches = 2,
                            .checkpoints = true,
                            .every_epochs = 2};
    for (uint64_t step = 1; step < 100; step++) {
        uint64_t before = (step - 1) * 5 / 2 / 2, after = step * 5 / 2 / 2;
        assert_int_equal(rounds_saves(&rounds, step), after > before);
    }
}

static void no_epochs_left_is_no_step_left(void **state) {
    (void)state;
    struct rounds rounds = {
        .start = 40, .start_batch = 40, .accumulation = 1, .epoch_batches = 10};
    assert_int_equal(rounds_total(&rounds, 5), 50);
    assert_int_equal(rounds_total(&rounds, 4), 40);
    assert_int_equal(rounds_total(&rounds, 1), 40);
    assert_int_equal(rounds_total(&rounds, 0), 40);
}

/* By counting batches one by one. */
static void counting_gives_the_same(void **state) {
    (void)state;
    struct philox_sequence random;
    seed_open(&random);
    for (int history = 0; history < 500; history++) {
        struct rounds rounds = {.start = philox_below(&random, 50),
                                .start_batch = philox_below(&random, 50),
                                .accumulation = 1 + philox_below(&random, 6),
                                .epoch_batches = 1 + philox_below(&random, 20)};
        uint64_t epochs = 1 + philox_below(&random, 8), read = 0, ended = 0;
        for (uint64_t i = 0; i < rounds.start_batch * rounds.accumulation; i++)
            ended += ++read % rounds.epoch_batches == 0;
        uint64_t step = rounds.start, total = rounds_total(&rounds, epochs);
        assert_int_equal(total > step, ended < epochs);
        for (; ended < epochs; step++) {
            uint64_t before = ended;
            for (uint64_t i = 0; i < rounds.accumulation; i++)
                ended += ++read % rounds.epoch_batches == 0;
            assert_int_equal(rounds_epochs(&rounds, step + 1), ended);
            assert_int_equal(rounds_ends_epoch(&rounds, step + 1),
                             ended > before);
        }
        assert_int_equal(total, step);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(epochs_end_where_their_batches_are_read),
        cmocka_unit_test(a_group_may_cross_the_end_of_an_epoch),
        cmocka_unit_test(the_last_step_is_saved_and_evaluated_whatever_it_is),
        cmocka_unit_test(points_are_multiples_and_the_last_step),
        cmocka_unit_test(steps_are_saved_by_their_number_not_since_the_start),
        cmocka_unit_test(a_jump_over_what_is_due_is_seen),
        cmocka_unit_test(
            every_second_epoch_is_saved_even_when_a_step_skips_one),
        cmocka_unit_test(no_epochs_left_is_no_step_left),
        cmocka_unit_test(counting_gives_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
