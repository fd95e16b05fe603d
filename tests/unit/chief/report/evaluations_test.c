/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "chief/report/evaluations.h"
#include "chief/run.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdlib.h>

enum { RANKS = 2, EPOCH = 15 };

/* A synchronous run of two trainers that nobody looks at, an epoch every
 * fifteen steps. */
struct fixture {
    struct run run;
    struct run_trainer trainers[RANKS];
    struct roster_slot slots[RANKS];
    struct job job;
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct run *run = &fixture->run;
    run->job = &fixture->job;
    run->trainers = fixture->trainers;
    run->phase = RUN_TRAINING;
    run->plan.test_samples = 10;
    run->plan.schedule = (struct run_schedule){
        .total = 1000, .accumulation = 1, .epoch_batches = EPOCH};
    run->roster.num_ranks = run->roster.count = RANKS;
    run->roster.slots = fixture->slots;
    run->metrics.shown_loss = run->metrics.shown_rate =
        run->metrics.epoch_loss = NAN;
    for (uint32_t r = 0; r < RANKS; r++) {
        fixture->slots[r] = (struct roster_slot){
            .rank = r, .state = ROSTER_HELD, .incarnation = 7 + r};
        fixture->trainers[r] = (struct run_trainer){.in_view = true, .from = 1};
    }
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    for (uint32_t i = 0; i < fixture->run.evaluations.count; i++) {
        evaluation_split_close(&fixture->run.evaluations.items[i].parts);
        free(fixture->run.evaluations.items[i].rank_points);
    }
    free(fixture->run.evaluations.items);
    free(fixture);
    return 0;
}

FIXTURE(setup, teardown);

/* RANK is at STEP: a sample each, with losses of LOSS on the average. */
static void report(struct fixture *fixture, uint32_t rank, uint64_t step,
                   double loss) {
    Capstan__Evaluated evaluated = CAPSTAN__EVALUATED__INIT;
    evaluated.step = step;
    evaluated.part = rank;
    evaluated.count = 5;
    evaluated.correct = 4;
    evaluated.train_samples = step;
    evaluated.train_loss_sum = loss * (double)step;
    evaluated.training_s = (double)step;
    evaluations_receive_part(&fixture->run, &fixture->slots[rank], &evaluated);
}

TEST(an_epoch_ends_with_the_last_trainers_split) {
    report(fixture, 1, EPOCH, 3);
    assert_int_equal(fixture->run.evaluations.evaluated, 0);
    report(fixture, 0, EPOCH, 1);
    assert_int_equal(fixture->run.evaluations.evaluated, EPOCH);
    assert_true(fixture->run.metrics.epoch_loss == 2);
    assert_true(fixture->run.evaluations.accuracy == 0.8);
}

/* Rank 0 has ended its second epoch before it is heard that rank 1 has ended
 * its first. */
TEST(an_epochs_loss_is_that_of_its_step) {
    report(fixture, 0, EPOCH, 4);
    report(fixture, 0, 2 * EPOCH, 3);
    assert_int_equal(fixture->run.evaluations.evaluated, 0);
    report(fixture, 1, EPOCH, 2);
    assert_int_equal(fixture->run.evaluations.evaluated, EPOCH);
    assert_true(fixture->run.metrics.epoch_loss == 3);
    report(fixture, 1, 2 * EPOCH, 1);
    assert_int_equal(fixture->run.evaluations.evaluated, 2 * EPOCH);
    assert_true(fixture->run.metrics.epoch_loss == 1); /* 2 and 0 */
}

/* What it had read when it took part is not counted once more. */
TEST(a_trainer_that_rejoins_during_an_evaluation_counts_once) {
    report(fixture, 0, EPOCH, 4);
    fixture->slots[0].incarnation++;
    fixture->trainers[0] =
        (struct run_trainer){.past = {.loss = 4 * EPOCH, .samples = EPOCH}};
    report(fixture, 1, EPOCH, 2);
    assert_int_equal(fixture->run.evaluations.evaluated, EPOCH);
    assert_true(fixture->run.metrics.epoch_loss == 3);
}
