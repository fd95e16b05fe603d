/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/measures_fixture.h"

#include "chief/report/measures.h"

#include <math.h>
#include <stdlib.h>

int measures_fixture_setup(void **state) {
    struct measures_fixture *measured = calloc(1, sizeof *measured);
    if (!measured)
        return -1;
    struct run *run = &measured->run;
    run->job = &measured->job;
    run->trainers = measured->trainers;
    run->phase = RUN_TRAINING;
    run->points.sums = calloc(RUN_POINTS, sizeof *run->points.sums);
    measured->job.steps_per_print = 10;
    run->rounds.total = 1000;
    run->rounds.accumulation = 1;
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

int measures_fixture_teardown(void **state) {
    struct measures_fixture *measured = *state;
    free(measured->run.roster.slots);
    free(measured->run.points.sums);
    free(measured);
    return 0;
}

void measures_fixture_beat(struct measures_fixture *measured, uint64_t steps,
                           double loss_sum) {
    Capstan__Beat beat = CAPSTAN__BEAT__INIT;
    beat.clock = beat.samples = steps;
    beat.training_s = (double)steps / 2;
    beat.loss_sum = loss_sum;
    measures_beat(&measured->run, &measured->run.roster.slots[0], &beat, 0);
}
