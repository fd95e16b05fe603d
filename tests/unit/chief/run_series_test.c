/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "chief/run_series.h"

#include "chief/run.h"
#include "core/base/time.h"
#include "tests/lib/test.h"

static const struct log silent = {.quiet = true};

struct fixture {
    struct run run;
    struct job job;
    struct run_series series;
};

/* A run of 2 workers and 1 ps, of whom nobody is here; opened at 0. */
static int setup(void **state) {
    static struct fixture fixture;
    memset(&fixture, 0, sizeof fixture);
    struct run *run = &fixture.run;
    fixture.job.timeouts = (struct job_timeouts){.peer = 3, .stop = 5};
    fixture.series =
        (struct run_series){.continues = {true, true}, .limit = 60};
    run->job = &fixture.job;
    run->series = &fixture.series;
    run->log = &silent;
    run->metrics.progress.log = &silent;
    *state = &fixture;
    if (!roster_open(&run->roster, false, 2, 1, 3 * TIME_S) ||
        !reachability_open(&run->membership.reachability, &run->roster))
        return -1;
    run->trainers = calloc(2, sizeof *run->trainers);
    run->control_server =
        control_server_open(NULL, &run->roster, &silent, 1, 2);
    return run->control_server ? 0 : -1;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    free(fixture->run.trainers);
    control_server_close(&fixture->run.control_server);
    reachability_close(&fixture->run.membership.reachability);
    roster_close(&fixture->run.roster);
    return 0;
}

FIXTURE(setup, teardown);

TEST(the_series_continues_after_success_or_an_independent_failure) {
    const struct run *run = &fixture->run;
    assert_true(run_series_next_within(run, STATUS_OK) == 8);
    assert_true(run_series_next_within(run, STATUS_FAILED) == 8);
    assert_true(run_series_next_within(run, STATUS_RETRY) == 0);
    assert_true(run_series_next_within(run, STATUS_CONFIG) == 0);
    assert_true(run_series_next_within(run, STATUS_TERMINATED) == 0);
    fixture->series.continues[true] = false;
    assert_true(run_series_next_within(run, STATUS_OK) == 0);
    assert_true(run_series_next_within(run, STATUS_FAILED) == 8);
    fixture->series.continues[false] = false;
    assert_true(run_series_next_within(run, STATUS_FAILED) == 0);
    fixture->run.series = NULL;
    assert_true(run_series_next_within(run, STATUS_OK) == 0);
}

/* Before the first run members may come, go and come again. */
TEST(a_missing_member_counts_once_all_have_joined) {
    fixture->series.first = true;
    assert_false(run_series_requires_all(&fixture->run));
    fixture->run.phase = RUN_READYING;
    assert_true(run_series_requires_all(&fixture->run));
    fixture->series.first = false;
    fixture->run.phase = RUN_JOINING;
    assert_true(run_series_requires_all(&fixture->run));
    fixture->run.series = NULL;
    assert_false(run_series_requires_all(&fixture->run));
}

TEST(a_member_that_does_not_return_is_named_in_time) {
    struct run *run = &fixture->run;
    run_series_step(run, 3 * TIME_S - 1);
    assert_int_equal(run->phase, RUN_JOINING);
    run_series_step(run, 3 * TIME_S);
    assert_int_equal(run->code, FAILURE_MEMBER_ABSENT);
    assert_contains(run->text, "did not come back");
    assert_contains(run->text, "worker 0, worker 1, ps 0");
}

TEST(the_first_run_waits_as_long_as_later_runs) {
    fixture->series.first = true;
    run_series_step(&fixture->run, 3600 * TIME_S);
    assert_int_equal(fixture->run.phase, RUN_JOINING);
}

TEST(a_runs_time_limit_starts_when_all_members_are_present) {
    struct run *run = &fixture->run;
    run->phase = RUN_READYING;
    run_series_step(run, 100 * TIME_S);
    run->phase = RUN_TRAINING;
    run_series_step(run, 160 * TIME_S);
    assert_int_equal(run->phase, RUN_TRAINING);
    run_series_step(run, 160 * TIME_S + 1);
    assert_int_equal(run->code, FAILURE_TIME_LIMIT);
    assert_string_equal(run->text, "not over after 60 s (compare.limit)");
}
