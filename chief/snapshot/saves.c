/* SPDX-License-Identifier: Apache-2.0 */
/* Order makes a checkpoint: the shards' files, then the manifest, then older
 * ones go (commit.c); and in the other direction the manifest goes first. So
 * whatever moment the chief dies at, what has a manifest is whole, and what has
 * none is remains. Nothing is deleted that is not this run's: checkpoints of an
 * earlier run that this one will not go on from are set aside. */
#include "chief/snapshot/saves.h"

#include "chief/snapshot/cuts.h"
#include "proto/base/time.h"
#include "proto/store/checkpoint.h"
#include "proto/store/checkpoint_reader.h"
#include "proto/store/claim.h"
#include "proto/store/disk.h"
#include "proto/tensor/rule.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMED = 8 /* steps, where one is wrong */ };

enum status saves_open(struct run *run, struct failure *why) {
    const char *dir = run->job->checkpoint.dir;
    if (!dir)
        return STATUS_OK;
    struct claim_settings claim = {
        .dir = dir, .run = run->id, .who = "the chief", .log = run->log};
    enum status status = disk_make_folder(dir, why);
    if (!status)
        status = claim_take(&run->claim, &claim, why);
    if (status) {
        status_context(why, "checkpoint.dir");
        return status == STATUS_RETRY ? status : (why->status = STATUS_CONFIG);
    }
    run->saved_at = time_now();
    return STATUS_OK;
}

void saves_close(struct run *run) {
    claim_release(&run->claim);
}

void saves_signal(struct run *run) {
    const char *follows = "one checkpoint, and the run goes on";
    if (!run->job->checkpoint.dir)
        follows = "no checkpoint, as the job has no checkpoint.dir; the run "
                  "goes on";
    else if (run->interrupted || run->phase >= RUN_FINISHING)
        follows = "the run is ending, with a checkpoint of its own";
    else if (run->save_wanted || cuts_saving(run))
        follows = "a checkpoint is under way already; the run goes on";
    else
        run->save_wanted = true;
    log_info(run->log, "SIGUSR1: %s", follows);
}

const char *saves_rule(const struct run *run) {
    static const char *const names[] = {
        [OPTIMIZER_SGD] = "SGD",         [OPTIMIZER_ADAGRAD] = "Adagrad",
        [OPTIMIZER_RMSPROP] = "RMSprop", [OPTIMIZER_ADAM] = "Adam",
        [OPTIMIZER_ADAMW] = "AdamW",     [OPTIMIZER_FTRL] = "Ftrl",
    };
    return names[run->job->optimizer.type];
}

/* What the job and a checkpoint must agree on. */
static enum status check_same(const struct run *run,
                              const struct manifest *manifest,
                              struct failure *why) {
    unsigned long long step = manifest->step;
    const char *dir = run->job->checkpoint.dir;
    static const char *const way_out =
        "resume with the job it was written by, or name another checkpoint.dir,"
        " or begin anew: --set checkpoint.resume=never";
    if (layout_digest(manifest->layout) != run->digest)
        return status_fail(why, STATUS_CONFIG,
                           "the checkpoint of step %llu in %s holds another "
                           "model than model.layers describes: %s",
                           step, dir, way_out);
    if (strcmp(manifest->rule, saves_rule(run)) ||
        manifest->num_slots != rule_slots(&run->job->optimizer))
        return status_fail(why, STATUS_CONFIG,
                           "the checkpoint of step %llu in %s was written by "
                           "optimizer %s with %u state tensors, the job says "
                           "%s with %u: %s",
                           step, dir, manifest->rule, manifest->num_slots,
                           saves_rule(run), rule_slots(&run->job->optimizer),
                           way_out);
    if (manifest->seed != run->job->seed)
        return status_fail(why, STATUS_CONFIG,
                           "the checkpoint of step %llu in %s has seed %llu, "
                           "the job says %llu: %s",
                           step, dir, (unsigned long long)manifest->seed,
                           (unsigned long long)run->job->seed, way_out);
    return STATUS_OK;
}

/* `never` is no permission to delete: another run's checkpoints are moved, so
 * that no later `auto` takes one of them for this run's. */
static enum status start_anew(struct run *run, struct failure *why) {
    size_t moved = 0;
    enum status status =
        checkpoint_set_aside(run->job->checkpoint.dir, 0, run->id, &moved, why);
    if (!status && moved)
        log_warning(run->log,
                    "resume is never: %zu checkpoints of an earlier run were "
                    "moved to %s/aside-%016llx",
                    moved, run->job->checkpoint.dir,
                    (unsigned long long)run->id);
    return status;
}

/* The job may say what is not there: the newest of what is are named. */
static enum status check_stands(const struct job_checkpoint *checkpoint,
                                struct failure *why) {
    uint64_t *steps;
    size_t count;
    char there[256] = "";
    enum status status = checkpoint_list(checkpoint->dir, &steps, &count, why);
    bool stands = false;
    for (size_t i = 0, used = 0; !status && i < count && !stands; i++) {
        stands = steps[i] == checkpoint->resume_step;
        if (count - i <= NAMED && used < sizeof there)
            used += (size_t)snprintf(there + used, sizeof there - used,
                                     "%llu, ", (unsigned long long)steps[i]);
    }
    if (status)
        return status;
    free(steps);
    return stands ? STATUS_OK
                  : status_fail(why, STATUS_CONFIG,
                                "checkpoint.resume: found %llu, a step that "
                                "has no checkpoint in %s; allowed: %s\"auto\" "
                                "(the newest) or \"never\"",
                                (unsigned long long)checkpoint->resume_step,
                                checkpoint->dir, there);
}

