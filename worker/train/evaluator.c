/* SPDX-License-Identifier: Apache-2.0 */
/* Follows a directory, not a run: the evaluator joins no chief, so it may start
 * before, after or without the run, and outlives restarts. A checkpoint is
 * identified by its step and its manifest's inode and time, as a restarted run
 * writes the same step again. A checkpoint may vanish while it is read; that is
 * no error. The end is a final checkpoint in a directory that no run uses any
 * more. */
#include "worker/train/evaluator.h"

#include "proto/base/time.h"
#include "proto/store/checkpoint.h"
#include "proto/store/checkpoint_reader.h"
#include "proto/store/dir_lock.h"
#include "proto/tensor/row_keys.h"
#include "worker/data/dataset.h"
#include "worker/data/features.h"
#include "worker/train/arena.h"
#include "worker/train/executor.h"

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
    struct dataset *test;
    struct layout *layout;
    struct arena arena; /* weights only */
    struct executor executor;
};

static void free_job(struct evaluator *evaluator) {
    executor_close(&evaluator->executor);
    arena_close(&evaluator->arena);
    layout_free(&evaluator->layout);
    dataset_free(&evaluator->test);
    job_free(&evaluator->job);
    free(evaluator->text);
    evaluator->text = NULL;
}

static enum status load_test(struct evaluator *evaluator, struct failure *why) {
    const struct job *job = evaluator->job;
    if (!job->data.test.paths[0])
        return status_fail(why, FAILURE_JOB_UNFIT,
                           "the job names no test set (data.test): there is "
                           "nothing to evaluate on");
    struct dataset_options options = {.job = job,
                                      .files = &job->data.test,
                                      .key = "data.test",
                                      .num_ranks = 1,
                                      .count = true,
                                      .log = evaluator->settings->log};
    enum status status = dataset_open(&evaluator->test, &options, why);
    return status ? status
                  : model_find(&job->model)
                        ->check_data(&job->model, evaluator->test,
                                     &job->data.test, why);
}

static enum status evaluator_open_model(struct evaluator *evaluator,
                                        struct failure *why) {
    const struct job *job = evaluator->job;
    struct local_device_request request = {.kind = job->device,
                                           .threads = job->threads,
                                           .timeout = job->timeouts.step};
    const struct features *features = evaluator->test->feature_set;
    struct executor_options use = {.evaluates = true, .features = features};
    enum status status =
        model_layout(&evaluator->layout, &job->model, features, why);
    if (!status)
        status = arena_open(&evaluator->arena, evaluator->layout, false, why);
    if (!status)
        status = executor_select_device(&evaluator->executor, &request,
                                        evaluator->settings->log, why);
    if (!status)
        status = executor_open(&evaluator->executor, job, evaluator->layout,
                               &evaluator->arena, &use, why);
    return status;
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
        status = load_test(evaluator, why);
    if (!status)
        status = evaluator_open_model(evaluator, why);
    if (!status &&
        layout_digest(evaluator->layout) != layout_digest(manifest->layout))
        status = status_fail(
            why, FAILURE_CHECKPOINT_DAMAGED,
            "its model differs from the one that its job describes");
    const struct features *features =
        status ? NULL : evaluator->test->feature_set;
    if (features && manifest->features &&
        manifest->features != features_digest(features))
        status = status_fail(
            why, FAILURE_CHECKPOINT_INCOMPATIBLE,
            "it was trained with other features: do the files of vocabularies "
            "have the same words in the same order here?");
    if (status)
        return status;
    int64_t interval =
        time_from_seconds(2 * evaluator->job->checkpoint.every_seconds);
    if (interval > evaluator->timeout_ns)
        evaluator->timeout_ns = interval;
    evaluator->text = strdup(manifest->job);
    return STATUS_OK;
}

static enum status check_hosts(const struct manifest *manifest,
                               const char *folder, struct failure *why) {
    const struct shard_info *file;
    if (!checkpoint_reader_count_remote(folder, manifest, &file))
        return STATUS_OK;
    return status_fail(
        why, FAILURE_DIRECTORY_NOT_SHARED,
        "%s: %s is on the disk of host %s alone: an evaluator needs a "
        "checkpoint directory that all hosts share",
        folder, file->name, file->host);
}

static enum status read_weights(struct evaluator *evaluator,
                                const struct manifest *manifest,
                                const char *folder, struct failure *why) {
    struct checkpoint_reader *reader;
    enum status status = checkpoint_reader_open(&reader, folder, manifest, why);
    for (uint32_t b = 0; !status && b < manifest->layout->num_blocks; b++) {
        const struct block *block = &manifest->layout->blocks[b];
        status = checkpoint_reader_block(
            reader, b, SHARD_WEIGHTS,
            evaluator->arena.weight_of[block->parameter] + block->offset, why);
    }
    checkpoint_reader_close(&reader);
    return status;
}

static void report_scores(json_t *object, double auc, double loss,
                          const struct binary_scores *scores) {
    json_t *rank = json_real(auc), *logloss = json_real(loss);
    json_t *calibration = json_real(scores->predicted_sum / scores->target_sum);
    json_object_set_new(object, "test_auc", rank ? rank : json_null());
    json_object_set_new(object, "test_logloss",
                        logloss ? logloss : json_null());
    json_object_set_new(object, "test_calibration",
                        calibration ? calibration : json_null());
}

