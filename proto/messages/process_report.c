/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/messages/process_report.h"

#include "core/base/time.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { EVENTS_OF_LINE = 6 };

static void report_take_events(struct process_report *report,
                               struct health *health, int64_t now) {
    struct event events[EVENT_RING_SIZE];
    report->num_events = health_events(health, events);
    for (unsigned i = 0; i < report->num_events; i++) {
        struct process_report_event *event = &report->events[i];
        event->age = fmax(0, time_to_seconds(now - events[i].time));
        event_text(&events[i], event->text, sizeof event->text);
    }
}

static void take_deadline(struct process_report *report,
                          const struct deadline *deadline, int64_t now) {
    if (deadline->until == TIME_NEVER || !report->waiting_for[0])
        return;
    size_t length = strlen(deadline->peer);
    bool other = strncmp(report->waiting_for, deadline->peer, length) != 0 ||
                 isdigit((unsigned char)report->waiting_for[length]);
    snprintf(report->deadline, sizeof report->deadline,
             "gives up%s%.48s in %.1f s (%.32s)", other ? " on " : "",
             other ? deadline->peer : "",
             fmax(0, time_to_seconds(deadline->until - now)), deadline->limit);
}

void process_report_of_health(struct process_report *report,
                              struct health *health, int64_t now) {
    const struct health_report *from = health_lock(health);
    *report = (struct process_report){
        .pid = (uint32_t)getpid(), .rank = from->rank, .step = from->step};
    if (from->index == HEALTH_NONE || !strcmp(from->role, "chief"))
        snprintf(report->name, sizeof report->name, "%s", from->role);
    else
        snprintf(report->name, sizeof report->name, "%s %d", from->role,
                 from->index);
    snprintf(report->state, sizeof report->state, "%s",
             health_state_name(from->state));
    snprintf(report->waiting_for, sizeof report->waiting_for, "%s",
             from->waiting_for);
    if (from->waiting_for[0])
        report->waiting = fmax(0, time_to_seconds(now - from->waiting_since));
    take_deadline(report, &from->deadline, now);
    health_unlock(health);
    report_take_events(report, health, now);
}

void process_report_send(struct health *health, uint64_t id, int64_t now,
                         void (*send)(void *context, Capstan__Control *control),
                         void *context) {
    struct process_report report;
    Capstan__Report message = CAPSTAN__REPORT__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    Capstan__Report__Event events[EVENT_RING_SIZE], *list[EVENT_RING_SIZE];
    process_report_of_health(&report, health, now);
    for (unsigned i = 0; i < report.num_events; i++) {
        capstan__report__event__init(&events[i]);
        events[i].age = report.events[i].age;
        events[i].text = report.events[i].text;
        list[i] = &events[i];
    }
    message.id = id;
    message.state = report.state;
    message.step = report.step;
    message.waiting_for = report.waiting_for;
    message.waiting = report.waiting;
    message.deadline = report.deadline;
    message.n_events = report.num_events;
    message.events = list;
    control.body_case = CAPSTAN__CONTROL__BODY_REPORT;
    control.report = &message;
    send(context, &control);
}

/* It is printed where people read, perhaps on a terminal, which may obey U+0080
 * to U+009F too. */
static bool is_plain(const char *text, size_t size) {
    if (strlen(text) >= size)
        return false;
    for (const unsigned char *at = (const unsigned char *)text; *at; at++)
        if (*at < ' ' || *at == 0x7f ||
            (at[0] == 0xc2 && at[1] >= 0x80 && at[1] <= 0x9f))
            return false;
    return true;
}

static bool is_duration(double seconds) {
    return seconds >= 0 && isfinite(seconds);
}

enum status process_report_check(const Capstan__Report *message,
                                 struct failure *why) {
    const struct process_report *limits = NULL;
    if (message->n_events > EVENT_RING_SIZE)
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "a report of %zu events (at most %d)",
                           message->n_events, EVENT_RING_SIZE);
    if (!is_plain(message->state, sizeof limits->state) ||
        !is_plain(message->waiting_for, sizeof limits->waiting_for) ||
        !is_plain(message->deadline, sizeof limits->deadline))
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "a report whose text is too long or not plain");
    if (!is_duration(message->waiting))
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "a report of a wait for a time that is none");
    for (size_t i = 0; i < message->n_events; i++)
        if (!is_duration(message->events[i]->age) ||
            !is_plain(message->events[i]->text, EVENT_TEXT))
            return status_fail(why, FAILURE_BAD_MESSAGE,
                               "a report whose event %zu has no time or no "
                               "plain text",
                               i);
    return STATUS_OK;
}

void process_report_take(struct process_report *report,
                         const Capstan__Report *message) {
    report->step = message->step;
    report->waiting = message->waiting;
    snprintf(report->state, sizeof report->state, "%s", message->state);
    snprintf(report->waiting_for, sizeof report->waiting_for, "%s",
             message->waiting_for);
    snprintf(report->deadline, sizeof report->deadline, "%s",
             message->deadline);
    report->num_events = (unsigned)message->n_events;
    for (unsigned i = 0; i < report->num_events; i++) {
        report->events[i].age = message->events[i]->age;
        snprintf(report->events[i].text, EVENT_TEXT, "%s",
                 message->events[i]->text);
    }
}

/* TEXT, of at most 511 bytes; JSON has no bytes that are not UTF-8. */
static json_t *plain_text_json(const char *text) {
    char plain[512];
    json_t *string = json_string(text);
    if (string)
        return string;
    snprintf(plain, sizeof plain, "%s", text);
    for (char *at = plain; *at; at++)
        if ((unsigned char)*at >= 0x80)
            *at = '?';
    return json_string(plain);
}

static json_t *text_or_null(const char *text) {
    return text[0] ? plain_text_json(text) : json_null();
}

