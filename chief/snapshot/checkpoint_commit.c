/* SPDX-License-Identifier: Apache-2.0 */
/* The thread works on copies, or on data that is constant until its snapshot is
 * over. Only the chief's loop touches the run. */
#include "chief/snapshot/checkpoint_commit.h"

#include "chief/rewind.h"
#include "chief/snapshot/checkpoint_policy.h"
#include "chief/snapshot/snapshot_coordinator.h"
#include "core/base/background_task.h"
#include "core/base/byte_size.h"
#include "core/base/time.h"
#include "core/store/checkpoint.h"
#include "core/store/dir_lock.h"
#include "core/tensor/rule.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { REPORT_MS = 1000 /* while the end waits for the disk */ };

struct checkpoint_commit {
    uint64_t id; /* of the snapshot */
    const char *dir;
    struct dir_lock *dir_lock; /* the run's lock on the directory */
    uint32_t keep;
    char folder[4096];
    struct manifest manifest;
    enum status prune_status; /* of pruning older ones; unless OK, prune_failure
                                 says why */
    struct failure prune_failure;
    bool base_gone; /* a delta's */
    struct background_task *background_task;
};

/* Checks that this process sees the files in FOLDER: the directory may
 * disappear after the ps have written, or the ps may see another one. */
static enum status checkpoint_commit_verify_files(
    const char *folder, const struct shard_info *files, uint32_t count,
    struct failure *why) {
    for (uint32_t i = 0; i < count; i++) {
        const struct shard_info *file = &files[i];
        char path[sizeof((struct checkpoint_commit *)0)->folder +
                  sizeof file->name];
        struct stat about;
        snprintf(path, sizeof path, "%s/%s", folder, file->name);
        if (file->host[0])
            continue; /* on the disk of another host */
        if (stat(path, &about))
            return status_errno(why, FAILURE_CHECKPOINT_NOT_WRITTEN, errno,
                                "%s was written but does not exist", path);
        if ((uint64_t)about.st_size != file->size)
            return status_fail(why, FAILURE_CHECKPOINT_NOT_WRITTEN,
                               "%s was written with %llu bytes but has %llu",
                               path, (unsigned long long)file->size,
                               (unsigned long long)about.st_size);
    }
    return STATUS_OK;
}

/* Somebody may have removed it, or some of its files. Sizes are compared, and
 * contents are not read again for each delta. */
static enum status verify_base(struct checkpoint_commit *commit,
                               struct failure *why) {
    const struct manifest_name *name = &commit->manifest.base_name;
    char folder[sizeof commit->folder];
    struct manifest base;
    if (!commit->manifest.is_delta)
        return STATUS_OK;
    checkpoint_folder(commit->dir, name->step, folder, sizeof folder);
    enum status status = manifest_read(&base, folder, why);
    if (!status && base.hash != name->hash)
        status = status_fail(why, FAILURE_CHECKPOINT_NOT_WRITTEN,
                             "it is another checkpoint of that step");
    if (!status)
        status = checkpoint_commit_verify_files(folder, base.files,
                                                base.num_files, why);
    if (!status)
        status = checkpoint_commit_verify_files(folder, base.kept,
                                                base.num_kept, why);
    manifest_clear(&base);
    commit->base_gone = status;
    return status ? status_context(why, "a delta, and its base %s", folder)
                  : STATUS_OK;
}

/* Runs on the background thread. The manifest is written last, because its
 * existence makes the checkpoint valid. */
static enum status write_checkpoint(void *context, int cancel,
                                    struct failure *why) {
    struct checkpoint_commit *commit = context;
    (void)cancel; /* a wait for a disk cannot be cancelled */
    /* The directory may have been removed or replaced since the last commit. */
    enum status status = dir_lock_renew(commit->dir_lock, why);
    if (!status)
        status = verify_base(commit, why);
    if (!status)
        status =
            checkpoint_make_folder(commit->dir, commit->manifest.step, why);
    if (!status)
        status = checkpoint_commit_verify_files(
            commit->folder, commit->manifest.files, commit->manifest.num_files,
            why);
    if (!status)
        status = checkpoint_commit_verify_files(commit->folder,
                                                commit->manifest.kept,
                                                commit->manifest.num_kept, why);
    if (!status)
        status = manifest_write(&commit->manifest, commit->folder, why);
    if (!status)
        commit->prune_status =
            checkpoint_prune(commit->dir, commit->keep, &commit->prune_failure);
    return status;
}

