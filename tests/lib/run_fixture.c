/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/run_fixture.h"

#include "core/base/time.h"
#include "tests/lib/test.h"

void run_fixture_setup(void **state, uint32_t workers) {
    struct run_fixture *fixture = calloc(1, sizeof *fixture);
    void *wire;
    assert_non_null(fixture);
    link_fixture_setup(&wire);
    fixture->wire = wire;
    fixture->job.micro_batch = 10;
    struct run *run = &fixture->run;
    *run = (struct run){.log = &fixture->wire->log, .job = &fixture->job};
    assert_true(roster_open(&run->roster, false, workers, 0, TIME_S));
    assert_true(reachability_open(&run->membership.reachability, &run->roster));
    run->trainers = calloc(workers, sizeof *run->trainers);
    run->plan.limits = calloc(workers, sizeof *run->plan.limits);
    run->control_server = control_server_open(
        fixture->wire->server_link, &run->roster, &fixture->wire->log, 1, 2);
    assert_true(run->trainers && run->plan.limits && run->control_server);
    for (uint32_t i = 0; i < workers; i++)
        snprintf(run->roster.slots[i].host, sizeof run->roster.slots[i].host,
                 "h%u", i);
    *state = fixture;
}

int run_fixture_teardown(void **state) {
    struct run_fixture *fixture = *state;
    void *wire = fixture->wire;
    control_server_close(&fixture->run.control_server);
    layout_free(&fixture->run.plan.layout);
    reachability_close(&fixture->run.membership.reachability);
    roster_close(&fixture->run.roster);
    free(fixture->run.trainers);
    free(fixture->run.plan.limits);
    link_fixture_teardown(&wire);
    free(fixture);
    return 0;
}
