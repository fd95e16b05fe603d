/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/control/watchdog.h"

#include "chief/control/membership.h"
#include "chief/rewind.h"
#include "chief/run_series.h"
#include "chief/take_over.h"
#include "core/base/time.h"

#include <stdio.h>
#include <string.h>

enum { MORE_ROOM = 24 /* of " and N more" */ };

static const int64_t LOG_WAITING_INTERVAL = 30 * TIME_S;
static const int64_t LOST_PEER_GRACE = 3 * TIME_S / 2;

/* Joined but not ready. A trainer that waits for the other trainers' devices is
 * not itself missing. */
static bool is_missing(const struct run *run, const struct roster_slot *slot) {
    return slot->rank != ROSTER_NO_RANK &&
           !run->trainers[slot->rank].declared &&
           !run_awaits_devices(run, slot->rank);
}

/* " at host:port" where the cluster description has the address of SLOT's
 * task, else "". */
static void watchdog_listed_address(const struct run *run,
                                    const struct roster_slot *slot, char *text,
                                    size_t size) {
    const struct cluster_job *job = &run->cluster->jobs[slot->role];
    char address[270];
    text[0] = 0;
    for (uint32_t i = 0; i < job->count; i++) {
        const struct cluster_task *task = &job->tasks[i];
        if (task->index != slot->index || !task->host[0] || !task->port)
            continue;
        cluster_address(task, address, sizeof address);
        snprintf(text, size, " at %s", address);
    }
}

/* Lists members that have not joined or still read their data. */
static void watchdog_list_absent(const struct run *run, char *text,
                                 size_t size) {
    size_t used = 0;
    uint32_t more = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < run->roster.count; i++) {
        const struct roster_slot *slot = &run->roster.slots[i];
        char name[64], address[280], item[360];
        if ((slot->state == ROSTER_HELD && !is_missing(run, slot)) ||
            (slot->rank != ROSTER_NO_RANK && rewind_lacks(run, slot->rank)))
            continue;
        roster_name(slot, name, sizeof name);
        watchdog_listed_address(run, slot, address, sizeof address);
        int length = snprintf(
            item, sizeof item, "%s%s%s", used ? ", " : "", name,
            slot->state == ROSTER_HELD ? " (reading its data)" : address);
        if (more || used + (size_t)length + MORE_ROOM > size)
            more++;
        else
            used += (size_t)snprintf(text + used, size - used, "%s", item);
    }
    if (more)
        snprintf(text + used, size - used, " and %u more", more);
}

/* Logs first after a sixth of the interval; by then most members are here. */
static void log_joining(struct run *run, const struct deadline *deadline,
                        int64_t now) {
    char text[700];
    int64_t last =
        run->logged_waiting_at ? run->logged_waiting_at : run->opened;
    int64_t every = run->logged_waiting_at ? LOG_WAITING_INTERVAL
                                           : LOG_WAITING_INTERVAL / 6;
    if (now - last < every)
        return;
    run->logged_waiting_at = now;
    deadline_text(deadline, now, text, sizeof text);
    log_info(run->log, "waiting_for_members", "%s", text);
}

static struct deadline deadline_of_joining(const struct run *run,
                                           const char *absent) {
    return deadline_start(
        absent, rewind_is_second(run) ? "timeouts.recover" : "timeouts.join",
        run->opened, run->join_limit);
}

static void check_joining(struct run *run, int64_t now) {
    char absent[512], hosts[600];
    watchdog_list_absent(run, absent, sizeof absent);
    if (!absent[0] || rewind_is_over(run))
        return; /* all are here: planning.c waits for memory */
    struct deadline deadline = deadline_of_joining(run, absent);
    if (!deadline_passed(&deadline, now)) {
        log_joining(run, &deadline, now);
        return;
    }
    take_over_name_hosts(run, hosts, sizeof hosts);
    run_stop(run, FAILURE_MEMBER_ABSENT,
             "did not join within %.0f s (%s): %s; %s%s",
             time_to_seconds(run->join_limit), deadline.limit, absent,
             hosts[0] ? hosts : "are they started, with the same cluster ",
             hosts[0] ? ": start it there" : "description?");
}

/* The slowest trainer, or ROSTER_NO_RANK. One that sends heartbeats but
 * finishes no step blocks a synchronous round; with staleness it blocks only
 * itself. */
static uint32_t slowest_rank(const struct run *run) {
    uint32_t slow = ROSTER_NO_RANK;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct run_trainer *trainer = &run->trainers[r];
        if (run->roster.slots[r].state != ROSTER_HELD || !trainer->in_view ||
            trainer->finished)
            continue;
        if (slow == ROSTER_NO_RANK ||
            trainer->heartbeat.clock < run->trainers[slow].heartbeat.clock ||
            (trainer->heartbeat.clock == run->trainers[slow].heartbeat.clock &&
             trainer->last_progress < run->trainers[slow].last_progress))
            slow = r;
    }
    return slow;
}

/* A script's ranks that wait in a collective name who did not call it, after
 * the same time: they come first. */
