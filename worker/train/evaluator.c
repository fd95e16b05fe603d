/* SPDX-License-Identifier: Apache-2.0 */
/* Follows a directory, not a run: the evaluator joins no chief, so it may start
 * before, after or without the run, and outlives restarts. A checkpoint is
 * identified by its step and its manifest's inode and time, as a restarted run
 * writes the same step again. A checkpoint may vanish while it is read; that is
 * no error. The end is a final checkpoint in a directory that no run uses any
 * more. */
#include "worker/train/evaluator.h"

#include "core/base/time.h"
#include "core/store/checkpoint.h"
#include "core/store/dir_lock.h"
#include "worker/train/checkpoint_model.h"

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

/* Polling interval of the directory: inotify does not report what other hosts
 * write to a network mount. */
static const int64_t POLL_INTERVAL = TIME_S / 2;

/* A checkpoint, identified by its manifest: a restarted run may write a step
 * again. */
struct checkpoint {
    uint64_t step;
    ino_t inode;
    struct timespec written;
    bool final;
};

struct evaluator {
    const struct evaluator_settings *settings;
    struct checkpoint *seen; /* those that still exist */
    size_t num_seen;
    int64_t newest_at,
        timeout_ns; /* time of the last new one; limit for the next */

    /* From the job of the last manifest. */
    char *text;
    struct job *job;
    struct checkpoint_model *model;
};

static void free_job(struct evaluator *evaluator) {
    checkpoint_model_close(&evaluator->model);
    job_free(&evaluator->job);
    free(evaluator->text);
    evaluator->text = NULL;
}

/* Opens model and data of MANIFEST's job; keeps them while the job is the
 * same. */
static enum status use_job(struct evaluator *evaluator,
                           const struct manifest *manifest,
                           struct failure *why) {
    if (!manifest->job)
        return status_fail(why, FAILURE_CHECKPOINT_INCOMPATIBLE,
                           "it contains no job, so model and data are unknown");
    if (evaluator->text && !strcmp(evaluator->text, manifest->job))
        return STATUS_OK;
    free_job(evaluator);
    enum status status =
        job_parse(&evaluator->job, manifest->job, &model_schemas, why);
    if (!status)
        status = checkpoint_model_open_test(&evaluator->model, evaluator->job,
                                            evaluator->settings->log, why);
    if (status)
        return status;
    int64_t interval =
        time_from_seconds(2 * evaluator->job->checkpoint.every_seconds);
    if (interval > evaluator->timeout_ns)
        evaluator->timeout_ns = interval;
    evaluator->text = strdup(manifest->job);
    return STATUS_OK;
}

static enum status evaluator_evaluate(struct evaluator *evaluator,
                                      const struct manifest *manifest,
                                      const char *folder, struct failure *why) {
    struct evaluation result = {0};
    enum status status = checkpoint_model_evaluate(
        evaluator->model, manifest, folder, (struct checkpoint_model_sink){0},
        &result, why);
    if (!status)
        checkpoint_model_report(evaluator->model, manifest, folder,
                                evaluator->settings->log,
                                evaluator->settings->json, &result);
    binary_scores_clear(&result.scores);
    return status;
}

/* Finds the checkpoint of STEP as it is now; false: there is none. */
static bool find_checkpoint(const struct evaluator *evaluator, uint64_t step,
                            struct checkpoint *out) {
    char folder[PATH_MAX], path[PATH_MAX + 16];
    struct stat file_status;
    checkpoint_folder(evaluator->settings->dir, step, folder, sizeof folder);
    snprintf(path, sizeof path, "%s/manifest.json", folder);
    if (stat(path, &file_status))
        return false;
    *out = (struct checkpoint){.step = step,
                               .inode = file_status.st_ino,
                               .written = file_status.st_mtim};
    return true;
}

static bool evaluator_is_same(const struct checkpoint *a,
                              const struct checkpoint *b) {
    return a->step == b->step && a->inode == b->inode &&
           a->written.tv_sec == b->written.tv_sec &&
           a->written.tv_nsec == b->written.tv_nsec;
}

/* CHECKPOINT cannot be read: either it was removed meanwhile, or it is damaged,
 * which is worth a warning only if no later one replaces it. */
static enum status skip_checkpoint(struct evaluator *evaluator,
                                   const struct checkpoint *checkpoint,
                                   struct failure *why) {
    struct checkpoint now;
    if (!find_checkpoint(evaluator, checkpoint->step, &now) ||
        !evaluator_is_same(&now, checkpoint))
        return STATUS_OK;
    if (checkpoint->final)
        return status_context(why, "the final checkpoint");
    log_warning(evaluator->settings->log, "checkpoint_passed_over",
                "checkpoint of step %" PRIu64 " passed over: %s",
                checkpoint->step, why->text);
    return STATUS_OK;
}

static enum status evaluate_checkpoint(struct evaluator *evaluator,
                                       struct checkpoint *checkpoint,
                                       struct failure *why) {
    char folder[PATH_MAX];
    struct manifest manifest;
    checkpoint_folder(evaluator->settings->dir, checkpoint->step, folder,
                      sizeof folder);
    enum status status = manifest_read(&manifest, folder, why);
    if (status) {
        manifest_clear(&manifest);
        return skip_checkpoint(evaluator, checkpoint, why);
    }
    checkpoint->final = manifest.final;
    status = use_job(evaluator, &manifest, why);
    if (!status)
        status =
            checkpoint_model_check(evaluator->model, &manifest, folder, why);
    if (status)
        status_context(why, "%s", folder);
    else if (checkpoint_model_read(evaluator->model, &manifest, folder, why))
        status = skip_checkpoint(evaluator, checkpoint, why);
    else
        status = evaluator_evaluate(evaluator, &manifest, folder, why);
    manifest_clear(&manifest);
    return status;
}

