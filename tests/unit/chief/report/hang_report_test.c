/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct metrics_fixture *measured

#include "chief/report/hang_report.h"

#include "core/base/time.h"
#include "tests/lib/metrics_fixture.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t at(double seconds) {
    return time_from_seconds(100 + seconds);
}

/* The chief has asked two trainers, and both have joined. */
static struct run_hang_report *asked(struct metrics_fixture *measured) {
    struct roster *roster = &measured->run.roster;
    roster->count = roster->num_ranks = 2;
    for (uint32_t r = 0; r < 2; r++)
        roster->slots[r] = (struct roster_slot){.role = CLUSTER_WORKER,
                                                .index = r,
                                                .rank = r,
                                                .state = ROSTER_HELD,
                                                .last_seen = at(-1)};
    measured->run.hang_report = (struct run_hang_report){
        .id = 7,
        .asked_at = at(0),
        .answers = calloc(4, sizeof(struct process_report *))};
    return &measured->run.hang_report;
}

static void answer(struct metrics_fixture *measured, uint32_t rank,
                   uint64_t id) {
    Capstan__Report report = CAPSTAN__REPORT__INIT;
    report.id = id;
    report.state = "training";
    report.waiting_for = "ps 0";
    report.waiting = 12.25;
    hang_report_receive(&measured->run, &measured->run.roster.slots[rank],
                        &report);
}

static void assert_line_of(const struct metrics_fixture *measured,
                           uint32_t rank, const char *expected) {
    char text[PROCESS_REPORT_LINE];
    struct process_report report;
    const json_t *processes =
        json_object_get(measured->run.hang_report.newest, "processes");
    assert_int_equal(json_array_size(processes), 2);
    assert_true(
        process_report_of_json(&report, json_array_get(processes, rank)));
    process_report_line(&report, text, sizeof text);
    assert_string_equal(text, expected);
}

FIXTURE(metrics_fixture_setup, metrics_fixture_teardown);

TEST(it_is_complete_with_the_last_answer) {
    struct run_hang_report *hang = asked(measured);
    answer(measured, 0, 7);
    hang_report_step(&measured->run, at(0.5));
    assert_null(hang->newest);
    answer(measured, 1, 7);
    hang_report_step(&measured->run, at(0.6));
    assert_int_equal(hang->asked_at, 0);
    assert_line_of(measured, 1,
                   "worker 1 (rank 1): training, step 0, waiting 12.2 s for "
                   "ps 0");
    hang_report_close(&measured->run);
}

TEST(who_is_not_there_is_not_waited_for) {
    struct run_hang_report *hang = asked(measured);
    measured->run.roster.slots[1].state = ROSTER_ABSENT;
    answer(measured, 0, 7);
    hang_report_step(&measured->run, at(0.1));
    assert_int_equal(hang->asked_at, 0);
    assert_line_of(measured, 1, "worker 1 (rank 1): has not joined");
    hang_report_close(&measured->run);
}

TEST(who_has_not_answered_after_two_seconds_is_named) {
    struct run_hang_report *hang = asked(measured);
    answer(measured, 0, 7);
    answer(measured, 1, 6); /* to the last request */
    hang_report_step(&measured->run, at(1.9));
    assert_null(hang->newest);
    hang_report_step(&measured->run, at(2));
    assert_line_of(measured, 1,
                   "worker 1 (rank 1): did not answer within 2.0 s; last "
                   "heard from 3.0 s ago");
    answer(measured, 1, 7); /* too late */
    assert_null(hang->answers[1]);
    hang_report_close(&measured->run);
}

TEST(a_second_answer_takes_the_place_of_the_first) {
    asked(measured);
    answer(measured, 0, 7);
    answer(measured, 0, 7);
    hang_report_step(&measured->run, at(2));
    assert_line_of(measured, 0,
                   "worker 0 (rank 0): training, step 0, waiting 12.2 s for "
                   "ps 0");
    hang_report_close(&measured->run);
}

/* Of a rack that is lost they are found within one heartbeat, not at once. */
TEST(members_that_are_silent_together_have_one_report) {
    static const struct log log = {.silent = true};
    struct run_hang_report *hang = asked(measured);
    measured->run.log = &log;
    answer(measured, 0, 7);
    hang_report_step(&measured->run, at(2));
    assert_int_equal(hang->logged_at, 0);
    for (unsigned i = 0; i < 3; i++) {
        measured->run.membership.silence_passed = true;
        hang_report_step(&measured->run, at(2.5 + 0.1 * i));
        assert_false(measured->run.membership.silence_passed);
        assert_int_equal(hang->logged_at, at(2.5));
    }
    measured->run.membership.silence_passed = true;
    hang_report_step(&measured->run, at(13));
    assert_int_equal(hang->logged_at, at(13));
    measured->run.phase = RUN_STOPPING;
    measured->run.code = FAILURE_PEER_SILENT;
    hang_report_step(&measured->run, at(14)); /* it is in the log */
    assert_int_equal(hang->logged_at, at(13));
    hang_report_close(&measured->run);
}