/* A step that is named has to verify. Newer ones are set aside: this run will
 * write those steps anew. */
static enum status find(struct run *run, bool *found, struct failure *why) {
    const struct job_checkpoint *checkpoint = &run->job->checkpoint;
    if (checkpoint->resume != JOB_RESUME_STEP)
        return checkpoint_reader_newest(checkpoint->dir, CHECKPOINT_READER_ANY,
                                        &run->restored, found, run->log, why);
    char folder[4096];
    checkpoint_folder(checkpoint->dir, checkpoint->resume_step, folder,
                      sizeof folder);
    struct failure wrong;
    enum status status = check_stands(checkpoint, why);
    if (status)
        return status;
    status = checkpoint_reader_verify(checkpoint->dir, checkpoint->resume_step,
                                      &wrong);
    if (!status)
        status = manifest_read(&run->restored, folder, &wrong);
    *found = !status;
    if (status)
        return status_fail(why, status,
                           "checkpoint.resume names step %llu: %.1500s; "
                           "`capstan ckpt verify` tells which others are whole",
                           (unsigned long long)checkpoint->resume_step,
                           wrong.text);
    size_t moved;
    return checkpoint_set_aside(checkpoint->dir, checkpoint->resume_step + 1,
                                run->id, &moved, why);
}

/* For people epochs count from 1: after the last is the last. */
static uint64_t epoch_to_go_on(const struct run *run) {
    uint64_t epoch = run->restored.epoch + 1, last = run->job->epochs;
    return run->job->has_steps || epoch < last ? epoch : last;
}

enum status saves_find_start(struct run *run, struct failure *why) {
    const struct job_checkpoint *checkpoint = &run->job->checkpoint;
    bool found = false;
    if (!checkpoint->dir)
        return STATUS_OK;
    if (checkpoint->resume == JOB_RESUME_NEVER)
        return start_anew(run, why);
    enum status status = find(run, &found, why);
    if (status || !found)
        return status;
    run->has_restored = true;
    status = check_same(run, &run->restored, why);
    if (status)
        return status;
    checkpoint_folder(checkpoint->dir, run->restored.step, run->restore_folder,
                      sizeof run->restore_folder);
    snprintf(run->checkpoint, sizeof run->checkpoint, "%s",
             run->restore_folder);
    run->has_saved = true;
    run->saved = run->restored.step;
    log_info(run->log, "resuming from %s, epoch %llu", run->restore_folder,
             (unsigned long long)epoch_to_go_on(run));
    return STATUS_OK;
}

void saves_way_on(const struct run *run, char *text, size_t size) {
    const struct job_checkpoint *checkpoint = &run->job->checkpoint;
    static const char *const other =
        "; with --set checkpoint.resume=auto it resumes from";
    if (!run->has_saved)
        snprintf(text, size, "begins anew: there is no checkpoint yet");
    else if (checkpoint->resume == JOB_RESUME_NEVER)
        snprintf(text, size, "begins anew (checkpoint.resume is never)%s %s",
                 other, run->checkpoint);
    else if (checkpoint->resume == JOB_RESUME_STEP &&
             checkpoint->resume_step != run->saved)
        snprintf(text, size,
                 "begins at step %llu again (checkpoint.resume)%s %s",
                 (unsigned long long)checkpoint->resume_step, other,
                 run->checkpoint);
    else
        snprintf(text, size, "resumes from %s", run->checkpoint);
}

/* A ps whose directory is its own cannot see which manifests stand. */
void saves_tell(struct run *run) {
    struct failure why;
    size_t count = 0;
    Capstan__Keep keep = CAPSTAN__KEEP__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    if (!run->job->checkpoint.dir ||
        checkpoint_list(run->job->checkpoint.dir, &keep.steps, &count, &why))
        return;
    keep.n_steps = count;
    control.body_case = CAPSTAN__CONTROL__BODY_KEEP;
    control.keep = &keep;
    run_tell_holders(run, &control);
    free(keep.steps);
}

/* The remains of a step stay when that very step stands complete: it was taken
 * twice, and only the second has failed. What stands in a directory that is not
 * this run's any more may be another's. */
void saves_discard(struct run *run, const struct run_cut *cut) {
    struct failure why;
    if (cut->step > run->unsaved)
        run->unsaved = cut->step;
    log_warning(run->log, "there is no checkpoint of step %llu: %s",
                (unsigned long long)cut->step, cut->problem);
    if (!run->has_saved || run->saved < cut->step)
        snprintf(run->last_problem, sizeof run->last_problem, "%s",
                 cut->problem);
    bool holds = claim_holds(run->claim);
    run->has_saved &= holds;
    if (!holds || (run->has_saved && run->saved == cut->step))
        return;
    if (checkpoint_remove(run->job->checkpoint.dir, cut->step, &why))
        log_warning(run->log, "its remains stay: %s", why.text);
}
