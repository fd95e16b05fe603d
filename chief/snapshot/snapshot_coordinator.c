/* SPDX-License-Identifier: Apache-2.0 */
/* Turns a reason into a checkpoint, an evaluation or an export. In a
 * synchronous run the chief queries each holder for its highest round
 * (snapshot_coordinator_request). A holder that was queried closes at most one
 * more round, so the round after the highest is still ahead of all of them, and
 * the chief sends it to all (snapshot_coordinator_receive_round). Otherwise
 * each holder takes its snapshot when the order reaches it. Once all holders
 * have it, it is read and written; once all have written it, it is committed
 * (checkpoint_commit.c). Planned rounds are not requested: the first message
 * about one is that a part is written. */
#include "chief/snapshot/snapshot_coordinator.h"

#include "chief/control/membership.h"
#include "chief/run.h"
#include "chief/snapshot/checkpoint_policy.h"
#include "core/base/time.h"
#include "proto/messages/message.h"
#include "proto/plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Between a snapshot that was given up and the next request. */
static const int64_t RETRY_INTERVAL = 5 * TIME_S;

struct run_snapshot *snapshot_coordinator_find(struct run *run, uint64_t id) {
    for (uint32_t i = 0; i < run->snapshots.count; i++)
        if (run->snapshots.items[i].progress.stage &&
            run->snapshots.items[i].id == id)
            return &run->snapshots.items[i];
    return NULL;
}

/* Returns a free entry. There may be many: while one ps does not report, the
 * others go on reporting planned rounds. */
static struct run_snapshot *snapshot_coordinator_find_free(struct run *run) {
    uint32_t i = 0;
    while (i < run->snapshots.count && run->snapshots.items[i].progress.stage)
        i++;
    if (i == run->snapshots.count) {
        struct run_snapshot *more = realloc(
            run->snapshots.items, (i + 1) * sizeof *run->snapshots.items);
        if (!more)
            return NULL;
        run->snapshots.items = more;
        run->snapshots.items[run->snapshots.count++] = (struct run_snapshot){0};
    }
    return &run->snapshots.items[i];
}

static uint32_t num_tables(const struct run *run) {
    return run->plan.layout ? run->plan.layout->num_tables : 0;
}

/* Other entries may move in memory. */
static struct run_snapshot *snapshot_coordinator_begin(struct run *run,
                                                       uint64_t id) {
    struct run_snapshot *snapshot = snapshot_coordinator_find_free(run);
    uint32_t holders = run->plan.num_holders;
    struct shard_info *files =
        calloc(1, holders * sizeof *files +
                      num_tables(run) * sizeof(struct shard_rows_count));
    if (!snapshot || !files) {
        free(files);
        run_stop(run, FAILURE_NO_MEMORY, "no memory for a checkpoint");
        return NULL;
    }
    free(snapshot->files);
    *snapshot = (struct run_snapshot){
        .id = id,
        .step = id,
        .began = time_now(),
        .files = files,
        .counts = (struct shard_rows_count *)(files + holders)};
    snapshot_round_start(&snapshot->progress, holders);
    return snapshot;
}

/* A snapshot that is only read, by evaluations which one slow trainer may hold
 * up for long, does not block another. */
static bool is_only_read(const struct run_snapshot *snapshot) {
    return snapshot->progress.stage == SNAPSHOT_ROUND_HELD &&
           (!snapshot->save || snapshot->written || snapshot->failed);
}

bool snapshot_coordinator_is_requesting(const struct run *run) {
    for (uint32_t i = 0; i < run->snapshots.count; i++)
        if (run->snapshots.items[i].progress.stage &&
            run->snapshots.items[i].id >= MESSAGE_REQUESTED_SNAPSHOT &&
            !is_only_read(&run->snapshots.items[i]))
            return true;
    return false;
}

