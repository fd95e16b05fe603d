/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/verbs.h"

#include "core/base/log.h"
#include "core/base/time.h"
#include "worker/data/data_file.h"
#include "worker/data/dataset.h"
#include "worker/models/model.h"

#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN_VALUES = 16, BATCH = 1024, CHUNK = 1 << 20 };

static const double seconds_each = 2;

static enum status load(const struct options *options, const struct log *log,
                        struct job **job, struct failure *why) {
    struct job_source source = {.models = &model_schemas,
                                .path = options->job,
                                .overrides = options->sets,
                                .num_overrides = options->num_sets};
    enum status status = job_load(job, &source, log, why);
    if (!status && (*job)->model.type == JOB_EXTERNAL)
        status = status_fail(why, FAILURE_JOB_UNFIT,
                             "model.type: found \"external\", whose program "
                             "reads its data itself");
    return status;
}

/* The whole training set as one trainer's share, in order. */
static enum status open_data(const struct job *job, const struct log *log,
                             struct dataset **out, struct failure *why) {
    struct dataset_options options = {.job = job,
                                      .files = &job->data.train,
                                      .key = "data.train",
                                      .num_ranks = 1,
                                      .log = log};
    return dataset_open(out, &options, why);
}

/* "1.5", or the first of many: "[0, 1, 0] of 784". */
static void print_value(FILE *to, const json_t *value) {
    size_t count = json_array_size(value);
    if (!json_is_array(value) || count > SHOWN_VALUES) {
        json_t *shown = json_array();
        for (size_t i = 0; i < count && i < SHOWN_VALUES; i++)
            json_array_append(shown, json_array_get(value, i));
        json_dumpf(count ? shown : value, to,
                   JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
        if (count)
            fprintf(to, " of %zu", count);
        json_decref(shown);
        return;
    }
    json_dumpf(value, to, JSON_REAL_PRECISION(6));
}

static void print_members(FILE *to, const char *title, const json_t *object) {
    const char *name;
    json_t *value;
    if (json_object_size(object))
        fprintf(to, "  %s\n", title);
    json_object_foreach((json_t *)object, name, value) {
        fprintf(to, "    %-16s ", name);
        print_value(to, value);
        fputc('\n', to);
    }
}

static void print_sample(FILE *to, const json_t *row) {
    const json_t *error = json_object_get(row, "error");
    fprintf(to, "%s\n", json_string_value(json_object_get(row, "at")));
    print_members(to, "columns", json_object_get(row, "columns"));
    print_members(to, "features", json_object_get(row, "features"));
    if (error)
        fprintf(to, "  error: %s\n", json_string_value(error));
    else
        fprintf(to, "  label              %.6g\n",
                json_number_value(json_object_get(row, "label")));
    if (json_object_get(row, "weight"))
        fprintf(to, "  weight             %.6g\n",
                json_number_value(json_object_get(row, "weight")));
}

/* Labels are the file's where the model does not fit the data. */
static enum status peek(const struct options *options, const struct job *job,
                        const struct dataset *dataset, FILE *to,
                        struct failure *why) {
    json_t *list = json_array();
    const struct model *model = model_find(&job->model);
    struct batch_spec spec = {0};
    struct failure unfit;
    bool fits =
        !model->check_data(&job->model, dataset, &job->data.train, &unfit);
    if (fits)
        model_inputs(job, dataset->feature_set, &spec);
    enum status status = dataset->table->peek(dataset, fits ? &spec : NULL,
                                              options->rows, list, why);
    size_t i;
    const json_t *row;
    if (options->json && !status) {
        json_t *object = json_pack("{s:O}", "samples", list);
        json_dumpf(object, to, JSON_COMPACT | JSON_REAL_PRECISION(9));
        fputc('\n', to);
        json_decref(object);
    }
    json_array_foreach(list, i, row) if (!options->json) print_sample(to, row);
    json_decref(list);
    return status;
}

static double seconds_since(int64_t start) {
    return time_to_seconds(time_now() - start);
}

/* Bytes a second of the files' unpacked content. */
static enum status measure_bytes(const struct job_files *files, double *rate,
                                 struct failure *why) {
    int64_t start = time_now();
    double bytes = 0;
    char *chunk = malloc(CHUNK);
    glob_t found = {0};
    enum status status =
        chunk ? STATUS_OK
              : status_fail(why, FAILURE_NO_MEMORY, "no memory to read");
    for (size_t i = 0; chunk && files->paths[i]; i++)
        (void)glob(files->paths[i], i ? GLOB_APPEND : 0, NULL, &found);
    for (size_t i = 0; !status && i < found.gl_pathc; i++) {
        struct data_file *file;
        size_t got = 1;
        status = data_file_open(&file, found.gl_pathv[i], "bytes", why);
        while (!status && got && seconds_since(start) < seconds_each) {
            status = data_file_read(file, chunk, CHUNK, &got, why);
            bytes += (double)got;
        }
        data_file_close(&file);
    }
    *rate = bytes / seconds_since(start);
    globfree(&found);
    free(chunk);
    return status;
}

/* Rows a second that are claimed of a source, and filled into batches if
 * FILLS. */
static enum status measure_rows(const struct job *job,
                                const struct dataset *dataset, bool fills,
                                double *rate, struct failure *why) {
    const struct batch_source_table *table = dataset->table->batches;
    struct sampler_options options = {.num_ranks = 1,
                                      .micro_batch = BATCH,
                                      .seed = job->seed,
                                      .shuffle = job->data.shuffle};
    struct batch_spec spec;
    model_inputs(job, dataset->feature_set, &spec);
    struct batch batch = {0};
    struct batch_claim claim = {0};
    struct batch_source *source = NULL;
    void *memory = malloc(batch_bytes(&spec, BATCH));
    enum status status =
        memory
            ? dataset->table->share(&source, dataset, &spec, &options, 0, why)
            : status_fail(why, FAILURE_NO_MEMORY, "no memory for a batch");
    int64_t start = time_now();
    double rows = 0;
    if (memory)
        batch_place(&batch, &spec, memory, BATCH);
    if (!status)
        status = batch_ids_open(&batch.ids, &spec, BATCH, why);
    for (; !status && seconds_since(start) < seconds_each; claim.number++) {
        status = table->claim(source, &claim, why);
        if (!status && fills)
            status = table->fill(source, &claim, &batch, why);
        rows += claim.count;
    }
    *rate = rows / seconds_since(start);
    batch_claim_free(table, &claim);
    batch_ids_close(&batch.ids, &spec);
    if (source)
        table->close(&source);
    free(memory);
    return status;
}

static enum status bench(const struct options *options, const struct job *job,
                         const struct dataset *dataset, FILE *to,
                         struct failure *why) {
    const struct model *model = model_find(&job->model);
    const char *reader = job_data_format_name(job->data.format);
    double bytes = 0, records = 0, samples = 0;
    enum status status =
        model->check_data(&job->model, dataset, &job->data.train, why);
    if (!status)
        status = measure_bytes(&job->data.train, &bytes, why);
    if (!status)
        status = measure_rows(job, dataset, false, &records, why);
    if (!status)
        status = measure_rows(job, dataset, true, &samples, why);
    if (status)
        return status;
    if (options->json) {
        json_t *object = json_pack(
            "{s:s, s:f, s:f, s:f}", "reader", reader, "bytes_per_second", bytes,
            "records_per_second", records, "samples_per_second", samples);
        json_dumpf(object, to, JSON_COMPACT | JSON_REAL_PRECISION(9));
        fputc('\n', to);
        json_decref(object);
        return STATUS_OK;
    }
    fprintf(to,
            "reader %s, one thread\n"
            "bytes, unpacked  %10.1f MB/s\n"
            "records          %10.0f /s\n"
            "samples          %10.0f /s (features and labels)\n",
            reader, bytes / 1e6, records, samples);
    return STATUS_OK;
}

enum status data_command(const struct options *options, struct failure *why) {
    struct log log;
    struct job *job;
    struct dataset *dataset = NULL;
    bool peeks = !strcmp(options->action, "peek");
    log_open(&log, "data", -1);
    if (!peeks && strcmp(options->action, "bench"))
        return status_fail(why, FAILURE_USAGE,
                           "capstan data takes peek JOB.json or bench "
                           "JOB.json");
    enum status status = load(options, &log, &job, why);
    if (!status)
        status = open_data(job, &log, &dataset, why);
    if (!status)
        status = peeks ? peek(options, job, dataset, stdout, why)
                       : bench(options, job, dataset, stdout, why);
    dataset_free(&dataset);
    job_free(&job);
    return status;
}
