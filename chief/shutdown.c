/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/shutdown.h"

#include "chief/control/membership.h"
#include "chief/rewind.h"
#include "chief/run.h"
#include "chief/run_series.h"
#include "chief/snapshot/checkpoint_policy.h"
#include "chief/snapshot/snapshot_coordinator.h"
#include "chief/take_over.h"
#include "core/base/time.h"

#include <stdio.h>
#include <string.h>

/* The code that a member's failure gives the run: a signal concerns only the
 * process that got it, and once training has begun the configuration is known
 * to be valid, but for what a batch's rows take. */
static enum failure_code code_of(const struct run *run,
                                 const Capstan__Failed *failed) {
    enum failure_code code = (enum failure_code)failed->code;
    if (failure_code_status(code) == STATUS_CONFIG &&
        code != FAILURE_WRONG_CALL && code != FAILURE_JOB_TOO_LARGE &&
        run->phase >= RUN_TRAINING)
        return FAILURE_MEMBER_MISCONFIGURED;
    return run_code_of_members(code);
}

static void shutdown_fail(struct run *run, struct roster_slot *slot,
                          const Capstan__Failed *failed) {
    char name[64], text[1024];
    roster_name(slot, name, sizeof name);
    snprintf(text, sizeof text, "%s on host %s: %s", name, slot->host,
             failed->text);
    bool is_spare =
        slot->rank != ROSTER_NO_RANK && run_is_beyond(run, slot->rank);
    if (is_spare || membership_is_joining(run, slot))
        membership_dismiss(run, slot, (enum failure_code)failed->code, text);
    else
        run_stop(run, code_of(run, failed), "%s", text);
    run->metrics.diverged |=
        run->phase == RUN_STOPPING && failed->code == FAILURE_LOSS_NOT_FINITE;
}

/* A rank that reports a lost peer may name one that gave up for the same
 * reason: the culprit is the rank that sends no heartbeats (check_lost_peer).
 */
static void record_lost_peer(struct run *run, const struct roster_slot *slot,
                             const Capstan__Failed *failed) {
    char name[64];
    roster_name(slot, name, sizeof name);
    log_warning(run->log, "peer_lost", "%s on host %s: %s", name, slot->host,
                failed->text);
    if (run->membership.peer_lost_at)
        return;
    run->membership.peer_lost_at = time_now();
    snprintf(run->membership.lost_reason, sizeof run->membership.lost_reason,
             "%s on host %.120s: %.250s", name, slot->host, failed->text);
}

void shutdown_receive_finished(struct run *run, struct roster_slot *slot,
                               const Capstan__Finished *finished) {
    struct run_trainer *trainer = &run->trainers[slot->rank];
    trainer->finished = true;
    trainer->ended_early = finished->early;
    trainer->leaving = finished->leaving;
    if (finished->clock > trainer->heartbeat.clock)
        trainer->heartbeat.clock = finished->clock;
    if (finished->early && !finished->leaving &&
        finished->clock > run->metrics.reached)
        run->metrics.reached = finished->clock; /* it has its weights */
    if (run->phase == RUN_TRAINING)
        membership_broadcast_view(run);
}

void shutdown_receive_failed(struct run *run, struct roster_slot *slot,
                             const Capstan__Failed *failed) {
    bool training = run->phase == RUN_TRAINING || run->phase == RUN_FINISHING;
    enum failure_code code = (enum failure_code)failed->code;
    if (failure_code_status(code) == STATUS_RETRY && run->allreduce && training)
        record_lost_peer(run, slot, failed);
    else
        shutdown_fail(run, slot, failed);
}

void shutdown_receive_interrupted(struct run *run,
                                  const struct roster_slot *slot,
                                  const Capstan__Interrupted *interrupted) {
    enum failure_code code = (enum failure_code)interrupted->code;
    char name[64], reason[640] = "ended by a signal";
    roster_name(slot, name, sizeof name);
    if (code)
        snprintf(reason, sizeof reason, "%s on host %.120s: %.400s", name,
                 slot->host, interrupted->text);
    else
        log_info(run->log, "member_signalled", "%s received a signal", name);
    if (!run->shutdown.interrupted)
        shutdown_interrupt(run, code ? code : FAILURE_RUN_INTERRUPTED, reason);
}

