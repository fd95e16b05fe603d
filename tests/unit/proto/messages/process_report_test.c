/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/messages/process_report.h"

#include "core/base/time.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int64_t NOW = 1000 * TIME_S;

/* A worker that waits for its ps since 12.5 s. */
static int report_setup(void **state) {
    struct health *health = health_open("worker", 1);
    struct health_report *report = health_begin(health, NOW);
    struct deadline deadline =
        deadline_start("ps 0 at a:1", "timeouts.step, or another",
                       NOW - 25 * TIME_S / 2, 30 * TIME_S);
    report->state = HEALTH_TRAINING;
    report->rank = 2;
    report->step = 311;
    snprintf(report->waiting_for, sizeof report->waiting_for, "ps 0 at a:1");
    report->waiting_since = deadline.since;
    health_add_deadline(report, &deadline, NOW);
    health_end(health);
    health_note(health, EVENT_PUSHED, 312, "ps", 0);
    *state = health;
    return 0;
}

static int report_teardown(void **state) {
    health_close((struct health **)state);
    return 0;
}

FIXTURE(report_setup, report_teardown);

static void assert_line(const struct process_report *report) {
    char text[PROCESS_REPORT_LINE], expected[256];
    process_report_line(report, text, sizeof text);
    snprintf(expected, sizeof expected,
             "worker 1 (rank 2, pid %d): training, step 311, waiting 12.5 s "
             "for ps 0 at a:1, gives up in 17.5 s "
             "(timeouts.step); last: began to push step 312 to ps 0 ",
             (int)getpid());
    text[strlen(expected)] = 0; /* the event's age is the machine's */
    assert_string_equal(text, expected);
}

TEST(a_line_says_what_is_awaited_since_when_and_what_was_last) {
    struct process_report report;
    process_report_of_health(&report, *state, NOW);
    assert_line(&report);
}

TEST(one_that_waits_for_nothing_says_so) {
    struct process_report report;
    char text[PROCESS_REPORT_LINE];
    assert_non_null(health_begin(*state, NOW + TIME_S));
    health_end(*state);
    process_report_of_health(&report, *state, NOW + TIME_S);
    process_report_line(&report, text, sizeof text);
    assert_contains(text, "waiting for nothing; last: ");
    assert_null(strstr(text, "gives up"));
}

static void keep(void *context, Capstan__Control *control) {
    size_t size = capstan__control__get_packed_size(control);
    unsigned char *bytes = malloc(size);
    capstan__control__pack(control, bytes);
    *(Capstan__Control **)context = capstan__control__unpack(NULL, size, bytes);
    free(bytes);
}

TEST(a_message_brings_the_same_facts) {
    Capstan__Control *control = NULL;
    struct process_report report = {.rank = 2, .pid = (uint32_t)getpid()};
    process_report_send(*state, 7, NOW, keep, &control);
    assert_non_null(control);
    assert_int_equal(control->report->id, 7);
    assert_ok(process_report_check(control->report, &failure));
    process_report_take(&report, control->report);
    snprintf(report.name, sizeof report.name, "worker 1");
    assert_line(&report);
    capstan__control__free_unpacked(control, NULL);
}

TEST(json_brings_the_same_facts) {
    struct process_report report, back;
    process_report_of_health(&report, *state, NOW);
    json_t *object = process_report_json(&report);
    assert_true(process_report_of_json(&back, object));
    assert_line(&back);
    json_decref(object);
}

TEST(a_process_that_did_not_answer_has_nothing_else) {
    struct process_report report = {.name = "ps 0",
                                    .address = "a:1",
                                    .rank = HEALTH_NONE,
                                    .missing = "did not answer"};
    char text[PROCESS_REPORT_LINE];
    process_report_line(&report, text, sizeof text);
    assert_string_equal(text, "ps 0 (a:1): did not answer");
    json_t *object = process_report_json(&report);
    assert_null(json_object_get(object, "events"));
    json_decref(object);
}

/* As JSON has no other bytes; names of hosts and folders may. */
TEST(what_is_not_utf8_hides_no_process) {
    struct process_report back, report = {.name = "worker 0",
                                          .address = "h\xff:1",
                                          .rank = HEALTH_NONE,
                                          .state = "training",
                                          .waiting_for = "a file in b\xe9",
                                          .num_events = 1};
    char text[PROCESS_REPORT_LINE];
    snprintf(report.events[0].text, EVENT_TEXT, "closed\xc3");
    json_t *object = process_report_json(&report);
    assert_true(process_report_of_json(&back, object));
    process_report_line(&back, text, sizeof text);
    assert_string_equal(text, "worker 0 (h?:1): training, step 0, waiting 0.0 "
                              "s for a file in b?; last: closed? 0.0 s ago");
    json_decref(object);
}

/* A good message, which each case below spoils. */
static Capstan__Report__Event events[EVENT_RING_SIZE + 1];
static Capstan__Report__Event *list[EVENT_RING_SIZE + 1];

static Capstan__Report good(void) {
    Capstan__Report message = CAPSTAN__REPORT__INIT;
    for (int i = 0; i <= EVENT_RING_SIZE; i++) {
        capstan__report__event__init(&events[i]);
        events[i].text = "closed round 3";
        list[i] = &events[i];
    }
    message.state = "training";
    message.n_events = EVENT_RING_SIZE;
    message.events = list;
    return message;
}

static void assert_refused(const Capstan__Report *message, const char *part) {
    assert_error(process_report_check(message, &failure), FAILURE_BAD_MESSAGE);
    assert_contains(failure.text, part);
}

TEST(a_message_that_no_process_sends_is_refused) {
    static char huge[1 << 20];
    Capstan__Report message = good();
    memset(huge, 'x', sizeof huge - 1);
    assert_ok(process_report_check(&message, &failure));
    message.n_events++;
    assert_refused(&message, "65 events (at most 64)");
    message = good();
    message.waiting_for = huge;
    assert_refused(&message, "text is too long");
    message = good();
    message.state = "a state that is not one";
    assert_refused(&message, "text is too long");
    message = good();
    message.deadline = "\x1b[2J";
    assert_refused(&message, "not plain");
    message.deadline = "\xc2\x9b"
                       "2J"; /* the same in one character */
    assert_refused(&message, "not plain");
    message = good();
    message.waiting = NAN;
    assert_refused(&message, "a time that is none");
    message.waiting = -1;
    assert_refused(&message, "a time that is none");
    message = good();
    events[63].text = huge;
    assert_refused(&message, "event 63");
    message = good();
    events[5].text = "two\nlines";
    assert_refused(&message, "event 5");
    message = good();
    events[0].age = INFINITY;
    assert_refused(&message, "event 0");
}

static void count_line(void *count, const char *text) {
    for (; *text; text++)
        assert_true((unsigned char)*text >= ' ');
    ++*(int *)count;
}

/* `capstan status` may ask any server. */
TEST(json_of_another_program_moves_no_cursor) {
    int lines = 0;
    json_t *object = json_pack(
        "{s:[{s:s, s:s, s:i, s:[i, {s:s}]}, {s:s, s:s}]}", "processes",
        "process", "worker 0", "waiting_for", "\x1b[2J\n", "pid", 3, "events",
        1, "text", "\x1b]0;x\a", "process", "ps 0", "missing", "\r");
    assert_non_null(object);
    assert_true(process_report_each_line(object, count_line, &lines));
    assert_int_equal(lines, 2);
    json_decref(object);
    object = json_pack("{s:[i]}", "processes", 1);
    assert_false(process_report_each_line(object, count_line, &lines));
    json_decref(object);
    assert_false(process_report_each_line(NULL, count_line, &lines));
}
