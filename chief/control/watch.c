/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/control/watch.h"

#include "chief/control/admission.h"
#include "chief/control/enlisting.h"
#include "chief/plan/planning.h"
#include "chief/report/evaluations.h"
#include "chief/series.h"
#include "chief/snapshot/cuts.h"
#include "proto/base/time.h"
#include "proto/base/wait.h"

#include <stdio.h>
#include <string.h>

static const int64_t SAY_WAITING_EVERY = 30 * TIME_S;
static const int64_t LOST_SETTLES = 3 * TIME_S / 2;

/* Of those who are here: who waits for others is not waited for. */
static bool is_awaited(const struct run *run, const struct roster_slot *slot) {
    return slot->rank != ROSTER_NO_RANK &&
           !run->trainers[slot->rank].declared &&
           !sharing_waits(run, slot->rank);
}

/* Who has not joined, and who has but still reads its data. */
static void list_absent(const struct run *run, char *text, size_t size) {
    size_t used = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < run->roster.count && used < size; i++) {
        const struct roster_slot *slot = &run->roster.slots[i];
        char name[64];
        if (slot->state == ROSTER_HELD && !is_awaited(run, slot))
            continue;
        roster_name(slot, name, sizeof name);
        used += (size_t)snprintf(
            text + used, size - used, "%s%s%s", used ? ", " : "", name,
            slot->state == ROSTER_HELD ? " (reading its data)" : "");
    }
}

/* First after a sixth of the time between two lines: by then most are here. */
static void say_joining(struct run *run, const struct wait *wait, int64_t now) {
    char text[700];
    int64_t last = run->said_waiting ? run->said_waiting : run->opened;
    int64_t every =
        run->said_waiting ? SAY_WAITING_EVERY : SAY_WAITING_EVERY / 6;
    if (now - last < every)
        return;
    run->said_waiting = now;
    wait_text(wait, now, text, sizeof text);
    log_info(run->log, "%s", text);
}

static void watch_joining(struct run *run, int64_t now) {
    char absent[512];
    list_absent(run, absent, sizeof absent);
    if (!absent[0])
        return; /* planning.c waits, for memory */
    struct wait wait =
        wait_for(absent, "timeouts.join", run->opened, run->join_limit);
    if (!wait_over(&wait, now)) {
        say_joining(run, &wait, now);
        return;
    }
    run_stop(run, STATUS_RETRY,
             "did not come within %.0f s (%s): %s; are they started, with the "
             "same cluster description?",
             time_to_seconds(run->join_limit), wait.limit, absent);
}

/* A trainer that beats but does not move holds up a synchronous round, or
 * nobody but itself. */
static void watch_steps(struct run *run, int64_t now) {
    int64_t limit = time_from_seconds(run->job->timeouts.step);
    uint32_t slow = ROSTER_NO_RANK;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        struct run_trainer *trainer = &run->trainers[r];
        if (run->roster.slots[r].state != ROSTER_HELD || !trainer->viewed ||
            trainer->left)
            continue;
        if (slow == ROSTER_NO_RANK ||
            trainer->beat.clock < run->trainers[slow].beat.clock ||
            (trainer->beat.clock == run->trainers[slow].beat.clock &&
             trainer->moved < run->trainers[slow].moved))
            slow = r;
    }
    if (slow == ROSTER_NO_RANK)
        return;
    struct run_trainer *trainer = &run->trainers[slow];
    const struct roster_slot *slot = &run->roster.slots[slow];
    int64_t still = now - trainer->moved;
    char name[64];
    roster_name(slot, name, sizeof name);
    if (still > limit)
        run_stop(run, STATUS_RETRY,
                 "%s on host %s is alive but has not finished a step for "
                 "%.0f s (timeouts.step): if steps really take that long, set "
                 "it to %.0f",
                 name, slot->host, time_to_seconds(still),
                 2 * time_to_seconds(limit));
    else if (still > limit / 10 && run->said_slow != trainer->moved) {
        run->said_slow = trainer->moved;
        log_warning(run->log,
                    "%s on host %s is alive but has not finished a step for "
                    "%.0f s; at %.0f s (timeouts.step) the run ends",
                    name, slot->host, time_to_seconds(still),
                    time_to_seconds(limit));
    }
}