void shutdown_receive_goodbye(struct run *run, struct roster_slot *slot) {
    if (run->phase == RUN_STOPPING)
        roster_remove(slot);
    else
        membership_remove(run, slot, true);
}

/* Only a signal is followed by the end of the process, whoever sends it:
 * without one a large checkpoint may take its time. */
static bool has_grace(const struct run *run) {
    return run->shutdown.interrupted == FAILURE_RUN_INTERRUPTED ||
           failure_code_is_signal(run->shutdown.interrupted);
}

static double grace_seconds(const struct run *run) {
    return has_grace(run) ? run->job->timeouts.grace : run->job->timeouts.step;
}

static const char *grace_key(const struct run *run) {
    return has_grace(run) ? "timeouts.grace" : "timeouts.step";
}

/* The first signal requests one checkpoint, or waits for the one that a ps
 * short of memory has requested; a second signal here does not wait for it.
 * Signals to several processes count as one. */
void shutdown_interrupt(struct run *run, enum failure_code code,
                        const char *reason) {
    if (run->failed_to_start)
        run_enter_phase(run, RUN_OVER);
    if (run->phase >= RUN_STOPPING)
        return;
    enum failure_code before = run->shutdown.interrupted;
    run->shutdown.interrupted = code;
    snprintf(run->shutdown.reason, sizeof run->shutdown.reason, "%s", reason);
    if (failure_code_is_signal(before) && run->job->checkpoint.dir) {
        run_stop_resumable(run, code, "%s", reason);
        return;
    }
    if (failure_code_is_signal(before) || run->phase < RUN_TRAINING ||
        !run->job->checkpoint.dir) {
        run_stop(run, code, "%s%s", reason,
                 code == FAILURE_TOO_LITTLE_MEMORY && !run->job->checkpoint.dir
                     ? "; the job has no checkpoint.dir"
                     : "");
        return;
    }
    int64_t deadline = time_now() + time_from_seconds(grace_seconds(run));
    if (before) { /* by a ps: its checkpoint is under way */
        if (deadline >= run->shutdown.grace_deadline)
            return;
        run->shutdown.grace_deadline = deadline;
        log_info(run->log, "run_interrupted",
                 "%s: all end with the checkpoint that is under way; at most "
                 "%.0f s (%s)",
                 reason, grace_seconds(run), grace_key(run));
        return;
    }
    if (run->phase == RUN_TRAINING)
        membership_broadcast_view(
            run); /* trainers that ended are not awaited */
    run->shutdown.interrupted_step = run_step(run);
    run->shutdown.grace_deadline = deadline;
    log_info(run->log, "run_interrupted",
             "%s: one checkpoint, then all end; at most %.0f s (%s)", reason,
             grace_seconds(run), grace_key(run));
}

/* Trainers that have left the loop and still hold their slots. */
/* Is RANK out of the loop? One that has joined after the last round was out of
 * it at once: of that round it shows nothing. */
static bool has_finished(const struct run *run, uint32_t rank) {
    const struct run_trainer *trainer = &run->trainers[rank];
    const struct run_schedule *schedule = &run->plan.schedule;
    bool came_late = run_synchronous(run) && trainer->from > schedule->total &&
                     trainer->from > schedule->start + 1;
    return trainer->finished && !came_late &&
           run->roster.slots[rank].state == ROSTER_HELD;
}

static uint32_t count_finished(const struct run *run) {
    uint32_t count = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        count += has_finished(run, r);
    return count;
}

static void stop_interrupted(struct run *run) {
    run_stop_resumable(run, run->shutdown.interrupted, "%s",
                       run->shutdown.reason);
}