static void report(const struct evaluator *evaluator,
                   const struct manifest *manifest, const char *folder,
                   struct evaluation *result) {
    bool regression = evaluator->executor.spec.regression;
    char ranked[64] = "", shown[64] = "";
    double error,
        auc = binary_scores_auc(&result->scores, result->count, &error);
    double count = (double)result->count;
    double accuracy = (double)result->correct / count;
    double loss = result->loss_sum / count;
    if (result->scores.count)
        snprintf(ranked, sizeof ranked, "AUC %.4f, ", auc);
    if (!regression)
        snprintf(shown, sizeof shown, "test accuracy %.4f, ", accuracy);
    log_info(evaluator->settings->log, "checkpoint_evaluated",
             loss < 1e5 ? "step %" PRIu64 ": %s%stest loss %.4f"
                        : "step %" PRIu64 ": %s%stest loss %.3e",
             manifest->step, shown, ranked, loss);
    if (!evaluator->settings->json)
        return;
    json_t *right = regression ? json_null() : json_real(accuracy);
    json_t *object = json_pack(
        "{s:I, s:I, s:o, s:s, s:b}", "step", (json_int_t)manifest->step,
        "epoch", (json_int_t)manifest->epoch, "test_accuracy", right,
        "checkpoint", folder, "final", manifest->final);
    json_t *number = json_real(loss); /* NULL when it is not finite */
    json_object_set_new(object, "loss", number ? number : json_null());
    if (result->scores.count)
        report_scores(object, auc, loss, &result->scores);
    json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    putchar('\n');
    fflush(stdout);
    json_decref(object);
}

/* The rows of a checkpoint's files as the source of an embedding. */
struct checkpoint_rows {
    struct checkpoint_reader *reader;
    const struct layout *layout; /* the manifest's */
    struct row_keys *keys;       /* [num_stacks] */
    enum status status;          /* of the last lookup */
    struct failure why;
};

static enum status look_up_part(struct checkpoint_rows *rows,
                                const struct row_batch *batch, uint32_t p) {
    const struct layout *layout = rows->layout;
    const struct row_batch_part *part = &batch->parts[p];
    float *to = batch->weights + part->first_float;
    size_t used;
    enum status status = STATUS_OK;
    if (part->bytes)
        status = row_keys_read(layout, batch->bytes + part->first_byte,
                               part->bytes, rows->keys, &used, &rows->why);
    for (uint32_t s = 0; !status && part->bytes && s < layout->num_stacks;
         s++) {
        status = checkpoint_reader_lookup(rows->reader, p, s, &rows->keys[s],
                                          to, &rows->why);
        to += (size_t)rows->keys[s].count * row_keys_dim(layout, s);
    }
    return status;
}

static void look_up_checkpoint(void *context, uint64_t clock, bool early,
                               uint64_t snapshot, struct row_batch *batch) {
    struct checkpoint_rows *rows = context;
    (void)clock, (void)early, (void)snapshot;
    for (uint32_t p = 0; !rows->status && p < rows->layout->num_partitions; p++)
        rows->status = look_up_part(rows, batch, p);
}

static bool is_looked_up(void *context) {
    return !((struct checkpoint_rows *)context)->status;
}

static enum status open_rows(struct evaluator *evaluator,
                             const struct manifest *manifest,
                             const char *folder, struct checkpoint_rows *rows,
                             struct embedding **embedding,
                             struct failure *why) {
    struct embedding_settings settings = {
        .layout = manifest->layout,
        .spec = &evaluator->executor.spec,
        .device = &evaluator->executor.device,
        .max_batch = EVALUATION_BATCH,
        .source = {.context = rows,
                   .lookup = look_up_checkpoint,
                   .wait = is_looked_up}};
    if (!manifest->layout->num_tables)
        return STATUS_OK;
    rows->layout = manifest->layout;
    rows->keys = calloc(rows->layout->num_stacks, sizeof *rows->keys);
    if (!rows->keys)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for rows");
    enum status status =
        checkpoint_reader_open(&rows->reader, folder, manifest, why);
    return status ? status : embedding_open(embedding, &settings, why);
}

static void evaluator_close_rows(struct checkpoint_rows *rows,
                                 struct embedding **embedding) {
    embedding_close(embedding);
    checkpoint_reader_close(&rows->reader);
    for (uint32_t s = 0; rows->keys && s < rows->layout->num_stacks; s++)
        row_keys_free(&rows->keys[s]);
    free(rows->keys);
}

static enum status evaluator_evaluate(struct evaluator *evaluator,
                                      const struct manifest *manifest,
                                      const char *folder, struct failure *why) {
    struct checkpoint_rows rows = {0};
    struct embedding *embedding = NULL;
    struct evaluation_range all = {.test = evaluator->test,
                                   .end = evaluator->test->count};
    struct evaluation result = {0};
    enum status status =
        open_rows(evaluator, manifest, folder, &rows, &embedding, why);
    all.embedding = embedding;
    if (!status)
        status = executor_evaluate(&evaluator->executor, &all, &result, why);
    if (!status && rows.status) {
        status = rows.status;
        *why = rows.why;
    }
    evaluator_close_rows(&rows, &embedding);
    if (!status)
        report(evaluator, manifest, folder, &result);
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
        status = check_hosts(&manifest, folder, why);
    if (status)
        status_context(why, "%s", folder);
    else if (read_weights(evaluator, &manifest, folder, why))
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