/* The groups of callers have one rule, the run's. */
static bool fill_rules(const struct run *run, struct manifest *manifest) {
    bool groups = run->plan.groups && run->job->model.type != JOB_EXTERNAL;
    manifest->num_rules = groups ? run->plan.num_groups : 1;
    manifest->rules = calloc(manifest->num_rules, sizeof *manifest->rules);
    for (uint32_t g = 0; manifest->rules && g < manifest->num_rules; g++) {
        struct manifest_rule *rule = &manifest->rules[g];
        const struct optimizer *optimizer = optimizer_group_find(
            groups ? run->plan.groups : NULL, g, &run->job->optimizer);
        snprintf(rule->name, sizeof rule->name, "%s",
                 rule_name(optimizer->type));
        rule->num_slots = rule_slots(optimizer);
        for (unsigned s = 0; s < rule->num_slots; s++)
            snprintf(rule->slot_names[s], sizeof rule->slot_names[s], "%s",
                     rule_slot_name(optimizer, s));
    }
    return manifest->rules;
}

static bool fill_tables(const struct run *run,
                        const struct run_snapshot *snapshot,
                        struct manifest *manifest) {
    const struct layout *layout = run->plan.layout;
    manifest->tables = calloc(layout->num_tables + 1, sizeof *manifest->tables);
    for (uint32_t t = 0; manifest->tables && t < layout->num_tables; t++) {
        struct manifest_table *table = &manifest->tables[t];
        const struct optimizer *optimizer =
            run_table_optimizer(run, &layout->tables[t]);
        snprintf(table->rule, sizeof table->rule, "%s",
                 rule_name(optimizer->type));
        table->num_slots = rule_slots(optimizer);
        table->count = snapshot->counts[t];
    }
    return manifest->tables;
}

/* The epoch that STEP is in, and the steps done in it. False: so far back no
 * epoch is known. */
static bool epoch_at(const struct run *run, uint64_t step, uint64_t *number,
                     uint64_t *epoch_step) {
    uint64_t first = 0;
    bool known = false;
    *number = 0;
    for (unsigned i = 0; i < MESSAGE_EPOCHS; i++)
        if (run->plan.epochs[i].is_known &&
            run->plan.epochs[i].number >= *number &&
            run->plan.epochs[i].first_step <= step) {
            *number = run->plan.epochs[i].number;
            first = run->plan.epochs[i].first_step;
            known = true;
        }
    *epoch_step = step - first;
    return known;
}

/* A chief that has adopted the run knows the epochs that its rank 0 has told,
 * from that in which it has started. */
static bool lacks_epoch(const struct run *run, uint64_t step) {
    uint64_t number, epoch_step;
    return run->term && run->job->model.type == JOB_EXTERNAL &&
           !epoch_at(run, step, &number, &epoch_step);
}

static void checkpoint_commit_fill(struct checkpoint_commit *commit,
                                   const struct run *run,
                                   const struct run_snapshot *snapshot) {
    commit->id = snapshot->id;
    commit->dir = run->job->checkpoint.dir;
    commit->dir_lock = run->checkpoints.dir_lock;
    commit->keep = run->job->checkpoint.keep;
    if (commit->dir)
        checkpoint_folder(commit->dir, snapshot->step, commit->folder,
                          sizeof commit->folder);
    commit->manifest = (struct manifest){
        .run = run->id,
        .step = snapshot->step,
        .epoch = run_schedule_epochs(&run->plan.schedule, snapshot->step),
        .samples = run_samples(run, snapshot->step),
        .seed = run->job->seed,
        .lineage = run->plan.lineage,
        .features = run->plan.features,
        .final =
            snapshot->step >= run->plan.schedule.total ||
            (run->phase == RUN_FINISHING && snapshot->step >= run_step(run)),
        .job = run->job->text,
        .layout = run->plan.layout,
        .num_files = run->plan.num_holders,
        .files = snapshot->files,
        .block_file = run->plan.ps_of_block,
        .scaler = snapshot->scaler,
        .is_delta = snapshot->delta,
        .base_name = run->checkpoints.base,
    };
    if (run->job->model.type == JOB_EXTERNAL)
        (void)epoch_at(run, snapshot->step, &commit->manifest.epoch,
                       &commit->manifest.epoch_step);
}

char *checkpoint_commit_text(const struct run *run,
                             const struct run_snapshot *snapshot,
                             const struct manifest_name *base) {
    struct checkpoint_commit commit = {0};
    char *text = NULL;
    checkpoint_commit_fill(&commit, run, snapshot);
    commit.manifest.is_delta = base;
    if (base)
        commit.manifest.base_name = *base;
    if (fill_rules(run, &commit.manifest) &&
        fill_tables(run, snapshot, &commit.manifest))
        text = manifest_text(&commit.manifest);
    free(commit.manifest.rules);
    free(commit.manifest.tables);
    return text;
}