bool snapshot_coordinator_is_writing(const struct run *run) {
    for (uint32_t i = 0; i < run->snapshots.count; i++)
        if (run->snapshots.items[i].progress.stage &&
            !is_only_read(&run->snapshots.items[i]))
            return true;
    return false;
}

bool snapshot_coordinator_is_saving(const struct run *run) {
    for (uint32_t i = 0; i < run->snapshots.count; i++) {
        const struct run_snapshot *snapshot = &run->snapshots.items[i];
        if (snapshot->progress.stage && snapshot->save && !snapshot->written &&
            !snapshot->failed)
            return true;
    }
    return false;
}

void snapshot_coordinator_receive_signal(struct run *run, const char *who) {
    const char *outcome = "one checkpoint, and the run goes on";
    if (!run->job->checkpoint.dir)
        outcome = "no checkpoint, as the job has no checkpoint.dir; the run "
                  "goes on";
    else if (run->is_rewinding)
        run->checkpoints.requested = true; /* taken by the next run */
    else if (run->shutdown.interrupted || run->phase >= RUN_FINISHING)
        outcome = "the run is ending, with a checkpoint of its own";
    else if (run->checkpoints.requested || snapshot_coordinator_is_saving(run))
        outcome = "a checkpoint is in progress already; the run goes on";
    else
        run->checkpoints.requested = true;
    log_info(run->log, "checkpoint_requested", "%s: %s", who, outcome);
}

bool snapshot_coordinator_is_pending(const struct run *run) {
    for (uint32_t i = 0; i < run->snapshots.count; i++)
        if (run->snapshots.items[i].progress.stage)
            return true;
    return false;
}

bool snapshot_coordinator_is_evaluating(const struct run *run) {
    for (uint32_t i = 0; i < run->snapshots.count; i++)
        if (run->snapshots.items[i].progress.stage &&
            run->snapshots.items[i].evaluate)
            return true;
    return false;
}

/* Synchronous and not planned: until a holder knows the round, it closes no
 * block more than one round above its highest. */
static void send_query(struct run *run, const struct run_snapshot *snapshot) {
    Capstan__SnapshotPrepare query = CAPSTAN__SNAPSHOT_PREPARE__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    query.id = snapshot->id;
    control.body_case = CAPSTAN__CONTROL__BODY_SNAPSHOT_PREPARE;
    control.snapshot_prepare = &query;
    run_send_to_holders(run, &control);
}

static void send_take(struct run *run, uint64_t id, uint64_t round,
                      uint64_t step, bool write, bool retain) {
    const struct run_snapshot *snapshot = snapshot_coordinator_find(run, id);
    Capstan__Snapshot message = CAPSTAN__SNAPSHOT__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    message.id = id;
    message.round = round;
    message.step = step;
    message.write = write;
    message.retain = retain;
    if (snapshot) {
        message.form = snapshot->form;
        message.last = snapshot->last;
    }
    control.body_case = CAPSTAN__CONTROL__BODY_SNAPSHOT;
    control.snapshot = &message;
    if (run->allreduce && write &&
        !round) /* every rank hands over its optimizer state */
        control_server_broadcast(run->control_server, CLUSTER_WORKER, &control);
    else
        run_send_to_holders(run, &control);
}

static void send_release(struct run *run, uint64_t id) {
    Capstan__SnapshotRelease end = CAPSTAN__SNAPSHOT_RELEASE__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    end.id = id;
    control.body_case = CAPSTAN__CONTROL__BODY_SNAPSHOT_RELEASE;
    control.snapshot_release = &end;
    run_send_to_holders(run, &control);
}

static Capstan__Snapshot__Form form_of(bool save, bool delta) {
    if (!save)
        return CAPSTAN__SNAPSHOT__FORM__UNSAVED;
    return delta ? CAPSTAN__SNAPSHOT__FORM__DELTA
                 : CAPSTAN__SNAPSHOT__FORM__FULL;
}

/* With staleness, and when no trainer pushes any more, each holder takes its
 * snapshot when the order arrives; the order to write follows with the step
 * that the holders report. */
