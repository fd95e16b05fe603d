/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/models/model.h"

#include "worker/data/features.h"
#include "worker/models/mlp.h"
#include "worker/models/ranker.h"

#include <stdlib.h>

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
    .check_features = features_check};

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
