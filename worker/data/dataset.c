/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/dataset.h"

#include "worker/data/idx_dataset.h"
#include "worker/data/record_dataset.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum status dataset_open(struct dataset **out,
                         const struct dataset_options *options,
                         struct failure *why) {
    const struct job_data *data = &options->job->data;
    char *const *paths = options->files->paths;
    enum status status =
        data->format == JOB_IDX
            ? idx_dataset_load(out, paths[0],
                               options->unlabelled ? NULL : paths[1],
                               options->log, why)
            : record_dataset_open(out, options, why);
    return status
               ? status_context(
                     why, "%s%s", options->key,
                     data->dir && !options->unlabelled ? ", in data.dir" : "")
               : STATUS_OK;
}

enum status dataset_compare_columns(const struct dataset *train,
                                    const struct dataset *test, const char *key,
                                    struct failure *why) {
    for (uint32_t c = 0; c < train->num_columns; c++)
        if (c >= test->num_columns ||
            strcmp(train->columns[c], test->columns[c]) != 0)
            return status_fail(
                why, FAILURE_DATA_MISMATCH,
                "%s: found \"%s\" as column %u of its features, expected "
                "\"%s\" as in data.train: give both the same order, or list "
                "\"features\"",
                key, c < test->num_columns ? test->columns[c] : "none", c + 1,
                train->columns[c]);
    return STATUS_OK;
}

enum status dataset_check_labels(const struct dataset *dataset,
                                 const struct batch_column *column,
                                 const char *path, struct failure *why) {
    uint32_t value; /* of either type */
    for (uint64_t i = 0; dataset->labels && i < dataset->count; i++)
        if (batch_put_label(column, dataset->labels[i], &value, 0, why))
            return status_context(why, "%s: sample %" PRIu64, path, i);
    return STATUS_OK;
}

enum status dataset_check_files(const struct job_data *data,
                                const struct job_files *files,
                                struct failure *why) {
    return data->format == JOB_IDX
               ? idx_dataset_check_files(files->paths[0], files->paths[1], why)
               : record_dataset_check_files(files, why);
}

void batch_claim_free(const struct batch_source_table *table,
                      struct batch_claim *claim) {
    if (claim->scratch)
        table->forget(claim);
    free(claim->memory);
    *claim = (struct batch_claim){0};
}

void dataset_free(struct dataset **dataset) {
    if (dataset && *dataset)
        (*dataset)->table->free(dataset);
}