bool snapshot_coordinator_request(struct run *run,
                                  struct snapshot_reason reason, bool end) {
    if (run_synchronous(run) && snapshot_coordinator_is_requesting(run))
        return false; /* a ps agrees on one round at a time */
    struct run_snapshot *snapshot = snapshot_coordinator_begin(
        run, MESSAGE_REQUESTED_SNAPSHOT + ++run->snapshots.requested);
    if (!snapshot)
        return false;
    snapshot->step = run_step(run);
    snapshot->save = reason.save;
    snapshot->last = run->shutdown.interrupted;
    snapshot->form = reason.copy ? CAPSTAN__SNAPSHOT__FORM__COPY
                                 : form_of(reason.save, reason.delta);
    snapshot->copy = reason.copy;
    snapshot->evaluate = reason.evaluate;
    snapshot->export = reason.export;
    snapshot->joins = reason.joins;
    snapshot->retain = reason.evaluate || reason.export ||
                       (reason.joins && run_trainers_keep_weights(run));
    snapshot->readers = (uint32_t)reason.evaluate + reason.export;
    if (run_synchronous(run) && !end) {
        snapshot_round_query(&snapshot->progress, run->plan.num_holders);
        send_query(run, snapshot);
    } else {
        send_take(run, snapshot->id, 0, 0, false, true);
    }
    return true;
}

static bool is_save_due(const struct run *run, int64_t now) {
    double every = run->job->checkpoint.every_seconds;
    return run->job->checkpoint.dir && every > 0 &&
           now - run->checkpoints.saved_at > time_from_seconds(every);
}

/* An epoch has ended since the last evaluation on a snapshot, and the next can
 * begin. */
static bool is_evaluation_due(const struct run *run, uint64_t epochs) {
    return epochs > run->evaluations.epochs_seen &&
           !run_evaluations_pending(run) &&
           !snapshot_coordinator_is_evaluating(run);
}

/* In a synchronous run rounds are planned; what is left is what the plan does
 * not have. */
static struct snapshot_reason due_beside_plan(struct run *run,
                                              struct snapshot_reason reason) {
    uint64_t step = run_step(run);
    uint64_t epochs = run_schedule_epochs(&run->plan.schedule, step);
    reason.evaluate = run_evaluations_missing(run) &&
                      !snapshot_coordinator_is_evaluating(run);
    if (run_tests_own_weights(run) || !run->plan.test_samples ||
        step >= run->plan.schedule.total || !is_evaluation_due(run, epochs))
        return reason;
    run->evaluations.epochs_seen = epochs;
    reason.evaluate = true;
    return reason;
}

/* With staleness the ps count no rounds: what is due at a step is requested
 * once the global step has passed it. */
static struct snapshot_reason due_reason(struct run *run, int64_t now) {
    struct snapshot_reason reason = {.save = is_save_due(run, now) ||
                                             run->checkpoints.requested};
    if (run_synchronous(run))
        return due_beside_plan(run, reason);
    uint64_t step = run_step(run), every = run->plan.schedule.every_steps;
    uint64_t epochs = run_schedule_epochs(&run->plan.schedule, step);
    uint64_t last_epoch = run->evaluations.epochs_seen;
    if (step >= run->plan.schedule.total)
        return (struct snapshot_reason){0};
    if (every && step / every > run->checkpoints.every_seen)
        reason.save = run->job->checkpoint.dir;
    if (is_evaluation_due(run, epochs)) {
        reason.evaluate = run->plan.test_samples;
        reason.save |= run->plan.schedule.every_epochs &&
                       run->job->checkpoint.dir &&
                       epochs / run->plan.schedule.every_epochs >
                           last_epoch / run->plan.schedule.every_epochs;
        run->evaluations.epochs_seen = epochs;
    }
    if (every)
        run->checkpoints.every_seen = step / every;
    uint64_t delta_every = run->plan.schedule.delta_every_steps;
    if (!delta_every || !run->job->checkpoint.dir)
        return reason;
    reason.delta =
        !reason.save && step / delta_every > run->checkpoints.delta_every_seen;
    reason.save |= reason.delta;
    run->checkpoints.delta_every_seen = step / delta_every;
    return reason;
}

