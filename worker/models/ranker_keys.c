/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of ranker.h's models. */
#include "worker/models/ranker.h"

#define OF(type, member)                                                       \
    .of_model = true, .models = 1u << (type),                                  \
    .field = offsetof(struct ranker_settings, member)
#define NAMES(type, member) .kind = JOB_KIND_NAMES, OF(type, member)
#define TEXT(type, member) .kind = JOB_KIND_TEXT, OF(type, member)
#define WIDTHS(type, member)                                                   \
    .kind = JOB_KIND_WIDTHS, OF(type, member), .least = 1, /* with inputs */   \
        .most = JOB_MAX_WIDTHS - 2, /* and output */ .min = 1, .max = 16777216
#define DIM(type)                                                              \
    {                                                                          \
        "model.dim", "fm, deepfm, matrix_factorization: factors of an id",     \
            .kind = JOB_KIND_U32, OF(type, dim), .min = 1,                     \
            .max = LAYOUT_MAX_DIM, .required = true                            \
    }
#define DROPOUT(type)                                                            \
    {                                                                            \
        "model.dropout",                                                         \
            "deepfm, wide_deep: fraction of hidden values that a training step " \
            "drops",                                                             \
            .kind = JOB_KIND_REAL, OF(type, dropout), .min = 0, .max = 0.99,     \
            .default_value = "0"                                                 \
    }
#define ACTIVATION(type)                                                       \
    {                                                                          \
        "model.activation",                                                    \
            .kind = JOB_KIND_CHOICE, OF(type, activation),                     \
            .words =                                                           \
                (const char *const[]){JOB_ACTIVATION_ROWS(JOB_WORD) NULL},     \
            .default_value = "\"relu\""                                        \
    }
#define INIT(type)                                                             \
    {                                                                          \
        "model.init", .kind = JOB_KIND_INIT, OF(type, init),                   \
                      .tf = "\"glorot_uniform\""                               \
    }
#define FACTORS_INIT(type)                                                     \
    {                                                                          \
        "model.factors_init",                                                  \
            "fm, deepfm, matrix_factorization: initial factors",               \
            .kind = JOB_KIND_ROW_INIT, OF(type, factors_init)                  \
    }
#define LOSS(type, default_loss)                                               \
    {                                                                          \
        "model.loss",                                                          \
            .kind = JOB_KIND_CHOICE, OF(type, loss),                           \
            .words = (const char *const[]){JOB_LOSS_ROWS(JOB_WORD, "") NULL},  \
            .default_value = default_loss                                      \
    }
#define CROSS_ENTROPY "\"sigmoid_cross_entropy\""

static const struct job_key linear_keys[] = {
    {"model.features", NAMES(JOB_LINEAR, features)},
    {"model.bias", "linear: a weight that every sample has",
     .kind = JOB_KIND_BOOL, OF(JOB_LINEAR, bias), .default_value = "true"},
    LOSS(JOB_LINEAR, CROSS_ENTROPY),
};

static const struct job_key fm_keys[] = {
    {"model.features", NAMES(JOB_FM, features)},
    DIM(JOB_FM),
    FACTORS_INIT(JOB_FM),
    LOSS(JOB_FM, CROSS_ENTROPY),
};

static const struct job_key deepfm_keys[] = {
    {"model.features", NAMES(JOB_DEEPFM, features)},
    DIM(JOB_DEEPFM),
    FACTORS_INIT(JOB_DEEPFM),
    {"model.hidden", "deepfm, wide_deep: widths of the hidden layers",
     WIDTHS(JOB_DEEPFM, hidden), .required = true},
    DROPOUT(JOB_DEEPFM),
    ACTIVATION(JOB_DEEPFM),
    INIT(JOB_DEEPFM),
    LOSS(JOB_DEEPFM, CROSS_ENTROPY),
};

static const struct job_key wide_deep_keys[] = {
    {"model.wide", "wide_deep: features of the linear part",
     NAMES(JOB_WIDE_DEEP, wide), .required = true},
    {"model.deep", "wide_deep: numbers and embeddings for the layers",
     NAMES(JOB_WIDE_DEEP, deep), .required = true},
    {"model.hidden", WIDTHS(JOB_WIDE_DEEP, hidden), .required = true},
    DROPOUT(JOB_WIDE_DEEP),
    ACTIVATION(JOB_WIDE_DEEP),
    INIT(JOB_WIDE_DEEP),
    LOSS(JOB_WIDE_DEEP, CROSS_ENTROPY),
};

static const struct job_key dlrm_keys[] = {
    {"model.dense", "dlrm: features for the bottom layers",
     NAMES(JOB_DLRM, dense)},
    {"model.embeddings", "dlrm: embeddings, of one dim",
     NAMES(JOB_DLRM, embeddings)},
    {"model.bottom",
     "dlrm: widths of the bottom layers; the last is the embeddings' dim",
     WIDTHS(JOB_DLRM, bottom), .required = true},
    {"model.top", "dlrm: widths of the top layers before the output",
     WIDTHS(JOB_DLRM, top), .required = true},
    ACTIVATION(JOB_DLRM),
    INIT(JOB_DLRM),
    LOSS(JOB_DLRM, CROSS_ENTROPY),
};

static const struct job_key matrix_factorization_keys[] = {
    {"model.user", "matrix_factorization: a feature that gives ids",
     TEXT(JOB_MATRIX_FACTORIZATION, user), .required = true},
    {"model.item", "matrix_factorization: another such feature",
     TEXT(JOB_MATRIX_FACTORIZATION, item), .required = true},
    DIM(JOB_MATRIX_FACTORIZATION),
    FACTORS_INIT(JOB_MATRIX_FACTORIZATION),
    LOSS(JOB_MATRIX_FACTORIZATION, "\"mse\""),
};

/* No setting is without effect. */
static void ranker_check_job(const struct job *job, const struct log *log) {
    (void)job, (void)log;
}

#define SCHEMA(name)                                                           \
    const struct job_model_schema name##_schema = {                            \
        .keys = name##_keys,                                                   \
        .num_keys = sizeof name##_keys / sizeof *name##_keys,                  \
        .bytes = sizeof(struct ranker_settings),                               \
        .check = ranker_check_job,                                             \
    }

SCHEMA(linear);
SCHEMA(fm);
SCHEMA(deepfm);
SCHEMA(wide_deep);
SCHEMA(dlrm);
SCHEMA(matrix_factorization);
