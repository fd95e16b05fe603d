#include "chief/measures.h"

#include "proto/base/time.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

/* A run of one trainer that nobody looks at. */
struct measured {
    struct run run;
    struct run_trainer trainers[2];
    struct job job;
};

static int setup(void **state) {
    struct measured *measured = calloc(1, sizeof *measured);
    struct run *run = &measured->run;
    run->job = &measured->job;
    run->trainers = measured->trainers;
    run->phase = RUN_TRAINING;
    run->rounds.total = 1000;
    run->rounds.epoch_batches = 1000;
    run->roster.num_ranks = 1;
    run->roster.slots = calloc(2, sizeof *run->roster.slots);
    run->roster.slots[0].state = ROSTER_HELD;
    run->began = true;
    run->shown_loss = run->shown_rate = run->epoch_loss = NAN;
    measured->trainers[0].viewed = true;
    *state = measured;
    return 0;
}

static int teardown(void **state) {
    struct measured *measured = *state;
    free(measured->run.roster.slots);
    free(measured);
    return 0;
}

/* The trainer has taken STEPS of one sample in half as many seconds, with
 * losses of LOSS_SUM. */
static void beat(struct measured *measured, uint64_t steps, double loss_sum) {
    Capstan__Beat beat = CAPSTAN__BEAT__INIT;
    beat.clock = beat.samples = steps;
    beat.training_s = (double)steps / 2;
    beat.loss_sum = loss_sum;
    measures_beat(&measured->run, &measured->run.roster.slots[0], &beat, 0);
}

static void shows(struct measured *measured, double seconds, double loss) {
    measures_show(&measured->run, (int64_t)(seconds * (double)TIME_S));
    assert_true(fabs(measured->run.shown_loss - loss) <= 1e-12);
    assert_true(fabs(measured->run.shown_rate - 2) <= 1e-12);
}

/* After the beat of STEPS and LOSS_SUM it shows LOSS at SECONDS. */
static void beats_and_shows(struct measured *measured, uint64_t steps,
                            double loss_sum, double seconds, double loss) {
    beat(measured, steps, loss_sum);
    shows(measured, seconds, loss);
}

static void the_loss_shown_reaches_to_the_newest_beat(void **state) {
    beats_and_shows(*state, 100, 200, 10, 2);
    beats_and_shows(*state, 200, 250, 10.5, 1.25);
    beats_and_shows(*state, 300, 280, 10.9, 280.0 / 300);
}

static void what_was_shown_a_second_ago_counts_no_more(void **state) {
    beats_and_shows(*state, 100, 200, 10, 2);
    beats_and_shows(*state, 200, 250, 11, 0.5);
    beats_and_shows(*state, 300, 280, 11.5, 0.4);
    shows(*state, 12, 0.3);
}

static void without_a_new_sample_the_last_loss_stays(void **state) {
    beats_and_shows(*state, 100, 200, 10, 2);
    shows(*state, 11, 2);
    shows(*state, 12, 2);
    beats_and_shows(*state, 200, 250, 12.1, 0.5);
}

#define MEASURED(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        MEASURED(the_loss_shown_reaches_to_the_newest_beat),
        MEASURED(what_was_shown_a_second_ago_counts_no_more),
        MEASURED(without_a_new_sample_the_last_loss_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
