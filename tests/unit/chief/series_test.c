/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/series.h"

#include "chief/run.h"
#include "proto/base/time.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static const struct log silent = {.quiet = true};

struct fixture {
    struct run run;
    struct job job;
    struct series series;
};

/* A run of 2 workers and 1 ps, of whom nobody is here; opened at 0. */
static int setup(void **state) {
    static struct fixture fixture;
    memset(&fixture, 0, sizeof fixture);
    struct run *run = &fixture.run;
    fixture.job.timeouts = (struct job_timeouts){.peer = 3, .stop = 5};
    fixture.series = (struct series){.more = {true, true}, .limit = 60};
    run->job = &fixture.job;
    run->series = &fixture.series;
    run->log = &silent;
    run->progress.log = &silent;
    *state = &fixture;
    if (!roster_open(&run->roster, false, 2, 1, 3 * TIME_S))
        return -1;
    run->trainers = calloc(2, sizeof *run->trainers);
    run->post = post_open(NULL, &run->roster, &silent, 1, 2);
    return run->post ? 0 : -1;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    free(fixture->run.trainers);
    post_close(&fixture->run.post);
    roster_close(&fixture->run.roster);
    return 0;
}

static void others_follow_what_succeeds_and_what_fails_on_its_own(
    void **state) {
    struct fixture *fixture = *state;
    const struct run *run = &fixture->run;
    assert_true(series_again(run, STATUS_OK) == 8);
    assert_true(series_again(run, STATUS_FAILED) == 8);
    assert_true(series_again(run, STATUS_RETRY) == 0);
    assert_true(series_again(run, STATUS_CONFIG) == 0);
    assert_true(series_again(run, STATUS_TERMINATED) == 0);
    fixture->series.more[true] = false;
    assert_true(series_again(run, STATUS_OK) == 0);
    assert_true(series_again(run, STATUS_FAILED) == 8);
    fixture->series.more[false] = false;
    assert_true(series_again(run, STATUS_FAILED) == 0);
    fixture->run.series = NULL;
    assert_true(series_again(run, STATUS_OK) == 0);
}

/* Before the first run members may come, go and come again. */
static void who_is_gone_matters_once_all_have_been_here(void **state) {
    struct fixture *fixture = *state;
    fixture->series.first = true;
    assert_false(series_needs(&fixture->run));
    fixture->run.phase = RUN_READYING;
    assert_true(series_needs(&fixture->run));
    fixture->series.first = false;
    fixture->run.phase = RUN_JOINING;
    assert_true(series_needs(&fixture->run));
    fixture->run.series = NULL;
    assert_false(series_needs(&fixture->run));
}

static void who_does_not_come_back_is_named_in_time(void **state) {
    struct fixture *fixture = *state;
    struct run *run = &fixture->run;
    series_step(run, 3 * TIME_S - 1);
    assert_int_equal(run->phase, RUN_JOINING);
    series_step(run, 3 * TIME_S);
    assert_int_equal(run->status, STATUS_RETRY);
    assert_non_null(strstr(run->text, "did not come back"));
    assert_non_null(strstr(run->text, "worker 0, worker 1, ps 0"));
}

static void the_first_run_waits_as_long_as_any(void **state) {
    struct fixture *fixture = *state;
    fixture->series.first = true;
    series_step(&fixture->run, 3600 * TIME_S);
    assert_int_equal(fixture->run.phase, RUN_JOINING);
}

static void a_run_may_take_its_limit_from_when_all_are_here(void **state) {
    struct fixture *fixture = *state;
    struct run *run = &fixture->run;
    run->phase = RUN_READYING;
    series_step(run, 100 * TIME_S);
    run->phase = RUN_TRAINING;
    series_step(run, 160 * TIME_S);
    assert_int_equal(run->phase, RUN_TRAINING);
    series_step(run, 160 * TIME_S + 1);
    assert_int_equal(run->status, STATUS_FAILED);
    assert_string_equal(run->text, "not over after 60 s (compare.limit)");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(others_follow_what_succeeds_and_what_fails_on_its_own),
        TEST(who_is_gone_matters_once_all_have_been_here),
        TEST(who_does_not_come_back_is_named_in_time),
        TEST(the_first_run_waits_as_long_as_any),
        TEST(a_run_may_take_its_limit_from_when_all_are_here),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