static bool is_seen(const struct evaluator *evaluator,
                    struct checkpoint *checkpoint) {
    for (size_t i = 0; i < evaluator->num_seen; i++)
        if (evaluator_is_same(&evaluator->seen[i], checkpoint)) {
            checkpoint->final = evaluator->seen[i].final;
            return true;
        }
    return false;
}

static enum status check_interrupts(const struct evaluator *evaluator,
                                    struct failure *why) {
    eventfd_t number;
    if (evaluator->settings->interrupts < 0 ||
        eventfd_read(evaluator->settings->interrupts, &number))
        return STATUS_OK;
    return status_fail(why, failure_code_of_signal((int)number),
                       "ended by signal %d", (int)number);
}

/* A run may have resumed from a final checkpoint and will write more: while it
 * locks the directory the checkpoint is not the end. */
static bool is_finished(const struct evaluator *evaluator,
                        const struct checkpoint *newest) {
    const char *dir = evaluator->settings->dir;
    if (!newest->final || dir_lock_is_locked(dir))
        return false;
    log_info(evaluator->settings->log, "evaluator_finished",
             "step %" PRIu64 " is final, and no run uses %s: the end (a run "
             "that resumes from it needs an evaluator started after its chief)",
             newest->step, dir);
    return true;
}

static void evaluator_report(const struct evaluator *evaluator,
                             enum health_state state, uint64_t step) {
    int64_t now = time_now();
    struct health_report *report =
        health_begin(evaluator->settings->health, now);
    if (!report)
        return;
    report->state = state;
    report->step = step;
    if (state == HEALTH_FOLLOWING) {
        snprintf(report->waiting_for, sizeof report->waiting_for,
                 "a new checkpoint in %s", evaluator->settings->dir);
        struct deadline deadline =
            deadline_start(report->waiting_for, "--join-timeout",
                           evaluator->newest_at, evaluator->timeout_ns);
        health_add_deadline(report, &deadline, now);
    }
    health_end(evaluator->settings->health);
}

/* Evaluates the new ones among STEPS, ascending. *OVER: the newest is the
 * end. */
static enum status evaluate_new(struct evaluator *evaluator,
                                const uint64_t *steps, size_t count, bool *over,
                                struct failure *why) {
    struct checkpoint *present = calloc(count + 1, sizeof *present);
    size_t used = 0;
    enum status status = STATUS_OK;
    if (!present)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for %zu checkpoints", count);
    for (size_t i = 0; !status && i < count; i++) {
        struct checkpoint *checkpoint = &present[used];
        if (!find_checkpoint(evaluator, steps[i], checkpoint))
            continue;
        used++;
        if (is_seen(evaluator, checkpoint))
            continue;
        status = check_interrupts(evaluator, why);
        evaluator_report(evaluator, HEALTH_TRAINING, steps[i]);
        health_leave_loop(evaluator->settings->health, HEALTH_TRAINING);
        if (!status)
            status = evaluate_checkpoint(evaluator, checkpoint, why);
        evaluator->newest_at = time_now();
    }
    *over = !status && used && is_finished(evaluator, &present[used - 1]);
    free(evaluator->seen);
    evaluator->seen = present;
    evaluator->num_seen = used;
    return status;
}

static enum status poll_directory(struct evaluator *evaluator, bool *over,
                                  struct failure *why) {
    uint64_t *steps;
    size_t count;
    enum status status =
        checkpoint_list(evaluator->settings->dir, &steps, &count, why);
    if (status)
        return status;
    status = evaluate_new(evaluator, steps, count, over, why);
    free(steps);
    return status;
}

static enum status wait_for_change(const struct evaluator *evaluator,
                                   struct failure *why) {
    evaluator_report(evaluator, HEALTH_FOLLOWING,
                     evaluator->num_seen
                         ? evaluator->seen[evaluator->num_seen - 1].step
                         : 0);
    int64_t now = time_now(), waited = now - evaluator->newest_at;
    if (waited >= evaluator->timeout_ns)
        return status_fail(
            why, FAILURE_NO_NEW_CHECKPOINT,
            "no new checkpoint in %s for %.0f s (--join-timeout): is the run "
            "alive, and is this its checkpoint.dir?",
            evaluator->settings->dir, time_to_seconds(waited));
    int64_t left = evaluator->timeout_ns - waited;
    struct pollfd item = {evaluator->settings->interrupts, POLLIN, 0};
    poll(
        &item, 1,
        time_poll_ms(now, now + (left < POLL_INTERVAL ? left : POLL_INTERVAL)));
    return check_interrupts(evaluator, why);
}

enum status evaluator_run(const struct evaluator_settings *settings,
                          struct failure *why) {
    struct evaluator evaluator = {.settings = settings,
                                  .newest_at = time_now()};
    bool over = false;
    if (!settings->dir)
        return status_fail(why, FAILURE_USAGE,
                           "an evaluator follows a checkpoint directory: give "
                           "it --checkpoint-dir, or model_dir in TF_CONFIG");
    evaluator.timeout_ns = time_from_seconds(settings->timeout);
    evaluator_report(&evaluator, HEALTH_FOLLOWING, 0);
    log_info(settings->log, "directory_followed", "following %s",
             settings->dir);
    enum status status = poll_directory(&evaluator, &over, why);
    while (!status && !over) {
        status = wait_for_change(&evaluator, why);
        if (!status)
            status = poll_directory(&evaluator, &over, why);
    }
    free_job(&evaluator);
    free(evaluator.seen);
    return status;
}