static enum status checkpoint_commit_start(struct run *run,
                                           const struct run_snapshot *snapshot,
                                           struct failure *why) {
    struct checkpoint_commit *commit = calloc(1, sizeof *commit);
    run->checkpoints.commit = commit;
    if (commit)
        checkpoint_commit_fill(commit, run, snapshot);
    if (!commit || !fill_rules(run, &commit->manifest) ||
        !fill_tables(run, snapshot, &commit->manifest))
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a manifest");
    enum status status =
        kept_states_take(run, snapshot->step, &commit->manifest.kept,
                         &commit->manifest.num_kept, why);
    if (status)
        return status;
    return background_task_open(&commit->background_task, write_checkpoint,
                                commit, why);
}

static void free_commit(struct run *run) {
    struct checkpoint_commit *commit = run->checkpoints.commit;
    run->checkpoints.commit = NULL;
    if (!commit)
        return;
    background_task_close(&commit->background_task);
    free(commit->manifest.rules);
    free(commit->manifest.tables);
    free(commit->manifest.kept);
    free(commit);
}

static void record_written(struct run *run,
                           const struct run_snapshot *snapshot) {
    const struct checkpoint_commit *commit = run->checkpoints.commit;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < run->plan.num_holders; i++)
        bytes += snapshot->files[i].size;
    char delta[48] = "", size[16];
    byte_size_text(bytes, size, sizeof size);
    if (snapshot->delta)
        snprintf(delta, sizeof delta, ", a delta of step %llu",
                 (unsigned long long)commit->manifest.base_name.step);
    log_info(run->log, "checkpoint_written", "checkpoint %s: %s in %.2f s%s",
             commit->folder, size, snapshot->seconds, delta);
    run->checkpoints.saved_seconds = snapshot->seconds;
    run->checkpoints.complete_at = time_now();
    run->checkpoints.written++;
    if (!snapshot->delta) {
        run->checkpoints.has_base = true;
        run->checkpoints.base = (struct manifest_name){commit->manifest.step,
                                                       commit->manifest.hash};
        run->checkpoints.base_id = commit->id;
        run->checkpoints.saved_at = time_now();
    }
    snprintf(run->checkpoints.folder, sizeof run->checkpoints.folder, "%s",
             commit->folder);
    run->checkpoints.has_saved = true;
    run->checkpoints.saved = snapshot->step;
    rewind_keep_counts(run, snapshot->step);
    if (run->phase >= RUN_STOPPING && run->end_step < run->checkpoints.saved)
        run->end_step = run->checkpoints.saved;
    if (run->term)
        snapshot_coordinator_drop_before(run, snapshot->step);
    run->checkpoints.last_problem[0] = 0;
    if (commit->prune_status)
        log_warning(run->log, "checkpoint_removal_failed",
                    "old checkpoints were not removed: %s",
                    commit->prune_failure.text);
    checkpoint_policy_send_retained(run);
}

/* Was the base of the delta gone? Then a full checkpoint is due. */
static bool lost_base(const struct run *run) {
    return run->checkpoints.commit && run->checkpoints.commit->base_gone;
}

static void checkpoint_commit_end(struct run *run,
                                  struct run_snapshot *snapshot,
                                  enum status status,
                                  const struct failure *why) {
    if (status) {
        snprintf(snapshot->problem, sizeof snapshot->problem, "%.500s",
                 why->text);
        checkpoint_policy_discard(run, snapshot);
        run->checkpoints.requested |= lost_base(run);
    } else {
        record_written(run, snapshot);
    }
    free_commit(run);
    snapshot_coordinator_saved(run, snapshot);
}

/* A delta has its base in an earlier step's folder. With staleness a full
 * checkpoint may be of the same step. */
static bool lacks_base(const struct run *run,
                       const struct run_snapshot *snapshot) {
    return snapshot->delta && !(run->checkpoints.has_base &&
                                run->checkpoints.base.step < snapshot->step);
}

/* An older snapshot is not committed after a newer one, whose pruning has
 * removed its files. */