static bool has_joiner(const struct run *run) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (run->trainers[r].has_plan && !run->trainers[r].from &&
            run->roster.slots[r].state == ROSTER_HELD)
            return true;
    return false;
}

/* Of a run that was adopted checkpoints up to that step may lack what a trainer
 * that is gone has kept: who joins with one takes a later one. */
static bool is_join_due(const struct run *run) {
    return has_joiner(run) && (!run_count_live(run) ||
                               run_step(run) >= run->checkpoints.kept.adopted);
}

/* A joiner's first contribution is for the round after the snapshot's. */
static void assign_joiners(struct run *run, uint64_t round) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (run->roster.slots[r].state == ROSTER_HELD &&
            run->trainers[r].has_plan && !run->trainers[r].from) {
            run->trainers[r].from = round + 1;
            run->trainers[r].heartbeat.clock = round;
            run_absence_end(run, r);
        }
    membership_broadcast_view(run);
}

/* Without a trainer nobody closes the round of a snapshot that was requested
 * before the last one died: a joiner comes in with it, not after it. */
static void admit_to_requested(struct run *run) {
    for (uint32_t i = 0; i < run->snapshots.count; i++) {
        struct run_snapshot *snapshot = &run->snapshots.items[i];
        if (snapshot->id < MESSAGE_REQUESTED_SNAPSHOT)
            continue;
        bool is_taken = snapshot->progress.stage == SNAPSHOT_ROUND_TAKING;
        if ((!is_taken &&
             snapshot->progress.stage != SNAPSHOT_ROUND_QUERYING) ||
            !has_joiner(run))
            continue;
        snapshot->joins = true; /* told if it fails */
        if (is_taken)
            assign_joiners(run, snapshot->progress.round);
    }
}

/* Requests one snapshot at a time, and none while a view is on its way to the
 * ps: all ps must agree on the trainers of a snapshot. */
void snapshot_coordinator_step(struct run *run, int64_t now) {
    struct snapshot_reason reason = {0};
    if (run->phase == RUN_TRAINING && run_synchronous(run) &&
        !run_count_live(run))
        admit_to_requested(run);
    if (run->phase != RUN_TRAINING || run->shutdown.interrupted ||
        snapshot_coordinator_is_requesting(run) || !run->membership.view_sent ||
        (run->snapshots.gave_up_at &&
         now - run->snapshots.gave_up_at < RETRY_INTERVAL))
        return;
    if (run->metrics.began)
        reason = due_reason(run, now);
    reason.joins = is_join_due(run);
    reason.save |= reason.joins && run_synchronous(run) &&
                   kept_states_any(run) && run->job->checkpoint.dir;
    if (reason.save && !reason.delta) {
        run->checkpoints.saved_at = now;
        run->checkpoints.requested = false;
    }
    if (reason.joins && !run_synchronous(run))
        reason.joins = false;
    if (reason.save || reason.evaluate || reason.joins)
        snapshot_coordinator_request(run, reason, false);
}

/* A planned snapshot gets an entry with its first answer, or here. */
static struct run_snapshot *expect_planned(struct run *run, uint64_t round) {
    struct run_snapshot *snapshot = snapshot_coordinator_find(run, round);
    if (snapshot ||
        (run->checkpoints.has_saved && run->checkpoints.saved == round))
        return snapshot;
    snapshot = snapshot_coordinator_begin(run, round);
    if (snapshot)
        snapshot->save = true;
    return snapshot;
}

