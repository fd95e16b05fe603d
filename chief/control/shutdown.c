/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/control/shutdown.h"

#include "chief/control/membership.h"
#include "chief/control/membership_broadcast.h"
#include "chief/report/evaluations.h"
#include "chief/run_series.h"
#include "chief/snapshot/checkpoint_policy.h"
#include "chief/snapshot/snapshot_coordinator.h"
#include "proto/base/time.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What others may end a run with: no signal, which is its own process's, and
 * once it trains no configuration, which was right. */
static enum status status_of(const struct run *run, const Capstan__Left *left) {
    enum status status = (enum status)left->status;
    if (run_is_signal(status))
        return STATUS_RETRY;
    return status == STATUS_CONFIG && run->phase >= RUN_TRAINING ? STATUS_FAILED
                                                                 : status;
}

static void shutdown_fail(struct run *run, struct roster_slot *slot,
                          const Capstan__Left *left) {
    char name[64], text[1024];
    roster_name(slot, name, sizeof name);
    snprintf(text, sizeof text, "%s on host %s: %s", name, slot->host,
             left->text);
    if (membership_is_joining(run, slot))
        membership_dismiss(run, slot, (enum status)left->status, text);
    else
        run_stop(run, status_of(run, left), "%s", text);
    run->diverged |= run->phase == RUN_STOPPING && left->diverged;
}

/* A rank that has lost another may have lost one that only gave up for the same
 * reason: who is silent now is the one (watch_lost). */
static void record_lost_peer(struct run *run, const struct roster_slot *slot,
                             const Capstan__Left *left) {
    char name[64];
    roster_name(slot, name, sizeof name);
    log_warning(run->log, "%s on host %s: %s", name, slot->host, left->text);
    if (run->peer_lost_at)
        return;
    run->peer_lost_at = time_now();
    snprintf(run->lost_reason, sizeof run->lost_reason,
             "%s on host %.120s: %.250s", name, slot->host, left->text);
}

/* Five kinds of leaving: a ps that has a signal wants a checkpoint, and so does
 * a trainer in all-reduce, or it has lost another one; whoever has failed ends
 * the run; a goodbye is a death that needs no deadline; else a
 * trainer is out of the loop and stays for evaluations. */
void shutdown_receive_left(struct run *run, struct roster_slot *slot,
                           const Capstan__Left *left) {
    char name[64];
    roster_name(slot, name, sizeof name);
    bool signal = run_is_signal((enum status)left->status);
    if ((slot->role == CLUSTER_PS || run->allreduce) && signal) {
        log_info(run->log, "%s has a signal", name);
        if (!run->interrupted)
            shutdown_interrupt(run, STATUS_RETRY);
        return;
    }
    bool training = run->phase == RUN_TRAINING || run->phase == RUN_FINISHING;
    if (left->status == STATUS_RETRY && run->allreduce && training) {
        record_lost_peer(run, slot, left);
        return;
    }
    if (left->status) {
        shutdown_fail(run, slot, left);
        return;
    }
    if (left->exiting) {
        membership_remove(run, slot, true);
        return;
    }
    run->trainers[slot->rank].left = true;
    if (left->clock > run->trainers[slot->rank].heartbeat.clock)
        run->trainers[slot->rank].heartbeat.clock = left->clock;
    if (run->phase == RUN_TRAINING)
        membership_broadcast_view(run);
}

void shutdown_receive_goodbye(struct run *run, struct roster_slot *slot) {
    if (run->phase == RUN_STOPPING)
        roster_remove(slot);
    else
        membership_remove(run, slot, true);
}

/* The first signal asks for one checkpoint, a second one here does not wait for
 * it. Signals to several processes at once are one. */
void shutdown_interrupt(struct run *run, enum status status) {
    if (run->failed_to_start)
        run_enter_phase(run, RUN_OVER);
    if (run->phase >= RUN_STOPPING)
        return;
    bool already_interrupted = run->interrupted;
    bool restart_within =
        already_interrupted && run->interrupted != STATUS_RETRY;
    run->interrupted = status;
    if (restart_within || run->phase < RUN_TRAINING ||
        !run->job->checkpoint.dir) {
        run_stop(run, status, "ended by a signal");
        return;
    }
    if (already_interrupted) /* by a ps: its checkpoint is under way */
        return;
    run->grace_deadline =
        time_now() + time_from_seconds(run->job->timeouts.grace);
    log_info(run->log,
             "a signal: one checkpoint, then all end; at most %.0f s "
             "(timeouts.grace)",
             run->job->timeouts.grace);
}

/* Trainers that have left the loop and are still here. */
static uint32_t count_left(const struct run *run) {
    uint32_t left = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        left +=
            run->trainers[r].left && run->roster.slots[r].state == ROSTER_HELD;
    return left;
}

static void stop_interrupted(struct run *run) {
    char resume_hint[CHECKPOINT_POLICY_RESUME_HINT_SIZE];
    checkpoint_policy_resume_hint(run, resume_hint, sizeof resume_hint);
    run_stop(run, run->interrupted, "ended by a signal; the same command %s",
             resume_hint);
}

/* Is there nothing that the last checkpoint has not? */
static bool is_all_saved(const struct run *run) {
    return !run_count_live(run) && run->has_saved &&
           run->saved >= run_step(run);
}

/* Until the cut is written, or the grace is over. A cut that waits for rounds
 * which nobody will close any more is taken anew, of the moment; one that is
 * being written then may be of the same step, and is awaited. */