static void checkpoint_commit_begin(struct run *run,
                                    struct run_snapshot *snapshot) {
    struct failure why;
    enum status status = STATUS_OK;
    char name[64];
    if (kept_states_awaited(run, snapshot->step, name))
        status = status_fail(&why, FAILURE_CHECKPOINT_NOT_WRITTEN,
                             "%s has not written what it keeps", name);
    else if (run->checkpoints.has_saved &&
             snapshot->step < run->checkpoints.saved)
        status = status_fail(
            &why, FAILURE_CHECKPOINT_NOT_WRITTEN,
            "the checkpoint of step %llu was complete before it, and older "
            "files were removed",
            (unsigned long long)run->checkpoints.saved);
    else if (lacks_epoch(run, snapshot->step))
        status = status_fail(&why, FAILURE_CHECKPOINT_NOT_WRITTEN,
                             "rank 0 does not tell in which epoch it is");
    else if (lacks_base(run, snapshot))
        status = status_fail(
            &why, FAILURE_CHECKPOINT_NOT_WRITTEN,
            "a delta, and no full checkpoint of an earlier step is complete");
    if (!status)
        status = checkpoint_commit_start(run, snapshot, &why);
    if (status)
        checkpoint_commit_end(run, snapshot, status, &why);
}

/* Waits for the metrics of all steps before the snapshot: a run that resumes
 * from it cannot write them. Trainers report them within half a second. */
static bool is_progress_written(struct run *run,
                                const struct run_snapshot *snapshot,
                                bool (*write_metrics)(struct run *, uint64_t)) {
    return run->phase >= RUN_STOPPING || write_metrics(run, snapshot->step) ||
           time_now() - snapshot->completed_at > TIME_S;
}

/* Trainers write what they keep when they begin the next step. */
static bool is_kept(const struct run *run,
                    const struct run_snapshot *snapshot) {
    char name[64];
    return run->phase >= RUN_STOPPING ||
           !kept_states_awaited(run, snapshot->step, name) ||
           time_now() - snapshot->completed_at >
               time_from_seconds(run->job->timeouts.step);
}

/* Of weights into which bad records alone were trained there is no checkpoint:
 * a run that starts from one would not know that. Trainers report what they
 * have trained within half a second. */
static bool is_trained(const struct run *run) {
    if (!run->job->data.skip_bad_lines || run->plan.schedule.start ||
        run->shutdown.interrupted)
        return true;
    return run->phase == RUN_TRAINING ? run_total(run).samples > 0
                                      : !run_all_bad_lines(run);
}

void checkpoint_commit_step(struct run *run,
                            bool (*write_metrics)(struct run *, uint64_t)) {
    struct run_snapshot *snapshot;
    enum status status;
    struct failure why;
    if (run->checkpoints.commit &&
        background_task_poll(run->checkpoints.commit->background_task, &status,
                             &why))
        checkpoint_commit_end(
            run, snapshot_coordinator_find(run, run->checkpoints.commit->id),
            status, &why);
    while (!run->checkpoints.commit &&
           (snapshot = snapshot_coordinator_next_complete(run)) &&
           is_progress_written(run, snapshot, write_metrics) &&
           is_kept(run, snapshot) && is_trained(run))
        checkpoint_commit_begin(run, snapshot);
}

int checkpoint_commit_descriptor(const struct run *run) {
    return run->checkpoints.commit
               ? background_task_descriptor(
                     run->checkpoints.commit->background_task)
               : -1;
}

static void report_commit(const struct run *run, struct health *health,
                          int64_t now) {
    struct health_report *report = health_begin(health, now);
    if (!report)
        return;
    report->state = HEALTH_ENDING;
    report->run = run->id;
    report->step = run->checkpoints.commit->manifest.step;
    snprintf(report->waiting_for, sizeof report->waiting_for,
             "the disk of %s to complete the checkpoint",
             run->job->checkpoint.dir);
    health_end(health);
}

void checkpoint_commit_finish(struct run *run, struct health *health) {
    int64_t limit = time_from_seconds(run->job->timeouts.stop);
    int64_t begun = time_now();
    bool is_logged = false;
    for (checkpoint_commit_step(run, NULL); run->checkpoints.commit;
         checkpoint_commit_step(run, NULL)) {
        struct pollfd over = {checkpoint_commit_descriptor(run), POLLIN, 0};
        int64_t now = time_now();
        report_commit(run, health, now);
        if (poll(&over, 1, REPORT_MS) || is_logged || now - begun < limit)
            continue;
        is_logged = true;
        log_warning(
            run->log, "checkpoint_delayed",
            "the disk of %s has not completed the checkpoint of step %llu "
            "within %.0f s (timeouts.stop); the chief keeps waiting",
            run->job->checkpoint.dir,
            (unsigned long long)run->checkpoints.commit->manifest.step,
            run->job->timeouts.stop);
    }
}