/* A requested one replaces the planned one of its round. */
static bool is_saving_round(const struct run *run, uint64_t round) {
    for (uint32_t i = 0; i < run->snapshots.count; i++)
        if (run->snapshots.items[i].progress.stage &&
            run->snapshots.items[i].save &&
            run->snapshots.items[i].step == round)
            return true;
    return false;
}

void snapshot_coordinator_expect_planned(struct run *run, uint64_t round) {
    if (run_schedule_saves(&run->plan.schedule, round) &&
        run->checkpoints.last_failed != round && !is_saving_round(run, round))
        expect_planned(run, round);
}

/* The holders may have passed the last round already. */
static bool is_taken_unrequested(const struct run *run,
                                 const struct run_snapshot *snapshot,
                                 uint64_t round) {
    if (!snapshot->save && !snapshot->retain) /* a joiner reads no snapshot */
        return true;
    return round == run->plan.schedule.total &&
           run_schedule_saves(&run->plan.schedule, round);
}

/* A holder goes on when it has not heard the chief for timeouts.peer. If this
 * process stood still for long, one may have passed the round that its answer
 * stands for: all are asked again. */
static bool query_again(struct run *run, struct run_snapshot *snapshot) {
    int64_t now = time_now();
    if (snapshot->progress.stage != SNAPSHOT_ROUND_QUERYING ||
        now - snapshot->began <= run->roster.peer_limit / 2)
        return false;
    snapshot->id = MESSAGE_REQUESTED_SNAPSHOT + ++run->snapshots.requested;
    snapshot->began = now;
    snapshot_round_query(&snapshot->progress, run->plan.num_holders);
    send_query(run, snapshot);
    return true;
}

/* If the agreed round is a planned one, the request replaces it: no holder
 * skips it, and it is abandoned if the round is never closed. */
void snapshot_coordinator_receive_round(
    struct run *run, const struct roster_slot *slot,
    const Capstan__SnapshotPrepared *prepared) {
    struct run_snapshot *snapshot =
        snapshot_coordinator_find(run, prepared->id);
    if (!snapshot || !run_is_holder(run, slot) || query_again(run, snapshot) ||
        !snapshot_round_receive_highest(&snapshot->progress, prepared->highest,
                                        run->plan.schedule.total))
        return;
    uint64_t round = snapshot->progress.round;
    if (snapshot->joins)
        assign_joiners(run, round);
    if (is_taken_unrequested(run, snapshot, round)) {
        snapshot->progress.stage = SNAPSHOT_ROUND_IDLE;
        send_take(run, round, 0, round, false, false);
        if (snapshot->save)
            snapshot_coordinator_expect_planned(run, round);
        return;
    }
    snapshot->step = round;
    if (!snapshot->save && run_schedule_saves(&run->plan.schedule, round)) {
        snapshot->save = true;
        snapshot->form =
            form_of(true, run_schedule_saves_delta(&run->plan.schedule, round));
    }
    snapshot->ordered = snapshot->save;
    send_take(run, snapshot->id, round, round, snapshot->save,
              snapshot->retain);
}

/* Planned snapshots end by themselves at the holders; requested ones are held
 * there until the chief releases them. */
static void release_if_finished(struct run *run,
                                struct run_snapshot *snapshot) {
    bool saved = !snapshot->save || snapshot->written;
    if (!saved || snapshot->readers || !snapshot->progress.stage)
        return;
    if (snapshot->id >= MESSAGE_REQUESTED_SNAPSHOT)
        send_release(run, snapshot->id);
    snapshot->progress.stage = SNAPSHOT_ROUND_IDLE;
}

void snapshot_coordinator_drop_before(struct run *run, uint64_t step) {
    for (uint32_t i = 0; i < run->snapshots.count; i++) {
        struct run_snapshot *snapshot = &run->snapshots.items[i];
        if (!snapshot->progress.stage || snapshot->complete ||
            snapshot->written || snapshot->id >= MESSAGE_REQUESTED_SNAPSHOT ||
            snapshot->step >= step)
            continue;
        snprintf(snapshot->problem, sizeof snapshot->problem,
                 "a part of it was not reported");
        checkpoint_policy_discard(run, snapshot);
        snapshot->progress.stage = SNAPSHOT_ROUND_IDLE;
    }
}

