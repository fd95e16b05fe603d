/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/health.h"

#include "core/base/time.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t NOW = 1000 * TIME_S;

static int health_setup(void **state) {
    *state = health_open("worker", 1);
    return *state == NULL;
}

static int health_teardown(void **state) {
    health_close((struct health **)state);
    return 0;
}

FIXTURE(health_setup, health_teardown);

static struct health_report *begin(struct health *health, int64_t now) {
    struct health_report *report = health_begin(health, now);
    assert_non_null(report);
    return report;
}

static void add_deadline(struct health_report *report, const char *peer,
                         int64_t passed, int64_t whole) {
    struct deadline deadline = deadline_start(
        peer, "timeouts.join, or --join-timeout", NOW - passed, whole);
    health_add_deadline(report, &deadline, NOW);
}

TEST(the_deadline_of_which_the_most_has_passed_counts) {
    struct health_report *report = begin(*state, NOW);
    add_deadline(report, "a", 20 * TIME_S, 600 * TIME_S);
    add_deadline(report, "b", 5 * TIME_S, 30 * TIME_S);
    add_deadline(report, "c", 10 * TIME_S, 100 * TIME_S);
    health_end(*state);
    const struct health_report *read = health_lock(*state);
    assert_string_equal(read->deadline.peer, "b");
    assert_string_equal(read->deadline.limit, "timeouts.join");
    health_unlock(*state);
}

TEST(it_is_late_after_three_quarters) {
    struct health_report *report = begin(*state, NOW);
    assert_false(health_is_late(report, NOW));
    add_deadline(report, "a", 0, 100 * TIME_S);
    assert_false(health_is_late(report, NOW + 75 * TIME_S));
    assert_true(health_is_late(report, NOW + 76 * TIME_S));
    assert_true(health_is_late(report, NOW + 200 * TIME_S));
    health_end(*state);
}

TEST(a_report_begins_empty) {
    struct health_report *report = begin(*state, NOW);
    for (uint32_t i = 0; i < 100; i++)
        health_add_peer(report, (struct health_peer){.role = "ps", .index = i});
    add_deadline(report, "a", TIME_S, 2 * TIME_S);
    report->step = 7;
    assert_int_equal(report->num_peers, 100);
    assert_int_equal(report->peers[99].index, 99);
    health_end(*state);
    report = begin(*state, NOW + TIME_S);
    assert_int_equal(report->num_peers, 0);
    assert_int_equal(report->step, 0);
    assert_int_equal(report->rank, HEALTH_NONE);
    assert_true(report->deadline.until == TIME_NEVER);
    health_end(*state);
}

/* The role's thread goes on in both cases. */
TEST(no_report_is_due_within_its_interval_or_while_it_is_read) {
    begin(*state, NOW);
    health_end(*state);
    assert_null(health_begin(*state, NOW + TIME_MS));
    health_lock(*state);
    assert_null(health_begin(*state, NOW + TIME_S));
    health_unlock(*state);
    begin(*state, NOW + TIME_S);
    health_end(*state);
    assert_null(health_begin(NULL, NOW));
}

TEST(a_last_report_is_due_at_any_time_and_is_no_sign_of_life) {
    begin(*state, NOW)->step = 7;
    health_end(*state);
    health_leave_loop(*state, HEALTH_ENDING);
    begin(*state, NOW + TIME_MS);
    health_end(*state);
    health_leave_loop(*state, HEALTH_ENDING);
    struct health_report *report = health_begin_last(*state);
    assert_non_null(report);
    assert_int_equal(report->step, 0);
    health_end(*state);
    assert_int_equal(health_silence(*state, NOW + TIME_S), -1);
    assert_non_null(health_begin_last(*state));
    health_end(*state);
    assert_null(health_begin_last(NULL));
}

TEST(a_role_outside_its_loop_is_not_silent) {
    assert_int_equal(health_silence(*state, NOW), -1);
    begin(*state, NOW);
    health_end(*state);
    assert_int_equal(health_silence(*state, NOW), 0);
    assert_int_equal(health_silence(*state, NOW + 3 * TIME_S), 3 * TIME_S);
    health_leave_loop(*state, HEALTH_ENDING);
    assert_int_equal(health_silence(*state, NOW + 3 * TIME_S), -1);
    begin(*state, NOW + 4 * TIME_S);
    health_end(*state);
    assert_int_equal(health_silence(*state, NOW + 5 * TIME_S), TIME_S);
    health_leave_loop(NULL, HEALTH_ENDING);
}

