#include "chief/evaluations.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

enum { TRAINERS = 2, EPOCH = 15 };

/* A synchronous run of two trainers and two epochs. */
struct fixture {
    struct run run;
    struct job job;
    struct roster_slot slots[TRAINERS];
    struct run_trainer trainers[TRAINERS];
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct run *run = &fixture->run;
    run->job = &fixture->job;
    run->phase = RUN_TRAINING;
    run->test_samples = 100;
    run->epoch_loss = run->shown_loss = NAN;
    run->rounds = (struct rounds){
        .total = 2 * EPOCH, .accumulation = 1, .epoch_batches = EPOCH};
    run->roster.slots = fixture->slots;
    run->roster.num_ranks = run->roster.count = TRAINERS;
    run->trainers = fixture->trainers;
    for (uint32_t r = 0; r < TRAINERS; r++) {
        fixture->slots[r] = (struct roster_slot){
            .rank = r, .state = ROSTER_HELD, .incarnation = 7 + r};
        fixture->trainers[r] = (struct run_trainer){.viewed = true, .from = 1};
    }
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    evaluations_close(&fixture->run);
    free(fixture);
    return 0;
}

/* RANK has evaluated its part after STEP, with that many samples read and
 * losses of LOSS_SUM. */
static void tells(struct fixture *fixture, uint32_t rank, uint64_t step,
                  uint64_t samples, double loss_sum) {
    Capstan__Evaluated report = CAPSTAN__EVALUATED__INIT;
    report.step = step;
    report.part = rank;
    report.count = 50;
    report.correct = step;
    report.train_samples = samples;
    report.train_loss_sum = loss_sum;
    evaluations_part(&fixture->run, &fixture->slots[rank], &report);
}

static void an_epochs_loss_is_that_of_all_when_it_ended(void **state) {
    struct fixture *fixture = *state;
    tells(fixture, 0, EPOCH, 100, 300);
    tells(fixture, 1, EPOCH, 100, 100);
    assert_true(fixture->run.epoch_loss == 2);
    tells(fixture, 1, 2 * EPOCH, 200, 150);
    tells(fixture, 0, 2 * EPOCH, 200, 350);
    assert_true(fixture->run.epoch_loss == 0.5);
    assert_true(fixture->run.accuracy == 0.6);
    assert_false(evaluations_pending(&fixture->run));
}

/* One is heard of late, when the other has ended the next epoch too. */
static void it_does_not_depend_on_when_they_are_heard_of(void **state) {
    struct fixture *fixture = *state;
    tells(fixture, 0, EPOCH, 100, 300);
    tells(fixture, 0, 2 * EPOCH, 200, 350);
    assert_true(isnan(fixture->run.epoch_loss));
    tells(fixture, 1, EPOCH, 100, 100);
    assert_true(fixture->run.epoch_loss == 2);
    tells(fixture, 1, 2 * EPOCH, 200, 150);
    assert_true(fixture->run.epoch_loss == 0.5);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(an_epochs_loss_is_that_of_all_when_it_ended),
        TEST(it_does_not_depend_on_when_they_are_heard_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
