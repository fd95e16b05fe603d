/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/train/checkpoint_model.h"

#include "core/store/checkpoint_reader.h"
#include "core/tensor/row_keys.h"
#include "worker/data/features.h"
#include "worker/train/arena.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

struct checkpoint_model {
    const struct job *job;
    struct dataset *data;
    struct layout *layout;
    struct arena arena; /* weights only */
    struct executor executor;
};

/* Without features the columns count by place: DATA has to have those of
 * data.train, if they can be read here. */
static enum status compare_with_train(const struct dataset *data,
                                      const struct dataset_options *options,
                                      struct failure *why) {
    struct dataset_options own = *options;
    const struct job *job = options->job;
    struct dataset *train = NULL;
    struct failure absent;
    own.files = &job->data.train;
    own.key = "data.train";
    own.count = false;
    if (job->data.format != JOB_CSV || job->features || options->pixels)
        return STATUS_OK;
    if (dataset_open(&train, &own, &absent)) {
        log_warning(options->log, "columns_not_compared",
                    "%s: its columns count by place, and those of data.train "
                    "cannot be read: %s",
                    options->key, absent.text);
        return STATUS_OK;
    }
    enum status status =
        dataset_compare_columns(train, data, options->key, why);
    dataset_free(&train);
    return status;
}

static enum status open_data_of_model(struct checkpoint_model *model,
                                      const struct dataset_options *options,
                                      struct failure *why) {
    const struct job_model *of = &options->job->model;
    enum status status = dataset_open(&model->data, options, why);
    if (!status)
        status = compare_with_train(model->data, options, why);
    return status ? status
                  : model_find(of)->check_data(of, model->data, options->files,
                                               why);
}

static enum status open_executor_of_model(struct checkpoint_model *model,
                                          const struct log *log,
                                          struct failure *why) {
    const struct job *job = model->job;
    struct local_device_request request = {.kind = job->device,
                                           .threads = job->threads,
                                           .timeout = job->timeouts.step,
                                           .tf32 = job->tf32};
    const struct features *features = model->data->feature_set;
    struct executor_options use = {
        .evaluates = true, .features = features, .pixels = model->data->pixels};
    enum status status =
        model_layout(&model->layout, &job->model, features, why);
    if (!status)
        status = arena_open(&model->arena, model->layout, false, why);
    if (!status)
        status = executor_select_device(&model->executor, &request, log, why);
    if (!status)
        status = executor_open(&model->executor, job, model->layout,
                               &model->arena, &use, why);
    return status;
}

enum status checkpoint_model_open(struct checkpoint_model **out,
                                  const struct dataset_options *data,
                                  struct failure *why) {
    struct checkpoint_model *model = calloc(1, sizeof *model);
    *out = model;
    if (!model)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a model");
    model->job = data->job;
    enum status status =
        model_find(&model->job->model)
            ? open_data_of_model(model, data, why)
            : status_fail(why, FAILURE_JOB_UNFIT,
                          "model.type: found \"external\", whose program "
                          "evaluates its model itself");
    if (!status)
        status = open_executor_of_model(model, data->log, why);
    if (status)
        checkpoint_model_close(out);
    return status;
}

enum status checkpoint_model_open_test(struct checkpoint_model **out,
                                       const struct job *job,
                                       const struct log *log,
                                       struct failure *why) {
    struct dataset_options options = {.job = job,
                                      .files = &job->data.test,
                                      .key = "data.test",
                                      .num_ranks = 1,
                                      .count = true,
                                      .log = log};
    *out = NULL;
    if (job->data.test.paths[0])
        return checkpoint_model_open(out, &options, why);
    return status_fail(why, FAILURE_JOB_UNFIT,
                       "the job names no test set (data.test): there is "
                       "nothing to evaluate on");
}

void checkpoint_model_close(struct checkpoint_model **where) {
    struct checkpoint_model *model = *where;
    if (!model)
        return;
    executor_close(&model->executor);
    arena_close(&model->arena);
    layout_free(&model->layout);
    dataset_free(&model->data);
    free(model);
    *where = NULL;
}