/* Does the last checkpoint contain everything? */
static bool is_all_saved(const struct run *run) {
    return !run_count_live(run) && run->checkpoints.has_saved &&
           run->checkpoints.saved >= run_step(run);
}

/* Is there a checkpoint of a step after the signal? The trainers go on until
 * the run stops: with frequent checkpoints one is always being written. */
static bool is_interruption_saved(const struct run *run) {
    return !snapshot_coordinator_is_requesting(run) &&
           run->checkpoints.has_saved &&
           run->checkpoints.saved > run->shutdown.interrupted_step;
}

/* May the round in which the last trainer died still be open? The others close
 * it, and the next one, if they go on. */
static bool may_lack_contributions(const struct run *run) {
    return run->membership.trainer_died &&
           run_step(run) < run->membership.death_step + 2;
}

/* Without a trainer the ps may have a part of a step, and what trainers keep
 * themselves is gone with them. */
static bool lacks_what_trainers_had(const struct run *run) {
    return (run_synchronous(run) && may_lack_contributions(run)) ||
           run->checkpoints.kept.is_used || run_trainers_keep_weights(run);
}

/* Waits until the snapshot is written or timeouts.grace is over. A snapshot
 * that waits for rounds which no trainer will close is abandoned and taken
 * again at the current step. One that is being written may be of that same
 * step, and is waited for. */
static void end_interrupted(struct run *run, int64_t now) {
    bool no_trainer = !run_count_live(run);
    if (no_trainer && !count_finished(run) && lacks_what_trainers_had(run)) {
        run_stop_resumable(
            run, run->shutdown.interrupted,
            "%s, with no trainer left: no checkpoint of this step",
            run->shutdown.reason);
        return;
    }
    if (no_trainer && run_synchronous(run) &&
        snapshot_coordinator_abandon(run)) /* every round is complete */
        run->shutdown.final_snapshot_requested = false;
    if (!run->shutdown.final_snapshot_requested &&
        !snapshot_coordinator_is_requesting(run) &&
        (run_count_live(run) || !snapshot_coordinator_is_writing(run)))
        run->shutdown.final_snapshot_requested =
            is_all_saved(run) ||
            snapshot_coordinator_request(run,
                                         (struct snapshot_reason){.save = true},
                                         !run_count_live(run));
    if (run->shutdown.final_snapshot_requested &&
        (!snapshot_coordinator_is_writing(run) || is_interruption_saved(run)))
        stop_interrupted(run);
    else if (now > run->shutdown.grace_deadline)
        run_stop_resumable(
            run, run->shutdown.interrupted,
            "%s; its checkpoint was not written within %.0f s (%s)",
            run->shutdown.reason, grace_seconds(run), grace_key(run));
}

/* The last step of which RANK is known to have pushed something. */
static uint64_t reached(const struct run *run, uint32_t rank) {
    const Capstan__Heartbeat *heartbeat = &run->trainers[rank].heartbeat;
    return heartbeat->pushing > heartbeat->clock ? heartbeat->pushing
                                                 : heartbeat->clock;
}

/* Callers of the library end by themselves. In a synchronous run all take the
 * same steps, except one that has said that it ends early. */
static bool ends_differ(struct run *run) {
    char names[2][64];
    if (run->job->model.type != JOB_EXTERNAL || !run_synchronous(run))
        return false;
    for (uint32_t a = 0; a < run->roster.num_ranks; a++)
        for (uint32_t b = 0; b < run->roster.num_ranks; b++) {
            const struct run_trainer *ended = &run->trainers[a];
            if (!ended->finished || ended->ended_early ||
                reached(run, b) <= ended->heartbeat.clock)
                continue;
            roster_name(&run->roster.slots[a], names[0], sizeof names[0]);
            roster_name(&run->roster.slots[b], names[1], sizeof names[1]);
            run_stop(run, FAILURE_ENDS_DIFFER,
                     "%s has ended after step %llu, and %s is in step %llu: "
                     "all trainers take the same steps, or one says that it "
                     "ends early (in Python run.close(early=True))",
                     names[0], (unsigned long long)ended->heartbeat.clock,
                     names[1], (unsigned long long)reached(run, b));
            return true;
        }
    return false;
}