TEST(a_role_outside_its_loop_is_not_late) {
    struct deadline deadline = {"a peer", "--join-timeout", NOW, NOW + TIME_S};
    struct health_report *report = begin(*state, NOW);
    report->state = HEALTH_FOLLOWING;
    health_add_deadline(report, &deadline, NOW);
    health_end(*state);
    health_leave_loop(*state, HEALTH_TRAINING);
    const struct health_report *seen = health_lock(*state);
    assert_int_equal(seen->state, HEALTH_TRAINING);
    assert_false(health_is_late(seen, NOW + TIME_S));
    health_unlock(*state);
    begin(*state, NOW + 1); /* due at once */
    health_end(*state);
}

static double sample(struct health *health, enum metric metric) {
    double value = health_sample(health_lock(health), metric);
    health_unlock(health);
    return value;
}

TEST(samples_are_those_of_the_last_report) {
    struct health_report *report = begin(*state, NOW);
    health_add_sample(report, METRIC_TRAIN_LOSS, HEALTH_NONE, 2);
    health_add_sample(report, METRIC_TEST_LOSS, HEALTH_NONE, NAN);
    for (int rank = 0; rank < 1000; rank++)
        health_add_sample(report, METRIC_TRAINER_STEP, rank, rank);
    assert_int_equal(report->num_samples, 1001);
    health_end(*state);
    assert_true(sample(*state, METRIC_TRAIN_LOSS) == 2);
    assert_true(isnan(sample(*state, METRIC_TEST_LOSS)));
    begin(*state, NOW + TIME_S);
    health_end(*state);
    assert_true(isnan(sample(*state, METRIC_TRAIN_LOSS)));
}

/* A message that came while the report was made. */
TEST(no_silence_is_below_zero) {
    struct health_report *report = begin(*state, NOW);
    health_add_sample(report, METRIC_CHIEF_SILENCE, HEALTH_NONE, -1e-5);
    health_add_sample(report, METRIC_TRAIN_LOSS, HEALTH_NONE, -1);
    health_end(*state);
    assert_true(sample(*state, METRIC_CHIEF_SILENCE) == 0);
    assert_true(sample(*state, METRIC_TRAIN_LOSS) == -1);
}

TEST(a_counter_never_falls) {
    static const double given[] = {5, 3, 7}, expected[] = {5, 5, 7};
    for (int i = 0; i < 3; i++) {
        struct health_report *report = begin(*state, NOW + i * TIME_S);
        health_add_sample(report, METRIC_STEPS, HEALTH_NONE, given[i]);
        health_add_sample(report, METRIC_TRAINERS, HEALTH_NONE, given[i]);
        health_end(*state);
        assert_true(sample(*state, METRIC_STEPS) == expected[i]);
        assert_true(sample(*state, METRIC_TRAINERS) == given[i]);
    }
}

static int64_t awaited_since(struct health *health, int64_t now,
                             const char *text) {
    struct health_report *report = begin(health, now);
    snprintf(report->waiting_for, sizeof report->waiting_for, "%s", text);
    health_end(health);
    int64_t since = health_lock(health)->waiting_since;
    health_unlock(health);
    return since;
}

TEST(a_wait_is_as_old_as_the_first_report_of_it) {
    assert_int_equal(awaited_since(*state, NOW, "ps 0"), NOW);
    assert_int_equal(awaited_since(*state, NOW + 2 * TIME_S, "ps 0"), NOW);
    assert_int_equal(awaited_since(*state, NOW + 4 * TIME_S, "ps 1"),
                     NOW + 4 * TIME_S);
    assert_int_equal(awaited_since(*state, NOW + 6 * TIME_S, ""), 0);
    assert_int_equal(awaited_since(*state, NOW + 8 * TIME_S, "ps 1"),
                     NOW + 8 * TIME_S);
}

TEST(an_answer_is_for_those_who_asked_before_it) {
    assert_false(health_is_asked(*state));
    uint64_t first = health_ask(*state);
    assert_true(health_is_asked(*state));
    assert_null(health_take_answer(*state, first));
    health_answer(*state, strdup("one"));
    assert_false(health_is_asked(*state));
    uint64_t second = health_ask(*state);
    char *text = health_take_answer(*state, first);
    assert_string_equal(text, "one");
    free(text);
    assert_null(health_take_answer(*state, second));
    health_answer(*state, NULL); /* no memory */
    assert_null(health_take_answer(*state, second));
}

TEST(without_health_nothing_is_noted) {
    health_note(NULL, EVENT_JOINED, 0, NULL, 0);
    struct event events[EVENT_RING_SIZE];
    health_note(*state, EVENT_CLOSED, 3, NULL, 0);
    assert_int_equal(health_events(*state, events), 1);
    assert_int_equal(events[0].number, 3);
}