static bool by_time(const struct run *run, int64_t now) {
    double every = run->job->checkpoint.every_seconds;
    return run->job->checkpoint.dir && every > 0 &&
           now - run->saved_at > time_from_seconds(every);
}

/* With staleness rounds are not counted by the ps: what is due by step is
 * ordered when the global step has passed it. */
static struct cuts_reason due(struct run *run, int64_t now) {
    struct cuts_reason reason = {.save = by_time(run, now) || run->save_wanted};
    if (run_synchronous(run)) {
        reason.evaluate = evaluations_lack(run) && !cuts_evaluating(run);
        return reason;
    }
    uint64_t step = run_step(run), every = run->rounds.every_steps;
    uint64_t epochs = rounds_epochs(&run->rounds, step);
    uint64_t begun = run->epochs_seen;
    if (step >= run->rounds.total)
        return (struct cuts_reason){0};
    if (every && step / every > run->every_seen)
        reason.save = run->job->checkpoint.dir;
    if (epochs > begun && !evaluations_pending(run) && !cuts_evaluating(run)) {
        reason.evaluate = run->test_samples;
        reason.save |= run->rounds.every_epochs && run->job->checkpoint.dir &&
                       epochs / run->rounds.every_epochs >
                           begun / run->rounds.every_epochs;
        run->epochs_seen = epochs;
    }
    if (every)
        run->every_seen = step / every;
    return reason;
}

/* One asked cut at a time, and none while a view is on its way to the ps: a cut
 * is of the trainers that all ps agree on. */
static void watch_due(struct run *run, int64_t now) {
    struct cuts_reason reason = {0};
    if (cuts_asking(run) || !run->view_sent)
        return;
    if (run->began)
        reason = due(run, now);
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        reason.joins |= run->trainers[r].planned && !run->trainers[r].from &&
                        run->roster.slots[r].state == ROSTER_HELD;
    if (reason.save) {
        run->saved_at = now;
        run->save_wanted = false;
    }
    if (reason.joins && !run_synchronous(run))
        reason.joins = false;
    if (reason.save || reason.evaluate || reason.joins)
        cuts_ask(run, reason, false);
}

/* Restoring and the end are bounded as steps are. */
static void watch_phase(struct run *run, int64_t now) {
    double limit = run->job->timeouts.step;
    if (now - run->phase_since < time_from_seconds(limit))
        return;
    if (run->phase == RUN_FINISHING) {
        run_stop(run, STATUS_RETRY,
                 "the last evaluation, checkpoint or export was not over "
                 "within %.0f s (timeouts.step); try %.0f",
                 limit, 2 * limit);
        return;
    }
    for (uint32_t i = 0; i < run->roster.num_ps; i++)
        if (!run->ps[i].ready)
            run_stop(run, STATUS_RETRY,
                     "ps %u on host %s did not hold its weights within %.0f s "
                     "(timeouts.step); try %.0f",
                     i, roster_ps(&run->roster, i)->host, limit, 2 * limit);
    if (run->allreduce && !run_keeper(run)->ready)
        run_stop(run, STATUS_RETRY,
                 "rank 0 on host %s was not ready within %.0f s "
                 "(timeouts.step)",
                 run->roster.slots[0].host, limit);
}

/* What others did meanwhile is still to be read, and what they did not do they
 * may have waited for this process to do. */
static void move_deadlines(struct run *run, int64_t still, int64_t now) {
    int64_t *since[] = {
        &run->opened,         &run->phase_since,   &run->said_waiting,
        &run->said_slow,      &run->crowded_since, &run->link_asked,
        &run->together_asked, &run->refused_at,    &run->nobody_since,
        &run->lost_at,        &run->stall.since};
    for (size_t i = 0; i < sizeof since / sizeof *since; i++)
        wait_move(since[i], still, now);
    if (run->give_up != TIME_NEVER)
        run->give_up += still;
    if (run->series)
        wait_move(&run->series->began, still, now);
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        wait_move(&run->trainers[r].moved, still, now);
    for (uint32_t i = 0; i < run->roster.count; i++) {
        struct roster_slot *slot = &run->roster.slots[i];
        wait_move(&slot->heard, still, now);
        wait_move(&slot->silent, still, now);
        wait_move(&slot->claimed, still, now);
    }
}