static void check_step_deadline(struct run *run, int64_t now) {
    int64_t limit = time_from_seconds(run->job->timeouts.step);
    bool calls = run->job->model.type == JOB_EXTERNAL;
    uint32_t slow = slowest_rank(run);
    if (slow == ROSTER_NO_RANK)
        return;
    struct run_trainer *trainer = &run->trainers[slow];
    const struct roster_slot *slot = &run->roster.slots[slow];
    int64_t stalled = now - trainer->last_progress;
    char name[64];
    roster_name(slot, name, sizeof name);
    if (stalled > limit + (calls ? limit / 20 : 0))
        run_stop(run, FAILURE_STEP_TIMEOUT,
                 "%s on host %s is alive but has not finished a step for "
                 "%.0f s (timeouts.step): if steps really take that long, set "
                 "it to %.0f",
                 name, slot->host, time_to_seconds(stalled),
                 2 * time_to_seconds(limit));
    else if (stalled > limit / 10 &&
             run->logged_slow_at != trainer->last_progress) {
        run->logged_slow_at = trainer->last_progress;
        health_note(run->health, EVENT_WARNED, 0, cluster_role_name(slot->role),
                    slot->index);
        log_warning(run->log, "trainer_stalled",
                    "%s on host %s is alive but has not finished a step for "
                    "%.0f s; at %.0f s (timeouts.step) the run ends",
                    name, slot->host, time_to_seconds(stalled),
                    time_to_seconds(limit));
    }
}

/* Restoring and finishing share the time limit of a step. */
static void check_phase_deadline(struct run *run, int64_t now) {
    double limit = run->job->timeouts.step;
    if (now - run->phase_since < time_from_seconds(limit))
        return;
    if (run->phase == RUN_FINISHING) {
        run_stop(run, FAILURE_STEP_TIMEOUT,
                 "the last evaluation, checkpoint or export was not over "
                 "within %.0f s (timeouts.step); try %.0f",
                 limit, 2 * limit);
        return;
    }
    for (uint32_t i = 0; i < run->roster.num_ps; i++) {
        const struct roster_slot *slot = roster_ps(&run->roster, i);
        if (!run->ps[i].ready)
            run_stop(run, FAILURE_STEP_TIMEOUT,
                     "ps %u on host %s did not hold its weights within %.0f s "
                     "(timeouts.step); try %.0f",
                     slot->index, slot->host, limit, 2 * limit);
    }
    if (run->allreduce && !run_allreduce_holder(run)->ready)
        run_stop(run, FAILURE_STEP_TIMEOUT,
                 "rank 0 on host %s was not ready within %.0f s "
                 "(timeouts.step)",
                 run->roster.slots[0].host, limit);
}

/* Messages that arrived during the suspension are not read yet, and peers may
 * have waited for this process: neither counts as their silence. */
static void move_deadlines(struct run *run, int64_t stalled, int64_t now) {
    int64_t *since[] = {&run->opened,
                        &run->phase_since,
                        &run->logged_waiting_at,
                        &run->logged_slow_at,
                        &run->plan.memory_wait_since,
                        &run->bandwidth.requested_at,
                        &run->bandwidth.aggregate_requested_at,
                        &run->membership.refused_at,
                        &run->membership.no_trainer_since,
                        &run->membership.peer_lost_at,
                        &run->stall.since};
    for (size_t i = 0; i < sizeof since / sizeof *since; i++)
        deadline_shift(since[i], stalled, now);
    if (run->shutdown.grace_deadline != TIME_NEVER)
        run->shutdown.grace_deadline += stalled;
    if (run->series)
        deadline_shift(&run->series->began, stalled, now);
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        deadline_shift(&run->trainers[r].last_progress, stalled, now);
    reachability_shift(&run->membership.reachability, stalled, now);
    for (uint32_t i = 0; i < run->roster.count; i++) {
        struct roster_slot *slot = &run->roster.slots[i];
        deadline_shift(&slot->last_seen, stalled, now);
        deadline_shift(&slot->silent_since, stalled, now);
        deadline_shift(&slot->claimed, stalled, now);
        deadline_shift(&slot->closed, stalled, now);
    }
}

void watchdog_check_own_stall(struct run *run, int64_t now) {
    int64_t stalled = deadline_stall(run->suspension.last_turn, now);
    run->suspension.last_turn = now;
    if (!stalled)
        return;
    move_deadlines(run, stalled, now);
    run->suspension.total += stalled;
    if (stalled < deadline_warn_after(run->roster.peer_limit))
        return;
    run->suspension.until = now;
    log_warning(
        run->log, "process_stalled",
        "this process itself stood still for %.0f s (stopped, starved, or at "
        "a slow disk): no deadline counts that time, but peers that waited "
        "for it may have declared it dead",
        time_to_seconds(stalled));
}