uint64_t checkpoint_model_count(const struct checkpoint_model *model) {
    return model->data->count;
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

enum status checkpoint_model_check(const struct checkpoint_model *model,
                                   const struct manifest *manifest,
                                   const char *folder, struct failure *why) {
    const struct features *features = model->data->feature_set;
    if (layout_digest(model->layout) != layout_digest(manifest->layout))
        return status_fail(
            why, FAILURE_CHECKPOINT_INCOMPATIBLE,
            "its model differs from the one that the job describes");
    if (features && manifest->features &&
        manifest->features !=
            features_digest(features, &model->executor.spec) &&
        manifest->features != features_digest(features, NULL))
        return status_fail(
            why, FAILURE_CHECKPOINT_INCOMPATIBLE,
            "it was trained with other features: are `features` those of its "
            "job, and have the files of vocabularies the same words in the "
            "same order here?");
    return check_hosts(manifest, folder, why);
}

enum status checkpoint_model_read(struct checkpoint_model *model,
                                  const struct manifest *manifest,
                                  const char *folder, struct failure *why) {
    struct checkpoint_reader *reader;
    enum status status = checkpoint_reader_open(&reader, folder, manifest, why);
    for (uint32_t b = 0; !status && b < manifest->layout->num_blocks; b++) {
        const struct block *block = &manifest->layout->blocks[b];
        status = checkpoint_reader_block(
            reader, b, SHARD_WEIGHTS,
            model->arena.weight_of[block->parameter] + block->offset, why);
    }
    checkpoint_reader_close(&reader);
    return status;
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

static enum status open_checkpoint_rows(struct checkpoint_model *model,
                                        const struct manifest *manifest,
                                        const char *folder,
                                        struct checkpoint_rows *rows,
                                        struct embedding **embedding,
                                        struct failure *why) {
    struct embedding_settings settings = {
        .layout = manifest->layout,
        .spec = &model->executor.spec,
        .device = &model->executor.device,
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

static void close_checkpoint_rows(struct checkpoint_rows *rows,
                                  struct embedding **embedding) {
    embedding_close(embedding);
    checkpoint_reader_close(&rows->reader);
    for (uint32_t s = 0; rows->keys && s < rows->layout->num_stacks; s++)
        row_keys_free(&rows->keys[s]);
    free(rows->keys);
}

enum status checkpoint_model_evaluate(struct checkpoint_model *model,
                                      const struct manifest *manifest,
                                      const char *folder,
                                      struct checkpoint_model_sink sink,
                                      struct evaluation *out,
                                      struct failure *why) {
    struct checkpoint_rows rows = {0};
    struct embedding *embedding = NULL;
    struct evaluation_range all = {.test = model->data,
                                   .end = model->data->count,
                                   .take = sink.take,
                                   .context = sink.context};
    enum status status =
        open_checkpoint_rows(model, manifest, folder, &rows, &embedding, why);
    *out = (struct evaluation){0};
    all.embedding = embedding;
    if (!status)
        status = executor_evaluate(&model->executor, &all, out, why);
    if (!status && !rows.status && !out->count)
        status = status_fail(why, FAILURE_DATA_TOO_SMALL,
                             "no sample was evaluated: all %" PRIu64 " are bad",
                             out->bad_lines);
    if (!status && rows.status) {
        status = rows.status;
        *why = rows.why;
    }
    close_checkpoint_rows(&rows, &embedding);
    return status;
}

static void report_scores(json_t *object, double auc, double error, double loss,
                          const struct binary_scores *scores) {
    json_t *rank = json_real(auc), *logloss = json_real(loss);
    json_t *calibration = json_real(scores->predicted_sum / scores->target_sum);
    json_object_set_new(object, "test_auc", rank ? rank : json_null());
    if (error > 0)
        json_object_set_new(object, "test_auc_error", json_real(error));
    json_object_set_new(object, "test_logloss",
                        logloss ? logloss : json_null());
    json_object_set_new(object, "test_calibration",
                        calibration ? calibration : json_null());
}

void checkpoint_model_report(const struct checkpoint_model *model,
                             const struct manifest *manifest,
                             const char *folder, const struct log *log,
                             bool json, struct evaluation *result) {
    bool regression = model->executor.spec.regression;
    char ranked[64] = "", shown[64] = "";
    double error,
        auc = binary_scores_auc(&result->scores, model->data->count, &error);
    double count = (double)result->count;
    double accuracy = (double)result->correct / count;
    double loss = result->loss_sum / count;
    auc = isfinite(loss) ? auc : NAN;
    if (result->scores.count && !isnan(auc))
        snprintf(ranked, sizeof ranked,
                 error > 0 ? "AUC %.4f within %.1e, " : "AUC %.4f, ", auc,
                 error);
    else if (result->scores.count && isfinite(loss))
        snprintf(ranked, sizeof ranked, "no AUC (all labels are alike), ");
    if (!regression)
        snprintf(shown, sizeof shown, "test accuracy %.4f, ", accuracy);
    log_info(log, "checkpoint_evaluated",
             loss < 1e5 ? "step %" PRIu64 ": %s%s%s %.4f"
                        : "step %" PRIu64 ": %s%s%s %.3e",
             manifest->step, shown, ranked,
             result->scores.count ? "logloss" : "test loss", loss);
    if (result->bad_lines)
        log_warning(log, "bad_lines",
                    "bad lines left out: %" PRIu64 " of the test set",
                    result->bad_lines);
    if (!json)
        return;
    json_t *right = regression ? json_null() : json_real(accuracy);
    json_t *object = json_pack(
        "{s:I, s:I, s:o, s:s, s:b}", "step", (json_int_t)manifest->step,
        "epoch", (json_int_t)manifest->epoch, "test_accuracy", right,
        "checkpoint", folder, "final", manifest->final);
    json_t *number = json_real(loss); /* NULL when it is not finite */
    json_object_set_new(object, "test_loss", number ? number : json_null());
    if (model->job->data.skip_bad_lines)
        json_object_set_new(object, "test_bad_lines",
                            json_integer((json_int_t)result->bad_lines));
    if (result->scores.count)
        report_scores(object, auc, error, loss, &result->scores);
    json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    putchar('\n');
    fflush(stdout);
    json_decref(object);
}