bool snapshot_coordinator_abandon(struct run *run) {
    bool any = false;
    for (uint32_t i = 0; i < run->snapshots.count; i++) {
        struct run_snapshot *snapshot = &run->snapshots.items[i];
        bool waits = snapshot->progress.stage == SNAPSHOT_ROUND_QUERYING ||
                     (snapshot->progress.stage == SNAPSHOT_ROUND_TAKING &&
                      snapshot->progress.round > run_step(run));
        if (snapshot->id < MESSAGE_REQUESTED_SNAPSHOT || !waits ||
            snapshot->progress.held)
            continue;
        send_release(run, snapshot->id);
        snapshot->progress.stage = SNAPSHOT_ROUND_IDLE;
        any = true;
    }
    return any;
}

bool snapshot_coordinator_take_evaluation(struct run *run, uint64_t *id,
                                          uint64_t *step) {
    for (uint32_t i = 0; i < run->snapshots.count; i++) {
        struct run_snapshot *snapshot = &run->snapshots.items[i];
        if (snapshot->progress.stage != SNAPSHOT_ROUND_HELD ||
            !snapshot->evaluate || snapshot->evaluating)
            continue;
        snapshot->evaluating = true;
        *id = snapshot->id;
        *step = snapshot->step;
        return true;
    }
    return false;
}

void snapshot_coordinator_release(struct run *run, uint64_t id) {
    struct run_snapshot *snapshot = snapshot_coordinator_find(run, id);
    if (!snapshot || !snapshot->readers)
        return;
    snapshot->readers--;
    release_if_finished(run, snapshot);
}

/* All holders have the snapshot. */
static void held(struct run *run, struct run_snapshot *snapshot) {
    if (snapshot->save && !snapshot->ordered) {
        snapshot->ordered = true;
        send_take(run, snapshot->id, 0, snapshot->step, true, snapshot->retain);
        kept_states_request(run, snapshot->step);
    }
    if (snapshot->copy && buddies_may_copy(&run->buddies, snapshot->step))
        send_take(run, snapshot->id, 0, snapshot->step, true, false);
    release_if_finished(run, snapshot);
}

static void handle_written(struct run *run, struct run_snapshot *snapshot) {
    snapshot->complete = !snapshot->failed;
    snapshot->completed_at = time_now();
    if (!snapshot->failed)
        return;
    checkpoint_policy_discard(run, snapshot);
    snapshot_coordinator_saved(run, snapshot);
}

struct run_snapshot *snapshot_coordinator_next_complete(struct run *run) {
    struct run_snapshot *oldest = NULL;
    for (uint32_t i = 0; i < run->snapshots.count; i++) {
        struct run_snapshot *snapshot = &run->snapshots.items[i];
        if (snapshot->progress.stage && snapshot->complete &&
            !snapshot->written && (!oldest || snapshot->step < oldest->step))
            oldest = snapshot;
    }
    return oldest;
}

void snapshot_coordinator_saved(struct run *run,
                                struct run_snapshot *snapshot) {
    snapshot->written = true;
    release_if_finished(run, snapshot);
}

static void record_problem(struct run_snapshot *snapshot,
                           const struct roster_slot *slot, const char *error) {
    char name[64];
    snapshot->failed = true;
    roster_name(slot, name, sizeof name);
    snprintf(snapshot->problem, sizeof snapshot->problem, "%s: %.440s", name,
             error);
}

/* Adds the rows of a holder's tables. A sum fits the manifest's range: ids are
 * 64 bits, but rows are in memory. */