static void report_silence(const struct run *run, struct roster_slot *slot,
                           int64_t now) {
    char name[64];
    roster_name(slot, name, sizeof name);
    if (slot->silent_since && slot->last_seen > slot->silent_since) {
        log_info(run->log, "heartbeat_resumed",
                 "heartbeat from %s on host %s resumed", name, slot->host);
        slot->silent_since = 0;
    }
    if (slot->silent_since ||
        now - slot->last_seen < deadline_warn_after(run->roster.peer_limit))
        return;
    slot->silent_since = slot->last_seen;
    health_note(run->health, EVENT_WARNED, 0, cluster_role_name(slot->role),
                slot->index);
    log_warning(run->log, "heartbeat_missed",
                "no heartbeat from %s on host %s for %.0f s; at %.0f s "
                "(timeouts.peer) it is declared dead",
                name, slot->host, time_to_seconds(now - slot->last_seen),
                time_to_seconds(run->roster.peer_limit));
}

/* Warns before a deadline passes, so that the log says what the run waits for.
 */
static void watchdog_check_silence(struct run *run, int64_t now) {
    for (uint32_t i = 0; i < run->roster.count; i++) {
        struct roster_slot *slot = &run->roster.slots[i];
        if (slot->state == ROSTER_HELD)
            report_silence(run, slot, now);
        else
            slot->silent_since = 0;
    }
}

/* Declares dead the ranks that have sent no heartbeat since. If all have, the
 * network between two of them failed. */
static void check_lost_peer(struct run *run, int64_t now) {
    if (!run->membership.peer_lost_at ||
        now - run->membership.peer_lost_at < LOST_PEER_GRACE)
        return;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (run->roster.slots[r].state == ROSTER_HELD &&
            run->roster.slots[r].last_seen < run->membership.peer_lost_at)
            membership_remove(run, &run->roster.slots[r], false);
    run_stop(run, FAILURE_PEER_LOST,
             "%s; every trainer still sends heartbeats; start the same command "
             "again",
             run->membership.lost_reason);
}

/* What the run waits for in phases that have a deadline of their own. */
static void list_unready(const struct run *run, char *text, size_t size) {
    size_t used = 0;
    text[0] = 0;
    if (run->phase == RUN_FINISHING)
        snprintf(text, size, "the last evaluation, checkpoint or export");
    if (run->phase != RUN_READYING)
        return;
    const struct roster_slot *ps = run->roster.slots + run->roster.num_ranks;
    for (uint32_t i = 0; i < run->roster.num_ps && used < size; i++)
        if (!run->ps[i].ready)
            used += (size_t)snprintf(text + used, size - used, "%sps %u",
                                     used ? ", " : "", ps[i].index);
    if (run->allreduce && !used)
        snprintf(text, size, "rank 0");
}

static void report_peers(const struct run *run, struct health_report *report,
                         int64_t now) {
    for (uint32_t i = 0; i < run->roster.count; i++) {
        const struct roster_slot *slot = &run->roster.slots[i];
        char name[64];
        if (slot->state != ROSTER_HELD)
            continue;
        roster_name(slot, name, sizeof name);
        struct deadline deadline = deadline_start(
            name, "timeouts.peer", slot->last_seen, run->roster.peer_limit);
        health_add_deadline(report, &deadline, now);
    }
}

static void report_slowest(const struct run *run, struct health_report *report,
                           int64_t now) {
    uint32_t slow = slowest_rank(run);
    char name[64];
    if (slow == ROSTER_NO_RANK)
        return;
    roster_name(&run->roster.slots[slow], name, sizeof name);
    struct deadline deadline =
        deadline_start(name, "timeouts.step", run->trainers[slow].last_progress,
                       time_from_seconds(run->job->timeouts.step));
    health_add_deadline(report, &deadline, now);
}

void watchdog_report(const struct run *run, struct health_report *report,
                     int64_t now) {
    char *text = report->waiting_for;
    struct deadline deadline = {.until = TIME_NEVER};
    if (run->phase >= RUN_STOPPING)
        return;
    report_peers(run, report, now);
    if (run->phase == RUN_TRAINING) {
        report_slowest(run, report, now);
    } else if (run->phase == RUN_JOINING) {
        watchdog_list_absent(run, text, sizeof report->waiting_for);
        if (text[0])
            deadline = deadline_of_joining(run, text);
    } else {
        list_unready(run, text, sizeof report->waiting_for);
        deadline = deadline_start(text, "timeouts.step", run->phase_since,
                                  time_from_seconds(run->job->timeouts.step));
    }
    health_add_deadline(report, &deadline, now);
}

void watchdog_step(struct run *run, int64_t now) {
    if (run->phase < RUN_STOPPING)
        watchdog_check_silence(run, now);
    if (run->phase == RUN_JOINING)
        check_joining(run, now);
    if (run->phase == RUN_READYING || run->phase == RUN_FINISHING)
        check_phase_deadline(run, now);
    if (run->phase == RUN_TRAINING || run->phase == RUN_FINISHING)
        check_lost_peer(run, now);
    if (run->phase == RUN_TRAINING)
        check_step_deadline(run, now);
}