static bool is_any_leaving(const struct run *run) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (run->trainers[r].leaving)
            return true;
    return false;
}

/* The trainers close no round any more. A planned snapshot of the last one
 * comes without a request; one that was requested for a later one does not
 * come. */
static void settle_snapshots(struct run *run) {
    uint64_t step = run_step(run);
    if (step < run->plan.schedule.total)
        snapshot_coordinator_abandon(run);
    if (step > run->plan.schedule.start)
        snapshot_coordinator_expect_planned(run, step);
}

static void stop_untrained(struct run *run) {
    run_stop(run, FAILURE_BAD_RECORD,
             "data.train: all %llu records that the trainers have read are bad "
             "and were left out (data.bad_lines: skip), so nothing was "
             "trained: correct the files, or the keys of data that describe "
             "them; `capstan data peek` shows what is wrong with a record",
             (unsigned long long)run_bad_lines(run));
}

/* What the last trainer has left on the ps is saved first, if it is whole. */
static void stop_without_trainers(struct run *run, const char *text) {
    if (run->job->checkpoint.dir && !lacks_what_trainers_had(run))
        shutdown_interrupt(run, FAILURE_NO_TRAINER, text);
    else
        run_stop(run, FAILURE_NO_TRAINER, "%s; start the same command again",
                 text);
}

/* Ends training once all trainers have left the loop, or none is left. */
static void check_finished(struct run *run, int64_t now) {
    char text[128];
    if (run_count_live(run) || is_any_leaving(run) || !run->membership.view) {
        run->membership.no_trainer_since = 0;
        return;
    }
    if (count_finished(run) && run_all_bad_lines(run)) {
        stop_untrained(run);
        return;
    }
    if (count_finished(run) && run_synchronous(run))
        settle_snapshots(run);
    if (count_finished(run)) {
        stall_update(run, now);
        run_enter_phase(run, RUN_FINISHING);
    } else if (run->no_restart)
        stop_without_trainers(run, "no trainer is left");
    else if (!run->membership.no_trainer_since)
        run->membership.no_trainer_since = time_now();
    else if (time_now() - run->membership.no_trainer_since >
             run->roster.peer_limit) {
        snprintf(text, sizeof text,
                 "no trainer is left, and none came back within %.0f s "
                 "(timeouts.peer)",
                 time_to_seconds(run->roster.peer_limit));
        stop_without_trainers(run, text);
    }
}

/* Leaves out what a synchronous plan has already done. */
static struct snapshot_reason final_reason(const struct run *run) {
    uint64_t step = run_step(run);
    struct snapshot_reason reason = {.export = run->job->export_path};
    reason.save = run->job->checkpoint.dir && !(run->checkpoints.has_saved &&
                                                run->checkpoints.saved >= step);
    reason.evaluate = run_tests_at_end(run);
    return reason;
}

/* One last snapshot serves evaluation, checkpoint and export. Then the run is
 * over; a failure among them is its status. */
static void shutdown_finish(struct run *run) {
    if (snapshot_coordinator_is_pending(run) || run_evaluations_pending(run))
        return;
    if (!run->shutdown.final_snapshot_requested) {
        struct snapshot_reason reason = final_reason(run);
        bool needed = reason.save || reason.evaluate || reason.export;
        run->shutdown.final_snapshot_requested =
            !needed || snapshot_coordinator_request(run, reason, true);
        return;
    }
    if (run->job->checkpoint.dir && run->checkpoints.last_problem[0])
        run_stop(run, FAILURE_CHECKPOINT_NOT_WRITTEN,
                 "the last checkpoint was not written: %s",
                 run->checkpoints.last_problem);
    else if (run->export_problem[0])
        run_stop_unexported(run, run->checkpoints.has_saved);
    else
        run_stop(run, FAILURE_NONE, "done");
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

/* A process that has not joined when the run fails would wait for the chief. It
 * is told when it joins, and once more if the reply is lost: the chief stays
 * for a second, in which a join is repeated. Processes that missed
 * timeouts.join are not waited for again. */
static bool is_waiting_for_absent(const struct run *run, int64_t now) {
    if (run->is_rewinding)
        return false; /* it joins the run that follows */
    if (run->membership.refused_at && now - run->membership.refused_at < TIME_S)
        return true;
    bool interrupted =
        failure_code_is_signal(run->code) && !rewind_is_second(run);
    return run->code && !interrupted &&
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
        log_warning(run->log, "goodbye_missing",
                    "no goodbye within %.0f s (timeouts.stop) from "
                    "%s",
                    run->job->timeouts.stop, unresponsive);
        run_enter_phase(run, RUN_OVER);
    }
}