static void end_interrupted(struct run *run, int64_t now) {
    bool no_trainer = run_synchronous(run) && !run_count_live(run);
    bool round_incomplete = no_trainer && !count_left(run) && run->deaths;
    if (round_incomplete) { /* rounds stand half closed */
        run_stop(run, run->interrupted,
                 "ended by a signal with no trainer "
                 "left: no checkpoint of this moment");
        return;
    }
    if (no_trainer && snapshot_coordinator_abandon(
                          run)) /* all said goodbye: rounds stand whole */
        run->final_snapshot_requested = false;
    if (!run->final_snapshot_requested &&
        !snapshot_coordinator_is_requesting(run) &&
        (run_count_live(run) || !snapshot_coordinator_is_writing(run)))
        run->final_snapshot_requested =
            is_all_saved(run) ||
            snapshot_coordinator_request(run,
                                         (struct snapshot_reason){.save = true},
                                         !run_count_live(run));
    if (!snapshot_coordinator_is_writing(run) && run->final_snapshot_requested)
        stop_interrupted(run);
    else if (now > run->grace_deadline)
        run_stop(run, run->interrupted,
                 "ended by a signal; the checkpoint was "
                 "not written within %.0f s (timeouts.grace)",
                 run->job->timeouts.grace);
}

/* Everyone who trains has left the loop, or nobody is there any more. */
static void check_finished(struct run *run) {
    if (run_count_live(run) || !run->view) {
        run->no_trainer_since = 0;
        return;
    }
    if (count_left(run) && run_synchronous(run) &&
        run->run_schedule.total > run->run_schedule.start)
        snapshot_coordinator_expect_planned(run, run->run_schedule.total);
    if (count_left(run))
        run_enter_phase(run, RUN_FINISHING);
    else if (run->no_restart)
        run_stop(run, STATUS_RETRY,
                 "no trainer is left; start the same command again");
    else if (!run->no_trainer_since)
        run->no_trainer_since = time_now();
    else if (time_now() - run->no_trainer_since > run->roster.peer_limit)
        run_stop(run, STATUS_RETRY,
                 "no trainer is left, and none came back "
                 "within %.0f s (timeouts.peer)",
                 time_to_seconds(run->roster.peer_limit));
}

/* What a synchronous plan has already seen to is not done again. */
static struct snapshot_reason final_reason(const struct run *run) {
    uint64_t step = run_step(run);
    struct snapshot_reason reason = {.export = run->job->export_path};
    reason.save =
        run->job->checkpoint.dir && !(run->has_saved && run->saved >= step);
    reason.evaluate =
        run->test_samples && (!run_synchronous(run) || isnan(run->accuracy) ||
                              evaluations_are_missing(run));
    return reason;
}

/* One last cut serves evaluation, checkpoint and export; then the run is over,
 * with what went wrong in them as its status. */
static void shutdown_finish(struct run *run) {
    if (snapshot_coordinator_is_pending(run) || evaluations_pending(run))
        return;
    if (!run->final_snapshot_requested) {
        struct snapshot_reason reason = final_reason(run);
        bool needed = reason.save || reason.evaluate || reason.export;
        run->final_snapshot_requested =
            !needed || snapshot_coordinator_request(run, reason, true);
        return;
    }
    if (run->job->checkpoint.dir && run->last_problem[0])
        run_stop(run, STATUS_FAILED, "the last checkpoint was not written: %s",
                 run->last_problem);
    else if (run->export_problem[0])
        run_stop(
            run, STATUS_FAILED, "the weights were not exported to %s: %s%s%s",
            run->job->export_path, run->export_problem,
            run->has_saved ? "; `capstan ckpt export` writes them from " : "",
            run->has_saved ? run->job->checkpoint.dir : "");
    else
        run_stop(run, STATUS_OK, "done");
}

static void list_unresponsive(const struct run *run, char *text, size_t size) {
    size_t used = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < run->roster.count && used < size; i++) {
        char name[64];
        if (run->roster.slots[i].state != ROSTER_HELD)
            continue;
        roster_name(&run->roster.slots[i], name, sizeof name);
        used += (size_t)snprintf(text + used, size - used, "%s%s",
                                 used ? ", " : "", name);
    }
}

/* Who has not come yet when the run fails would wait for its chief: it is told
 * as it comes, and again should that be lost: the chief stays for a second,
 * in which a join is repeated. Who has not come within timeouts.join is not
 * waited for once more. */
static bool is_waiting_for_absent(const struct run *run, int64_t now) {
    if (run->refused_at && now - run->refused_at < TIME_S)
        return true;
    return run->status && !run_is_signal(run->status) &&
           (run->failed_to_start || !run_series_requires_all(run)) &&
           run->phase_since - run->opened < run->join_limit &&
           now - run->phase_since <
               time_from_seconds(run->job->timeouts.stop) &&
           roster_count(&run->roster, CLUSTER_ROLES, ROSTER_ABSENT);
}

static void shutdown_stop(struct run *run, int64_t now) {
    char unresponsive[512];
    int64_t limit = time_from_seconds(run->job->timeouts.stop);
    if (roster_count(&run->roster, CLUSTER_ROLES, ROSTER_HELD) == 0) {
        if (!is_waiting_for_absent(run, now))
            run_enter_phase(run, RUN_OVER);
    } else if (now - run->phase_since > limit) {
        list_unresponsive(run, unresponsive, sizeof unresponsive);
        log_warning(run->log,
                    "no goodbye within %.0f s (timeouts.stop) from "
                    "%s",
                    run->job->timeouts.stop, unresponsive);
        run_enter_phase(run, RUN_OVER);
    }
}

void shutdown_step(struct run *run, int64_t now) {
    if (run->phase == RUN_STOPPING)
        shutdown_stop(run, now);
    else if (run->interrupted && run->phase >= RUN_TRAINING)
        end_interrupted(run, now);
    else if (run->phase == RUN_TRAINING)
        check_finished(run);
    else if (run->phase == RUN_FINISHING)
        shutdown_finish(run);
}