void watch_standstill(struct run *run, int64_t now) {
    int64_t still = wait_stood_still(run->turned, now);
    run->turned = now;
    if (!still)
        return;
    move_deadlines(run, still, now);
    run->still += still;
    if (still < wait_silence(run->roster.peer_limit))
        return;
    run->stood = now;
    log_warning(run->log,
                "this process itself stood still for %.0f s (stopped, starved, "
                "or at a slow disk): nobody's deadline counts that time, but "
                "who waited for it that long may have given it up",
                time_to_seconds(still));
}

static void tell_silence(const struct run *run, struct roster_slot *slot,
                         int64_t now) {
    char name[64];
    roster_name(slot, name, sizeof name);
    if (slot->silent && slot->heard > slot->silent) {
        log_info(run->log, "%s on host %s is heard of again", name, slot->host);
        slot->silent = 0;
    }
    if (slot->silent ||
        now - slot->heard < wait_silence(run->roster.peer_limit))
        return;
    slot->silent = slot->heard;
    log_warning(run->log,
                "%s on host %s has not been heard of for %.0f s; at %.0f s "
                "(timeouts.peer) it counts as lost",
                name, slot->host, time_to_seconds(now - slot->heard),
                time_to_seconds(run->roster.peer_limit));
}

/* Before a silence counts, people may want to know what the run waits for. */
static void watch_silence(struct run *run, int64_t now) {
    for (uint32_t i = 0; i < run->roster.count; i++) {
        struct roster_slot *slot = &run->roster.slots[i];
        if (slot->state == ROSTER_HELD)
            tell_silence(run, slot, now);
        else
            slot->silent = 0;
    }
}

/* Who does not beat any more is named; if all do, the network between two of
 * them is to blame. */
static void watch_lost(struct run *run, int64_t now) {
    if (!run->lost_at || now - run->lost_at < LOST_SETTLES)
        return;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (run->roster.slots[r].state == ROSTER_HELD &&
            run->roster.slots[r].heard < run->lost_at)
            admission_gone(run, &run->roster.slots[r], false);
    run_stop(run, STATUS_RETRY, "%s; start the same command again", run->lost);
}

void watch_step(struct run *run, int64_t now) {
    if (run->phase < RUN_STOPPING)
        watch_silence(run, now);
    if (run->phase == RUN_JOINING)
        watch_joining(run, now);
    if (run->phase == RUN_READYING || run->phase == RUN_FINISHING)
        watch_phase(run, now);
    if (run->phase == RUN_TRAINING || run->phase == RUN_FINISHING)
        watch_lost(run, now);
    if (run->phase != RUN_TRAINING)
        return;
    watch_steps(run, now);
    if (run->phase == RUN_TRAINING && !run->interrupted)
        watch_due(run, now);
}

/* Otherwise than in synchronous runs, a joiner starts at once, at the lowest
 * live clock. */
void watch_joiner(struct run *run, struct roster_slot *slot) {
    struct run_trainer *trainer = &run->trainers[slot->rank];
    planning_tell(run, slot);
    if (run_synchronous(run))
        return;
    uint64_t lowest = UINT64_MAX;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (run->trainers[r].viewed && !run->trainers[r].left &&
            run->roster.slots[r].state == ROSTER_HELD &&
            run->trainers[r].beat.clock < lowest)
            lowest = run->trainers[r].beat.clock;
    if (lowest == UINT64_MAX)
        lowest = run->rounds.start_batch / run->roster.num_ranks;
    trainer->from = lowest + 1;
    trainer->beat.clock = lowest;
    enlisting_begin(run);
}