static void record_rows(struct run *run, struct run_snapshot *snapshot,
                        const struct roster_slot *slot,
                        const Capstan__SnapshotReport *report) {
    bool fits = report->n_rows == 2 * (size_t)num_tables(run);
    for (uint32_t t = 0; fits && t < num_tables(run); t++) {
        uint64_t rows = report->rows[2 * t], admitted = report->rows[2 * t + 1];
        fits = rows <= INT64_MAX / run->plan.num_holders && admitted <= rows;
        snapshot->counts[t].rows += rows;
        snapshot->counts[t].admitted += admitted;
    }
    if (!fits && !snapshot->failed)
        record_problem(snapshot, slot,
                       "its numbers of rows are not those of the tables");
}

void snapshot_coordinator_record_file(struct run *run,
                                      struct run_snapshot *snapshot,
                                      const struct roster_slot *slot,
                                      const Capstan__SnapshotReport *report) {
    struct shard_info *file =
        &snapshot->files[run->allreduce ? 0 : roster_place(&run->roster, slot)];
    struct failure why;
    if (!snapshot->failed && !manifest_is_file_name(report->name)) {
        record_problem(snapshot, slot,
                       "it names a file outside the checkpoint's folder");
        return;
    }
    snprintf(file->name, sizeof file->name, "%s", report->name);
    snprintf(file->host, sizeof file->host, "%s", report->host);
    file->size = report->size;
    file->hash[0] = report->hash_low;
    file->hash[1] = report->hash_high;
    snapshot->delta |= report->delta;
    record_rows(run, snapshot, slot, report);
    if (report->seconds > snapshot->seconds)
        snapshot->seconds = report->seconds;
    if (report->scaler &&
        plan_read_scaler(&snapshot->scaler, report->scaler, &why)) {
        snapshot->failed = true;
        snprintf(snapshot->problem, sizeof snapshot->problem, "%.440s",
                 why.text);
    }
}

/* A holder lacks its part: what the snapshot was for fails, and the other
 * holders release theirs. */
static void give_up(struct run *run, struct run_snapshot *snapshot) {
    if (snapshot->save)
        checkpoint_policy_discard(run, snapshot);
    else
        log_warning(run->log, "snapshot_failed",
                    "there is no snapshot of step %llu: %s",
                    (unsigned long long)snapshot->step, snapshot->problem);
    if (snapshot->export)
        snprintf(run->export_problem, sizeof run->export_problem, "%s",
                 snapshot->problem);
    send_release(run, snapshot->id);
    snapshot->progress.stage = SNAPSHOT_ROUND_IDLE;
    run->snapshots.gave_up_at = time_now();
}

/* The first message about a planned snapshot arrives here. Each holder reports
 * each outcome once, so counting is enough. */
void snapshot_coordinator_receive_report(
    struct run *run, const struct roster_slot *slot,
    const Capstan__SnapshotReport *report) {
    if (!run_is_holder(run, slot))
        return;
    struct run_snapshot *snapshot =
        report->id < MESSAGE_REQUESTED_SNAPSHOT
            ? expect_planned(run, report->id)
            : snapshot_coordinator_find(run, report->id);
    if (!snapshot)
        return;
    switch (report->outcome) {
    case CAPSTAN__SNAPSHOT_REPORT__OUTCOME__HELD:
        if (report->has_step)
            snapshot->step = report->step;
        if (snapshot_round_receive_held(&snapshot->progress))
            held(run, snapshot);
        return;
    case CAPSTAN__SNAPSHOT_REPORT__OUTCOME__NOT_HELD:
        record_problem(snapshot, slot, report->error);
        give_up(run, snapshot);
        return;
    case CAPSTAN__SNAPSHOT_REPORT__OUTCOME__WRITTEN:
        snapshot_coordinator_record_file(run, snapshot, slot, report);
        break;
    default:
        snapshot->skipped |= report->skipped;
        record_problem(snapshot, slot, report->error);
        break;
    }
    if (snapshot_round_receive_written(&snapshot->progress))
        handle_written(run, snapshot);
}
