/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/metrics_fixture.h"

#include "chief/report/metrics.h"

#include <math.h>
#include <stdlib.h>

int metrics_fixture_setup(void **state) {
    struct metrics_fixture *measured = calloc(1, sizeof *measured);
    if (!measured)
        return -1;
    struct run *run = &measured->run;
    run->job = &measured->job;
    run->trainers = measured->trainers;
    run->plan.limits = measured->limits;
    run->phase = RUN_TRAINING;
    run->metrics.points.sums =
        calloc(RUN_POINTS, sizeof *run->metrics.points.sums);
    measured->job.steps_per_print = 10;
    run->plan.schedule.total = 1000;
    run->plan.schedule.accumulation = 1;
    run->plan.schedule.epoch_batches = 1000;
    run->roster.num_ranks = 1;
    run->roster.slots = calloc(2, sizeof *run->roster.slots);
    run->roster.slots[0].state = ROSTER_HELD;
    run->metrics.began = true;
    run->metrics.shown_loss = run->metrics.shown_rate =
        run->metrics.epoch_loss = NAN;
    measured->trainers[0].in_view = true;
    *state = measured;
    return 0;
}

int metrics_fixture_teardown(void **state) {
    struct metrics_fixture *measured = *state;
    free(measured->run.roster.slots);
    free(measured->run.metrics.points.sums);
    free(measured);
    return 0;
}

void metrics_fixture_heartbeat(struct metrics_fixture *measured, uint64_t steps,
                               double loss_sum) {
    Capstan__Heartbeat heartbeat = CAPSTAN__HEARTBEAT__INIT;
    heartbeat.clock = heartbeat.samples = steps;
    heartbeat.training_s = (double)steps / 2;
    heartbeat.loss_sum = loss_sum;
    metrics_receive_heartbeat(&measured->run, &measured->run.roster.slots[0],
                              &heartbeat, 0);
}
