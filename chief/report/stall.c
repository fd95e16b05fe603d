/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/stall.h"

#include "chief/run.h"
#include "chief/snapshot/snapshot_coordinator.h"
#include "core/base/time.h"

#include <math.h>
#include <stdio.h>

static const int64_t SILENT_AFTER =
    3 * TIME_S / 2;                  /* heartbeats come twice a second */
static const double MIN_SHOWN_S = 2; /* seconds */

/* Or its kernel has closed its connection, which shows its death sooner. */
static const struct roster_slot *find_silent(const struct run *run,
                                             int64_t now) {
    for (uint32_t i = 0; i < run->roster.count; i++) {
        const struct roster_slot *slot = &run->roster.slots[i];
        if (slot->state == ROSTER_HELD &&
            (slot->closed || now - slot->last_seen > SILENT_AFTER))
            return slot;
    }
    return NULL;
}

static bool is_evaluating(const struct run *run) {
    return run_evaluations_pending(run) ||
           snapshot_coordinator_is_evaluating(run);
}

/* Counts the time of the trainers that waited; the silent peer may be gone by
 * now, and the others may have finished. */
static void record_wait_loss(struct run *run, int64_t now) {
    struct run_wait_loss *wait_loss = &run->stall.lost;
    double seconds = time_to_seconds(now - run->stall.since);
    wait_loss->seconds += seconds * run->stall.waiting;
    if (seconds <= wait_loss->longest)
        return;
    wait_loss->longest = seconds;
    roster_name(run->stall.silent, wait_loss->peer, sizeof wait_loss->peer);
}

static void find_cause(struct run *run, int64_t now) {
    const struct roster_slot *slot = find_silent(run, now);
    uint32_t live = run_count_live(run);
    if (!slot)
        return;
    bool trains =
        slot->rank != ROSTER_NO_RANK && run->trainers[slot->rank].from;
    run->stall.silent = slot;
    run->stall.waiting = live - (trains && live);
}

void stall_update(struct run *run, int64_t now) {
    struct run_stall *stall = &run->stall;
    uint64_t step = run_step(run);
    /* An evaluation may itself wait for a peer that is silent. */
    if (stall->since && step == stall->step &&
        (!is_evaluating(run) || find_silent(run, now))) {
        if (!stall->silent)
            find_cause(run, now);
        return;
    }
    if (stall->silent)
        record_wait_loss(run, now);
    if (stall->silent || step != stall->step)
        stall->since = 0;
    *stall = (struct run_stall){.lost = stall->lost,
                                .step = step,
                                .since = stall->since ? stall->since : now};
}

/* Lists the trainers that a synchronous round waits for, unless all are equally
 * far. */
static void list_slowest(const struct run *run, char *text, size_t size) {
    uint32_t slowest = 0, live = 0;
    size_t used = 0;
    text[0] = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct run_trainer *trainer = &run->trainers[r];
        char name[64];
        if (run->roster.slots[r].state != ROSTER_HELD || !trainer->from ||
            trainer->finished)
            continue;
        live++;
        if (trainer->heartbeat.clock > run_step(run))
            continue;
        slowest++;
        roster_name(&run->roster.slots[r], name, sizeof name);
        if (used < size)
            used += (size_t)snprintf(text + used, size - used, "%s%s",
                                     used ? ", " : "waiting for ", name);
    }
    if (slowest == live)
        text[0] = 0;
}

double stall_seconds(const struct run *run, int64_t now, char *text,
                     size_t size) {
    const struct roster_slot *silent = find_silent(run, now);
    uint64_t steps_done = run_step(run) - run->plan.schedule.start;
    double usual =
        run_total(run).seconds / (double)(steps_done ? steps_done : 1);
    double stalled = time_to_seconds(now - run->stall.since);
    char name[64];
    text[0] = 0;
    if (stalled < fmax(MIN_SHOWN_S, 3 * usual))
        return 0;
    if (silent) {
        roster_name(silent, name, sizeof name);
        snprintf(text, size, "waiting for %s, silent for %.0f s", name,
                 time_to_seconds(now - silent->last_seen));
    } else if (is_evaluating(run)) {
        snprintf(text, size, "evaluating");
    } else if (run_synchronous(run)) {
        list_slowest(run, text, size);
    }
    return stalled;
}
