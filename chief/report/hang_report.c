/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/hang_report.h"

#include "chief/run.h"
#include "core/base/time.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t ANSWER_LIMIT = HEALTH_ANSWER_S * TIME_S;
/* The answers are complete when the deadline passes. */
static const int64_t ASK_BEFORE = ANSWER_LIMIT + TIME_S / 2;
/* A report that is older says nothing about the end of a run. */
static const int64_t FRESH = 10 * TIME_S;

static void clear_answers(struct run *run) {
    struct run_hang_report *hang = &run->hang_report;
    for (uint32_t i = 0; hang->answers && i < run->roster.count; i++) {
        free(hang->answers[i]);
        hang->answers[i] = NULL;
    }
}

static void ask(struct run *run, int64_t now) {
    struct run_hang_report *hang = &run->hang_report;
    Capstan__ReportRequest request = CAPSTAN__REPORT_REQUEST__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    if (hang->asked_at)
        return;
    if (!hang->answers)
        hang->answers = calloc(run->roster.count + 1, sizeof *hang->answers);
    clear_answers(run);
    hang->asked_at = now;
    request.id = ++hang->id;
    control.body_case = CAPSTAN__CONTROL__BODY_REPORT_REQUEST;
    control.report_request = &request;
    control_server_broadcast(run->control_server, CLUSTER_ROLES, &control);
}

void hang_report_print(struct run *run, int64_t now) {
    run->hang_report.prints = true;
    ask(run, now);
}

void hang_report_receive(struct run *run, const struct roster_slot *slot,
                         const Capstan__Report *report) {
    struct run_hang_report *hang = &run->hang_report;
    size_t i = (size_t)(slot - run->roster.slots);
    if (!hang->asked_at || report->id != hang->id || !hang->answers)
        return; /* it comes too late */
    if (!hang->answers[i])
        hang->answers[i] = calloc(1, sizeof *hang->answers[i]);
    if (hang->answers[i])
        process_report_take(hang->answers[i], report);
}

/* Has every member answered? */
static bool all_have_answered(const struct run *run) {
    const struct run_hang_report *hang = &run->hang_report;
    for (uint32_t i = 0; hang->answers && i < run->roster.count; i++)
        if (run->roster.slots[i].state == ROSTER_HELD && !hang->answers[i])
            return false;
    return true;
}

static void tell_missing(const struct run *run, const struct roster_slot *slot,
                         int64_t now, char *text, size_t size) {
    const struct run_hang_report *hang = &run->hang_report;
    double silent = time_to_seconds(now - slot->last_seen);
    if (slot->state == ROSTER_ABSENT)
        snprintf(text, size, "has not joined");
    else if (slot->state == ROSTER_VACATED)
        snprintf(text, size,
                 "has left the run, or was declared dead; last heard from "
                 "%.1f s ago",
                 silent);
    else if (hang->asked_at)
        snprintf(text, size,
                 "did not answer within %.1f s; last heard from %.1f s ago",
                 time_to_seconds(now - hang->asked_at), silent);
    else
        snprintf(text, size, "was not asked; last heard from %.1f s ago",
                 silent);
}

static json_t *describe_member(const struct run *run, uint32_t i, int64_t now) {
    const struct roster_slot *slot = &run->roster.slots[i];
    const struct process_report *answer =
        run->hang_report.answers ? run->hang_report.answers[i] : NULL;
    struct process_report report = {0};
    if (answer)
        report = *answer;
    roster_name(slot, report.name, sizeof report.name);
    report.rank =
        slot->rank == ROSTER_NO_RANK ? HEALTH_NONE : (int64_t)slot->rank;
    if (slot->state != ROSTER_ABSENT) {
        snprintf(report.address, sizeof report.address, "%s",
                 slot->port ? slot->address : slot->host);
        report.pid = slot->pid;
    }
    if (!answer)
        tell_missing(run, slot, now, report.missing, sizeof report.missing);
    return process_report_json(&report);
}

/* The chief first, then the members as in the roster. */
static json_t *describe_all(const struct run *run, int64_t now) {
    struct process_report own;
    json_t *processes = json_array();
    if (run->health) {
        process_report_of_health(&own, run->health, now);
        json_array_append_new(processes, process_report_json(&own));
    }
    for (uint32_t i = 0; i < run->roster.count; i++)
        json_array_append_new(processes, describe_member(run, i, now));
    return process_report_object(processes);
}

static void log_line(void *context, const char *text) {
    log_warning(context, "hang_report", "%s", text);
}

static void print(struct run *run, const json_t *object, int64_t now) {
    run->hang_report.logged_at = now;
    (void)process_report_each_line(object, log_line, (void *)run->log);
}

static void complete(struct run *run, int64_t now) {
    struct run_hang_report *hang = &run->hang_report;
    json_decref(hang->newest);
    hang->newest = describe_all(run, now);
    hang->made_at = now;
    if (hang->prints)
        print(run, hang->newest, now);
    if (run->health)
        health_answer(
            run->health,
            json_dumps(hang->newest, JSON_INDENT(2) | JSON_REAL_PRECISION(6)));
    hang->prints = false;
    hang->asked_at = 0;
    clear_answers(run);
}

/* Asks once for each deadline that is about to pass; of a short one when half
 * of it has. */
static void ask_before_deadline(struct run *run, int64_t now) {
    const struct health_report *report = health_lock(run->health);
    int64_t since = report->deadline.since, until = report->deadline.until;
    health_unlock(run->health);
    if (until == TIME_NEVER || since == run->hang_report.asked_for)
        return;
    int64_t before =
        until - since < 2 * ASK_BEFORE ? (until - since) / 2 : ASK_BEFORE;
    if (until - now > before)
        return;
    run->hang_report.asked_for = since;
    ask(run, now);
}

static bool ends_by_deadline(const struct run *run) {
    return run->phase == RUN_STOPPING && (run->code == FAILURE_STEP_TIMEOUT ||
                                          run->code == FAILURE_MEMBER_ABSENT ||
                                          run->code == FAILURE_PEER_SILENT);
}

/* A member that died of its silence is in the newest report as one that did not
 * answer, and so are others that die of it just behind. */
static void log_deadline(struct run *run, int64_t now) {
    struct run_hang_report *hang = &run->hang_report;
    bool ends = ends_by_deadline(run) && !hang->end_logged;
    if (!ends && !run->membership.silence_passed)
        return;
    hang->end_logged |= ends;
    run->membership.silence_passed = false;
    bool logged = hang->logged_at && now - hang->logged_at < FRESH;
    if (logged && (!ends || hang->made_at <= hang->logged_at))
        return;
    if (!hang->asked_at && hang->newest && now - hang->made_at < FRESH) {
        print(run, hang->newest, now);
        return;
    }
    json_t *object = describe_all(run, now);
    print(run, object, now);
    json_decref(object);
}

void hang_report_step(struct run *run, int64_t now) {
    struct run_hang_report *hang = &run->hang_report;
    log_deadline(run, now);
    if (run->health && health_is_asked(run->health))
        ask(run, now);
    if (run->health && run->phase < RUN_STOPPING)
        ask_before_deadline(run, now);
    if (hang->asked_at &&
        (all_have_answered(run) || now - hang->asked_at >= ANSWER_LIMIT))
        complete(run, now);
}

void hang_report_close(struct run *run) {
    struct run_hang_report *hang = &run->hang_report;
    clear_answers(run);
    free(hang->answers);
    json_decref(hang->newest);
}
