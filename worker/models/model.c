/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/models/model.h"

#include "proto/plan/optimizer_group.h"
#include "worker/data/csv_format.h"
#include "worker/data/features.h"
#include "worker/data/record_parser.h"
#include "worker/models/mlp.h"
#include "worker/models/ranker.h"

#include <stdlib.h>
#include <string.h>

static void check_job_features(const struct job *job,
                               struct diagnostics *diagnostics);

const struct job_models model_schemas = {
    .of_type =
        {
            [JOB_MLP] = &mlp_schema,
            [JOB_LINEAR] = &linear_schema,
            [JOB_FM] = &fm_schema,
            [JOB_DEEPFM] = &deepfm_schema,
            [JOB_WIDE_DEEP] = &wide_deep_schema,
            [JOB_DLRM] = &dlrm_schema,
            [JOB_MATRIX_FACTORIZATION] = &matrix_factorization_schema,
        },
    .check_features = check_job_features,
    .feature_schema = feature_schema};

const struct model *model_find(const struct job_model *model) {
    static const struct model *const models[] = {
        [JOB_MLP] = &model_mlp,
        [JOB_EXTERNAL] = NULL,
        [JOB_LINEAR] = &model_ranker,
        [JOB_FM] = &model_ranker,
        [JOB_DEEPFM] = &model_ranker,
        [JOB_WIDE_DEEP] = &model_ranker,
        [JOB_DLRM] = &model_ranker,
        [JOB_MATRIX_FACTORIZATION] = &model_ranker,
    };
    return models[model->type];
}

/* The first table whose rows its optimizer cannot keep as they are. */
static void check_optimizers(const struct job *job,
                             const struct features *features,
                             struct diagnostics *diagnostics) {
    const struct model *model = model_find(&job->model);
    struct optimizer_group groups[JOB_GROUPS];
    struct table tables[BATCH_MAX_FEATURES];
    struct failure why;
    (void)optimizer_group_of_job(job, groups);
    uint32_t count =
        model->tables ? model->tables(&job->model, features, tables) : 0;
    for (uint32_t t = 0; t < count; t++)
        if (optimizer_group_check_table(&groups[tables[t].optimizer].optimizer,
                                        tables[t].name, &why)) {
            diagnostics_add(diagnostics,
                            tables[t].optimizer ? "optimizers" : "optimizer",
                            "%s", why.text);
            return;
        }
}

/* Names of Criteo's columns are known, others' are in the files. */
static void check_job_features(const struct job *job,
                               struct diagnostics *diagnostics) {
    static const char *const pairs[] = {RECORD_PARSER_PAIRS};
    const struct csv_format_options criteo = {.criteo = true};
    const struct model *model = model_find(&job->model);
    const char *const *columns = NULL;
    struct csv_format *csv = NULL;
    struct features *features;
    uint32_t count = 0;
    struct failure why = {0};
    if (job->data.format == JOB_CRITEO && !csv_format_open(&csv, &criteo, &why))
        columns = csv_format_columns(csv, &count);
    if (job->data.format == JOB_LIBSVM) {
        columns = pairs;
        count = 1;
    }
    features_check(&features, job->features, columns, count, columns == pairs,
                   diagnostics);
    if (features && model && !diagnostics->count) {
        char *text = NULL;
        if (model->check_features(&job->model, features, &why))
            text = strstr(why.text, ": "); /* behind the key */
        if (!text && *why.text)
            diagnostics_add(diagnostics, "model", "%s", why.text);
        if (text) {
            *text = '\0';
            diagnostics_add(diagnostics, why.text, "%s", text + 2);
        } else
            check_optimizers(job, features, diagnostics);
    }
    features_close(&features);
    csv_format_close(&csv);
}

void model_inputs(const struct job *job, const struct features *features,
                  struct batch_spec *spec) {
    model_find(&job->model)->inputs(&job->model, features, spec);
    if (job->data.weight)
        spec->columns[spec->num_columns++] =
            (struct batch_column){.type = BATCH_WEIGHTS, .width = 1};
}

memory_footprint_of_model *model_memory(const struct job_model *model) {
    const struct model *table = model_find(model);
    return table ? table->memory : NULL;
}

static enum status add_tables(struct layout *layout,
                              const struct job_model *model,
                              const struct features *features,
                              struct failure *why) {
    const struct model *table = model_find(model);
    uint32_t count = table->tables ? table->tables(model, features, NULL) : 0;
    struct table *tables = count ? calloc(count, sizeof *tables) : NULL;
    if (!count)
        return STATUS_OK;
    if (!tables)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for a model's tables");
    table->tables(model, features, tables);
    enum status status =
        layout_add_tables(layout, tables, count, LAYOUT_PARTITIONS, why);
    free(tables);
    return status;
}

enum status model_layout(struct layout **out, const struct job_model *model,
                         const struct features *features, struct failure *why) {
    const struct model *table = model_find(model);
    uint32_t count = table->parameters(model, features, NULL);
    struct parameter *parameters = calloc(count, sizeof *parameters);
    *out = NULL;
    if (!parameters)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for a model's parameters");
    table->parameters(model, features, parameters);
    enum status status = layout_build(out, parameters, count, why);
    free(parameters);
    if (!status)
        status = add_tables(*out, model, features, why);
    if (status)
        layout_free(out);
    return status;
}
