/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/schema_command.h"

#include "core/base/log.h"
#include "core/base/time.h"
#include "proto/job/job_json_schema.h"
#include "proto/plan/run_schedule.h"
#include "worker/data/dataset.h"
#include "worker/models/model.h"

#include <inttypes.h>
#include <stdio.h>

static const double counting_seconds = 2;

static bool counted_long_enough(void *start) {
    return time_to_seconds(time_now() - *(int64_t *)start) > counting_seconds;
}

/* The samples of JOB's training data; 0, with WHY, if that is not known. */
static uint64_t count_samples(const struct job *job, const struct log *log,
                              struct failure *why) {
    int64_t start = time_now();
    struct dataset *dataset;
    struct dataset_options options = {.job = job,
                                      .files = &job->data.train,
                                      .key = "data.train",
                                      .num_ranks = 1,
                                      .count = true,
                                      .is_cancelled = counted_long_enough,
                                      .cancel_context = &start,
                                      .log = log};
    if (dataset_open(&dataset, &options, why)) {
        if (counted_long_enough(&start))
            snprintf(why->text, sizeof why->text,
                     "counting the samples takes longer than %g s",
                     counting_seconds);
        return 0;
    }
    uint64_t count = dataset->count;
    dataset_free(&dataset);
    return count;
}

/* Steps of JOB with one replica, whose micro batch is MICRO; 0, with WHY, if
 * that is not known. */
static uint64_t count_steps(const struct job *job, uint32_t micro,
                            const struct log *log, struct failure *why) {
    uint32_t passes = job->accumulation ? job->accumulation : 1;
    struct run_schedule schedule = {
        .accumulation = passes, .epoch_batches = job->steps_per_epoch * passes};
    if (job->has_steps)
        return job->steps;
    if (!job->steps_per_epoch)
        schedule.epoch_batches = run_schedule_share_batches(
            count_samples(job, log, why), 1, micro, job->data.drop_last);
    return schedule.epoch_batches ? run_schedule_total(&schedule, job->epochs)
                                  : 0;
}

/* "ok, 2820 steps of 256", as far as the job and its data say it. */
static void show_size(const struct job *job, const struct log *log) {
    uint32_t passes = job->accumulation ? job->accumulation : 1;
    uint32_t batch = job->train_batch_size, micro = job->micro_batch;
    const char *of = batch            ? ""
                     : job->has_steps ? " a replica"
                                      : " with one replica";
    struct failure why = {.text = "the samples are not counted"};
    if (!micro)
        micro = batch > passes ? batch / passes : 1;
    if (!batch)
        batch = job->micro_batch * passes;
    bool ends = job->has_steps || job->epochs;
    uint64_t steps = ends ? count_steps(job, micro, log, &why) : 0;
    fputs("ok", stdout);
    if (steps || job->has_steps)
        printf(", %" PRIu64 " step%s", steps, steps == 1 ? "" : "s");
    else if (ends)
        printf(", %" PRIu64 " epoch%s, steps", job->epochs,
               job->epochs == 1 ? "" : "s");
    if (batch && ends)
        printf(" of %" PRIu32 "%s", batch, of);
    if (ends && !steps && !job->has_steps)
        printf("; how many steps is not known: %s", why.text);
    putchar('\n');
}

static enum status schema_command_check(const char *path, struct failure *why) {
    struct log log;
    struct job *job;
    struct job_source source = {.models = &model_schemas, .path = path};
    log_open(&log, "schema", -1);
    enum status status = job_load(&job, &source, &log, why);
    if (!status)
        show_size(job, &log);
    job_free(&job);
    return status;
}

enum status schema_command(const struct options *options, struct failure *why) {
    if (options->job)
        return schema_command_check(options->job, why);
    json_t *schema = job_json_schema(&model_schemas);
    bool done = schema && !json_dumpf(schema, stdout, JSON_INDENT(1)) &&
                putchar('\n') != EOF && !fflush(stdout);
    json_decref(schema);
    return done ? STATUS_OK
                : status_fail(why, FAILURE_FILE_UNWRITABLE,
                              "cannot write the schema");
}
