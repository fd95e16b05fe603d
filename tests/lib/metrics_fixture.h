/* SPDX-License-Identifier: Apache-2.0 */
/* A run of one trainer that nobody looks at: for tests of what is measured of
 * a run and said of it. */
#ifndef CAPSTAN_METRICS_FIXTURE_H
#define CAPSTAN_METRICS_FIXTURE_H

#include "chief/run.h"

#include <stdint.h>

struct metrics_fixture {
    struct run run;
    struct run_trainer trainers[2];
    struct memory_plan_limits limits[2];
    struct job job;
};

/* For cmocka: *STATE is a struct metrics_fixture. */
int metrics_fixture_setup(void **state);
int metrics_fixture_teardown(void **state);

/* The trainer has taken STEPS of one sample in half as many seconds, with
 * losses of LOSS_SUM. */
void metrics_fixture_heartbeat(struct metrics_fixture *measured, uint64_t steps,
                               double loss_sum);

#endif