/* Writes what the command that started RUN does when it is repeated, as the
 * rest of a sentence: "resumes from /x/step-000000500", if the job allows it.
 */
static void resume_hint(const struct run *run, char *text, size_t size) {
    const struct job_checkpoint *checkpoint = &run->job->checkpoint;
    static const char *const other =
        "; with --set checkpoint.resume=auto it resumes from";
    if (!run->checkpoints.has_saved)
        snprintf(text, size, "starts over: there is no checkpoint yet");
    else if (checkpoint->resume == JOB_RESUME_NEVER)
        snprintf(text, size, "starts over (checkpoint.resume is never)%s %s",
                 other, run->checkpoints.folder);
    else if (checkpoint->resume == JOB_RESUME_STEP &&
             checkpoint->resume_step != run->checkpoints.saved)
        snprintf(text, size,
                 "begins at step %llu again (checkpoint.resume)%s %s",
                 (unsigned long long)checkpoint->resume_step, other,
                 run->checkpoints.folder);
    else
        snprintf(text, size, "resumes from %s", run->checkpoints.folder);
}

void shutdown_end_text(const struct run *run, char *text, size_t size) {
    char hint[CHECKPOINT_POLICY_RESUME_HINT_SIZE];
    bool more = run->phase != RUN_OVER && snapshot_coordinator_is_saving(run);
    snprintf(text, size, "%s", run->text);
    if (!run->resumable || more)
        return;
    resume_hint(run, hint, sizeof hint);
    size_t used = strlen(text);
    snprintf(text + used, size - used, "; the same command %s", hint);
}

/* A stop is decided anywhere, and only the first counts; its order is sent once
 * a turn. */
static void send_stop(struct run *run, int64_t now) {
    char text[SHUTDOWN_END_TEXT];
    Capstan__Stop order = CAPSTAN__STOP__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    if (run->phase != RUN_STOPPING || run->shutdown.is_ordered)
        return;
    run->shutdown.is_ordered = true;
    if (!run->is_rewinding && take_over_has_waiting(run))
        run->membership.refused_at = now; /* it asks again, and is told */
    /* A run may end before progress is shown again after a wait. */
    if (run->training_stopped)
        stall_update(run, now);
    progress_close(&run->metrics.progress);
    shutdown_end_text(run, text, sizeof text);
    order.code = run_code_of_members(run->code);
    order.text = text;
    order.restart_within =
        run->is_rewinding
            ? run->job->timeouts.recover
            : run_series_next_within(run, failure_code_status(run->code));
    control.body_case = CAPSTAN__CONTROL__BODY_STOP;
    control.stop = &order;
    control_server_broadcast(run->control_server, CLUSTER_ROLES, &control);
}

void shutdown_step(struct run *run, int64_t now) {
    send_stop(run, now);
    if (run->phase == RUN_STOPPING)
        shutdown_stop(run, now);
    else if (run->shutdown.interrupted && run->phase >= RUN_TRAINING)
        end_interrupted(run, now);
    else if (run->phase == RUN_TRAINING && !ends_differ(run))
        check_finished(run, now);
    else if (run->phase == RUN_FINISHING)
        shutdown_finish(run);
    send_stop(run, now);
}