static json_t *known_json(const struct process_report *report) {
    json_t *events = json_array();
    for (unsigned i = 0; i < report->num_events; i++)
        json_array_append_new(
            events,
            json_pack("{s:f, s:o}", "seconds_ago", report->events[i].age,
                      "text", plain_text_json(report->events[i].text)));
    return json_pack("{s:o, s:I, s:o, s:f, s:o, s:o}", "state",
                     plain_text_json(report->state), "step",
                     (json_int_t)report->step, "waiting_for",
                     text_or_null(report->waiting_for), "waiting_seconds",
                     report->waiting, "deadline",
                     text_or_null(report->deadline), "events", events);
}

json_t *process_report_json(const struct process_report *report) {
    json_t *object =
        json_pack("{s:s, s:o, s:o, s:o, s:o}", "process", report->name,
                  "address", text_or_null(report->address), "pid",
                  report->pid ? json_integer(report->pid) : json_null(), "rank",
                  report->rank < 0 ? json_null() : json_integer(report->rank),
                  "missing", text_or_null(report->missing));
    json_t *known = report->missing[0] ? NULL : known_json(report);
    if (known)
        json_object_update(object, known);
    json_decref(known);
    return object;
}

/* Of what another program has sent only what is plain. */
static void copy_json_text(char *to, size_t size, const json_t *object,
                           const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    snprintf(to, size, "%s", text && is_plain(text, size) ? text : "");
}

bool process_report_of_json(struct process_report *report,
                            const json_t *object) {
    const json_t *rank = json_object_get(object, "rank");
    const json_t *event, *events = json_object_get(object, "events");
    size_t i;
    *report = (struct process_report){
        .rank = json_is_integer(rank) ? json_integer_value(rank) : HEALTH_NONE,
        .pid = (uint32_t)json_integer_value(json_object_get(object, "pid")),
        .step = (uint64_t)json_integer_value(json_object_get(object, "step")),
        .waiting =
            json_number_value(json_object_get(object, "waiting_seconds"))};
    copy_json_text(report->name, sizeof report->name, object, "process");
    copy_json_text(report->address, sizeof report->address, object, "address");
    copy_json_text(report->missing, sizeof report->missing, object, "missing");
    copy_json_text(report->state, sizeof report->state, object, "state");
    copy_json_text(report->waiting_for, sizeof report->waiting_for, object,
                   "waiting_for");
    copy_json_text(report->deadline, sizeof report->deadline, object,
                   "deadline");
    json_array_foreach(events, i, event) {
        if (i == EVENT_RING_SIZE)
            break;
        report->num_events = (unsigned)i + 1;
        report->events[i].age =
            json_number_value(json_object_get(event, "seconds_ago"));
        copy_json_text(report->events[i].text, EVENT_TEXT, event, "text");
    }
    return report->name[0];
}

struct line {
    char *text;
    size_t used, size;
};

static void add(struct line *line, const char *format, ...) PRINTF_LIKE(2, 3);
static void add(struct line *line, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (line->used < line->size)
        line->used +=
            (size_t)vsnprintf(line->text + line->used, line->size - line->used,
                              format, arguments);
    va_end(arguments);
}

static void add_known(struct line *line, const struct process_report *report) {
    add(line, "%s, step %llu, ", report->state,
        (unsigned long long)report->step);
    if (report->waiting_for[0])
        add(line, "waiting %.1f s for %s", report->waiting,
            report->waiting_for);
    else
        add(line, "waiting for nothing");
    if (report->deadline[0])
        add(line, ", %s", report->deadline);
    for (unsigned i = 0; i < report->num_events && i < EVENTS_OF_LINE; i++)
        add(line, "%s %s %.1f s ago",
            i ? "," : "; last:", report->events[i].text, report->events[i].age);
}

void process_report_line(const struct process_report *report, char *text,
                         size_t size) {
    struct line line = {text, 0, size};
    const char *between = " (";
    add(&line, "%s", report->name);
    if (report->rank >= 0) {
        add(&line, "%srank %lld", between, (long long)report->rank);
        between = ", ";
    }
    if (report->address[0]) {
        add(&line, "%s%s", between, report->address);
        between = ", ";
    }
    if (report->pid) {
        add(&line, "%spid %u", between, report->pid);
        between = ", ";
    }
    add(&line, between[0] == ',' ? "): " : ": ");
    if (report->missing[0])
        add(&line, "%s", report->missing);
    else
        add_known(&line, report);
}

void process_report_log(const struct log *log, struct health *health,
                        int64_t now) {
    struct process_report report;
    char text[PROCESS_REPORT_LINE];
    if (!health)
        return;
    process_report_of_health(&report, health, now);
    process_report_line(&report, text, sizeof text);
    log_warning(log, "hang_report", "%s", text);
}

json_t *process_report_object(json_t *array) {
    return json_pack("{s:o}", "processes", array);
}

json_t *process_report_of_roles(struct health *const *healths, unsigned count,
                                int64_t now) {
    json_t *processes = json_array();
    for (unsigned i = 0; i < count; i++) {
        struct process_report report;
        process_report_of_health(&report, healths[i], now);
        json_array_append_new(processes, process_report_json(&report));
    }
    return process_report_object(processes);
}

bool process_report_each_line(const json_t *object,
                              void (*line)(void *context, const char *text),
                              void *context) {
    char text[PROCESS_REPORT_LINE];
    struct process_report report;
    const json_t *process, *array = json_object_get(object, "processes");
    size_t i;
    if (!json_array_size(array))
        return false;
    json_array_foreach(array, i, process) {
        if (!process_report_of_json(&report, process))
            return false;
        process_report_line(&report, text, sizeof text);
        line(context, text);
    }
    return true;
}
