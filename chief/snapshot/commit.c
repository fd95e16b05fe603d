/* SPDX-License-Identifier: Apache-2.0 */
/* What the thread works with is copied, or stays as it is while its cut is not
 * over; the run itself is touched by the loop alone. */
#include "chief/snapshot/commit.h"

#include "chief/control/errand.h"
#include "chief/report/measures.h"
#include "chief/snapshot/cuts.h"
#include "chief/snapshot/saves.h"
#include "proto/base/time.h"
#include "proto/store/checkpoint.h"
#include "proto/store/claim.h"
#include "proto/tensor/rule.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

struct commit {
    uint64_t id; /* of the cut */
    const char *dir;
    struct claim *claim; /* on it; the run's */
    uint32_t keep;
    char folder[4096];
    struct manifest manifest;
    enum status pruned; /* older ones; unless OK, LEFT says why not */
    struct failure left;
    struct errand *errand;
};

/* What stands where this process sees it: a directory may go after the ps have
 * written into it, or be theirs no more. */
static enum status look_for_files(const struct commit *commit,
                                  struct failure *why) {
    const struct manifest *manifest = &commit->manifest;
    for (uint32_t i = 0; i < manifest->num_files; i++) {
        const struct shard_info *file = &manifest->files[i];
        char path[sizeof commit->folder + sizeof file->name];
        struct stat about;
        snprintf(path, sizeof path, "%s/%s", commit->folder, file->name);
        if (file->holder[0])
            continue;
        if (stat(path, &about))
            return status_errno(why, STATUS_FAILED, errno,
                                "%s was written, and is not there", path);
        if ((uint64_t)about.st_size != file->size)
            return status_fail(why, STATUS_FAILED,
                               "%s was written with %llu bytes, and has %llu",
                               path, (unsigned long long)file->size,
                               (unsigned long long)about.st_size);
    }
    return STATUS_OK;
}

/* On a thread of its own. The manifest's appearance makes the checkpoint. */
static enum status work(void *context, int cancel, struct failure *why) {
    struct commit *commit = context;
    (void)cancel; /* nothing ends a wait for a disk */
    enum status status = claim_renew(commit->claim, why);
    if (!status)
        status =
            checkpoint_make_folder(commit->dir, commit->manifest.step, why);
    if (!status)
        status = look_for_files(commit, why);
    if (!status)
        status = manifest_write(&commit->manifest, commit->folder, why);
    if (!status)
        commit->pruned =
            checkpoint_prune(commit->dir, commit->keep, &commit->left);
    return status;
}

static bool name_slots(const struct run *run, struct manifest *manifest) {
    manifest->num_slots = rule_slots(&run->job->optimizer);
    manifest->slot_names =
        calloc(manifest->num_slots + 1, sizeof *manifest->slot_names);
    for (unsigned s = 0; manifest->slot_names && s < manifest->num_slots; s++)
        snprintf(manifest->slot_names[s], sizeof *manifest->slot_names, "%s",
                 rule_slot_name(&run->job->optimizer, s));
    return manifest->slot_names;
}

static void fill(struct commit *commit, const struct run *run,
                 const struct run_cut *cut) {
    commit->id = cut->id;
    commit->dir = run->job->checkpoint.dir;
    commit->claim = run->claim;
    commit->keep = run->job->checkpoint.keep;
    checkpoint_folder(commit->dir, cut->step, commit->folder,
                      sizeof commit->folder);
    commit->manifest = (struct manifest){
        .run = run->id,
        .step = cut->step,
        .epoch = rounds_epochs(&run->rounds, cut->step),
        .samples = run_samples(run, cut->step),
        .seed = run->job->seed,
        .final = cut->step >= run->rounds.total,
        .job = run->job->text,
        .rule = (char *)saves_rule(run),
        .layout = run->layout,
        .num_files = run->num_holders,
        .files = cut->files,
        .block_file = run->ps_of_block,
        .scaler = cut->scaler,
    };
}

static enum status start(struct run *run, const struct run_cut *cut,
                         struct failure *why) {
    struct commit *commit = calloc(1, sizeof *commit);
    run->commit = commit;
    if (commit)
        fill(commit, run, cut);
    if (!commit || !name_slots(run, &commit->manifest))
        return status_fail(why, STATUS_RETRY, "no memory for a manifest");
    return errand_open(&commit->errand, work, commit, why);
}

static void let_go(struct run *run) {
    struct commit *commit = run->commit;
    run->commit = NULL;
    if (!commit)
        return;
    errand_close(&commit->errand);
    free(commit->manifest.slot_names);
    free(commit);
}

static void note_written(struct run *run, const struct run_cut *cut) {
    const struct commit *commit = run->commit;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < run->num_holders; i++)
        bytes += cut->files[i].size;
    log_info(run->log, "checkpoint %s: %.1f MB in %.2f s", commit->folder,
             (double)bytes / 1e6, cut->seconds);
    snprintf(run->checkpoint, sizeof run->checkpoint, "%s", commit->folder);
    run->has_saved = true;
    run->saved = cut->step;
    if (run->phase >= RUN_STOPPING && run->end_step < run->saved)
        run->end_step = run->saved;
    run->saved_at = time_now();
    run->last_problem[0] = 0;
    if (commit->pruned)
        log_warning(run->log, "old checkpoints were not removed: %s",
                    commit->left.text);
    saves_tell(run);
}

static void end(struct run *run, struct run_cut *cut, enum status status,
                const struct failure *why) {
    if (status) {
        snprintf(cut->problem, sizeof cut->problem, "%.500s", why->text);
        saves_discard(run, cut);
    } else {
        note_written(run, cut);
    }
    let_go(run);
    cuts_saved(run, cut);
}

/* Of two cuts the older one is not written over the newer, whose pruning has
 * taken its files. */
static void begin(struct run *run, struct run_cut *cut) {
    struct failure why;
    enum status status = STATUS_OK;
    if (run->has_saved && cut->step < run->saved)
        status = status_fail(&why, STATUS_FAILED,
                             "that of step %llu was complete before it, and "
                             "older remains went",
                             (unsigned long long)run->saved);
    if (!status)
        status = start(run, cut, &why);
    if (status)
        end(run, cut, status, &why);
}

/* A run that goes on from there has no other chance to tell of the steps before
 * it; trainers tell of theirs within half a second. */
static bool is_told(struct run *run, const struct run_cut *cut) {
    return run->phase >= RUN_STOPPING || measures_reach(run, cut->step) ||
           time_now() - cut->whole_at > TIME_S;
}

void commit_step(struct run *run) {
    struct run_cut *cut;
    enum status status;
    struct failure why;
    if (run->commit && errand_over(run->commit->errand, &status, &why))
        end(run, cuts_find(run, run->commit->id), status, &why);
    while (!run->commit && (cut = cuts_whole(run)) && is_told(run, cut))
        begin(run, cut);
}

int commit_descriptor(const struct run *run) {
    return run->commit ? errand_descriptor(run->commit->errand) : -1;
}

void commit_finish(struct run *run) {
    int limit = (int)(1000 * fmin(run->job->timeouts.stop, 1e6));
    for (commit_step(run); run->commit; commit_step(run)) {
        struct pollfd over = {commit_descriptor(run), POLLIN, 0};
        if (poll(&over, 1, limit))
            continue;
        log_warning(run->log,
                    "the disk of %s has not taken the checkpoint of step %llu "
                    "within %.0f s (timeouts.stop); it is waited for",
                    run->job->checkpoint.dir,
                    (unsigned long long)run->commit->manifest.step,
                    run->job->timeouts.stop);
        limit = -1;
    }
}
