/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/models/ranker_form.h"

#include "core/tensor/initializer.h"
#include "worker/data/features.h"
#include "worker/models/dense_layers.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* Of initial factors: small, and not 0, where all gradients of pairs are 0. */
#define FACTORS_BOUND 0.01F

enum { LIST = 512 };

/* Lookups' columns are tags until `finish`. */
struct form {
    const struct ranker_settings *settings;
    const uint32_t *group; /* [JOB_GROUPS] */
    const struct features *features;
    struct batch_spec *spec;
    struct table *tables;
    uint32_t num_tables;
    uint32_t floats[RANKER_COLUMNS][BATCH_MAX_FEATURES]; /* features */
    uint32_t num_floats[RANKER_COLUMNS], width[RANKER_COLUMNS];
    struct failure *why;
};

/* Adds feature F to FORM; FAILED: says why not. */
typedef enum status add_feature(struct form *form, uint32_t f, const char *key);

static bool form_gives(const struct form *form, uint32_t f, unsigned what) {
    return features_info(form->features, f).gives & what;
}

static bool is_number(const struct form *form, uint32_t f) {
    return !form_gives(form, f, FEATURE_IDS) &&
           form_gives(form, f, FEATURE_FLOATS);
}

/* The names of features that give any of WHAT. */
static void form_list(const struct form *form, unsigned what,
                      char list[static LIST]) {
    size_t at = 0;
    snprintf(list, LIST, "none");
    for (uint32_t f = 0; f < features_count(form->features); f++) {
        struct feature_info info = features_info(form->features, f);
        if (info.gives & what && at < LIST)
            at += (size_t)snprintf(list + at, LIST - at, "%s%s", at ? ", " : "",
                                   info.name);
    }
}

static enum status form_refuse(const struct form *form, const char *key,
                               const char *name, const char *kind,
                               unsigned what) {
    char list[LIST];
    form_list(form, what, list);
    return status_fail(form->why, FAILURE_JOB_INVALID,
                       "%s: found \"%s\"; allowed: features that give %s: %s",
                       key, name, kind, list);
}

static enum status form_full(const struct form *form, const char *key) {
    return status_fail(form->why, FAILURE_JOB_INVALID,
                       "%s: found more than %d features; allowed: at most %d",
                       key, BATCH_MAX_FEATURES, BATCH_MAX_FEATURES);
}

static enum status add_floats(struct form *form, enum ranker_column column,
                              uint32_t f, const char *key) {
    uint32_t all =
        form->num_floats[RANKER_WIDE] + form->num_floats[RANKER_DEEP];
    if (all == BATCH_MAX_FEATURES)
        return form_full(form, key);
    form->floats[column][form->num_floats[column]++] = f;
    form->width[column] += features_info(form->features, f).width;
    return STATUS_OK;
}

/* The place of feature F among those that give ids. */
static uint32_t place_of_ids(struct batch_spec *spec, uint32_t f) {
    uint32_t place = 0;
    while (place < spec->num_ids && spec->id_features[place] != f)
        place++;
    if (place == spec->num_ids)
        spec->id_features[spec->num_ids++] = f;
    return place;
}

/* TABLE's rows by the ids of feature OF, behind those in COLUMN; of one float:
 * added to it. */
static enum status add_rows(struct form *form, enum ranker_column column,
                            const struct table *table, uint32_t of,
                            enum batch_combiner combiner, const char *key) {
    struct batch_spec *spec = form->spec;
    bool sums = column == RANKER_SUMS;
    if (spec->num_lookups == BATCH_MAX_FEATURES)
        return form_full(form, key);
    spec->lookups[spec->num_lookups++] =
        (struct batch_lookup){.ids = place_of_ids(spec, of),
                              .table = form->num_tables,
                              .column = column,
                              .offset = sums ? 0 : form->width[column],
                              .combiner = combiner};
    form->width[column] = sums ? 1 : form->width[column] + table->dim;
    if (form->tables)
        form->tables[form->num_tables] = *table;
    form->num_tables++;
    return STATUS_OK;
}

/* Of the feature INFO, by the NUM_IDS ids of it or of another. */
static struct table table_of(const struct form *form, enum job_group group,
                             const struct feature_info *info, uint64_t num_ids,
                             uint32_t dim, struct initializer init,
                             const char *suffix) {
    struct table table = {.dim = dim,
                          .init_bound = init.bound,
                          .init_shift = init.shift,
                          .init_kind = init.kind,
                          .optimizer = form->group[group],
                          .admit = info->admit,
                          .expire = info->expire,
                          .max_rows = info->max_rows,
                          .num_ids = num_ids};
    snprintf(table.name, sizeof table.name, "%s%s", info->name, suffix);
    return table;
}

/* First order: a float for each id, or for each number. */
static enum status add_wide(struct form *form, uint32_t f, const char *key) {
    struct feature_info info = features_info(form->features, f);
    struct table table = table_of(form, JOB_GROUP_WIDE, &info, info.num_ids, 1,
                                  (struct initializer){0}, "");
    if (info.gives & FEATURE_IDS)
        return add_rows(form, RANKER_SUMS, &table, f, BATCH_SUM, key);
    if (info.gives & FEATURE_FLOATS)
        return add_floats(form, RANKER_WIDE, f, key);
    return form_refuse(form, key, info.name, "ids or numbers",
                       FEATURE_IDS | FEATURE_FLOATS);
}

/* And of ids `dim` factors. */
static enum status add_factors(struct form *form, uint32_t f, const char *key) {
    struct feature_info info = features_info(form->features, f);
    const struct job_init *init = &form->settings->factors_init;
    struct table table =
        table_of(form, JOB_GROUP_DEEP, &info, info.num_ids, form->settings->dim,
                 init->kind ? initializer_of_job(init, 1, 1)
                            : (struct initializer){.bound = FACTORS_BOUND},
                 "/factors");
    enum status status = add_wide(form, f, key);
    if (status || !(info.gives & FEATURE_IDS))
        return status;
    return add_rows(form, RANKER_ROWS, &table, f, BATCH_SUM, key);
}

/* DeepFM: numbers go to the layers, too. */
static enum status add_deep_factors(struct form *form, uint32_t f,
                                    const char *key) {
    enum status status = add_factors(form, f, key);
    if (status || !is_number(form, f))
        return status;
    return add_floats(form, RANKER_DEEP, f, key);
}

static enum status add_id(struct form *form, uint32_t f, const char *key) {
    if (form_gives(form, f, FEATURE_IDS))
        return add_factors(form, f, key);
    return form_refuse(form, key, features_info(form->features, f).name, "ids",
                       FEATURE_IDS);
}

static enum status add_dense(struct form *form, uint32_t f, const char *key) {
    if (form_gives(form, f, FEATURE_FLOATS))
        return add_floats(form, RANKER_DEEP, f, key);
    return form_refuse(form, key, features_info(form->features, f).name,
                       "numbers", FEATURE_FLOATS);
}

/* DLRM multiplies rows with the bottom's output: all are of one width. */
static enum status check_dim(const struct form *form,
                             const struct feature_info *info, const char *key) {
    const struct job_widths *bottom = &form->settings->bottom;
    uint32_t dim = bottom->count ? bottom->items[bottom->count - 1] : 0;
    if (!dim || info->width == dim)
        return STATUS_OK;
    return status_fail(form->why, FAILURE_JOB_INVALID,
                       "%s: found \"%s\" of dim %u; allowed: dim %u, the last "
                       "width of model.bottom",
                       key, info->name, info->width, dim);
}

static enum status add_embedding(struct form *form, uint32_t f,
                                 const char *key) {
    struct feature_info info = features_info(form->features, f);
    if (!(info.gives & FEATURE_ROWS))
        return form_refuse(form, key, info.name, "embeddings", FEATURE_ROWS);
    struct feature_info of = features_info(form->features, info.of);
    struct table table = table_of(form, JOB_GROUP_DEEP, &info, of.num_ids,
                                  info.width, info.init, "");
    if (!(of.gives & FEATURE_IDS))
        return form_refuse(form, key, of.name, "ids", FEATURE_IDS);
    if (check_dim(form, &info, key))
        return STATUS_CONFIG;
    return add_rows(form, RANKER_ROWS, &table, info.of, info.combiner, key);
}

static enum status add_deep(struct form *form, uint32_t f, const char *key) {
    struct feature_info info = features_info(form->features, f);
    if (info.gives & FEATURE_ROWS)
        return add_embedding(form, f, key);
    if (info.gives & FEATURE_FLOATS)
        return add_floats(form, RANKER_DEEP, f, key);
    return form_refuse(form, key, info.name, "numbers or embeddings",
                       FEATURE_FLOATS | FEATURE_ROWS);
}

static enum status add_name(struct form *form, const char *name,
                            const char *key, add_feature *add) {
    uint32_t f = features_find(form->features, name);
    if (f == UINT32_MAX)
        return form_refuse(form, key, name, "something", UINT32_MAX);
    return add(form, f, key);
}

/* ADD for each of NAMES, a JSON array. */
static enum status add_names(struct form *form, const char *names,
                             const char *key, add_feature *add) {
    json_t *list = json_loads(names, 0, NULL);
    enum status status = STATUS_OK;
    if (!list)
        return status_fail(form->why, FAILURE_NO_MEMORY, "no memory for %s",
                           key);
    for (size_t i = 0; !status && i < json_array_size(list); i++)
        status = add_name(form, json_string_value(json_array_get(list, i)), key,
                          add);
    json_decref(list);
    return status;
}

/* ADD for each of NAMES; NULL: for each feature that gives any of WHAT and, if
 * that is numbers alone, no ids. */
static enum status add_some(struct form *form, const char *names,
                            const char *key, unsigned what, add_feature *add) {
    enum status status = STATUS_OK;
    if (names)
        return add_names(form, names, key, add);
    for (uint32_t f = 0; !status && f < features_count(form->features); f++)
        if (what == FEATURE_FLOATS ? is_number(form, f)
                                   : form_gives(form, f, what))
            status = add(form, f, key);
    return status;
}

static enum status add_dlrm(struct form *form) {
    const struct ranker_settings *s = form->settings;
    enum status status =
        add_some(form, s->dense, "model.dense", FEATURE_FLOATS, add_dense);
    if (!status)
        status = add_some(form, s->embeddings, "model.embeddings", FEATURE_ROWS,
                          add_embedding);
    if (!status && !form->width[RANKER_DEEP])
        status = status_fail(form->why, FAILURE_JOB_INVALID,
                             "model.dense: found no feature that gives "
                             "numbers; allowed: at least one");
    if (!status && !form->width[RANKER_ROWS])
        status = status_fail(form->why, FAILURE_JOB_INVALID,
                             "model.embeddings: found no embedding; allowed: "
                             "at least one");
    return status;
}

static enum status add_features(struct form *form, enum job_model_type type) {
    const struct ranker_settings *s = form->settings;
    const unsigned any = FEATURE_FLOATS | FEATURE_IDS;
    enum status status;
    switch (type) {
    case JOB_FM:
        return add_some(form, s->features, "model.features", any, add_factors);
    case JOB_DEEPFM:
        return add_some(form, s->features, "model.features", any,
                        add_deep_factors);
    case JOB_WIDE_DEEP:
        status = add_some(form, s->wide, "model.wide", any, add_wide);
        return status ? status
                      : add_some(form, s->deep, "model.deep", any, add_deep);
    case JOB_DLRM:
        return add_dlrm(form);
    case JOB_MATRIX_FACTORIZATION:
        status = add_name(form, s->user, "model.user", add_id);
        return status ? status : add_name(form, s->item, "model.item", add_id);
    default:
        return add_some(form, s->features, "model.features", any, add_wide);
    }
}

/* A column of tag TAG behind the others, and its features. */
static void add_column(struct form *form, enum ranker_column tag) {
    struct batch_spec *spec = form->spec;
    uint32_t first = tag == RANKER_DEEP ? form->num_floats[RANKER_WIDE] : 0;
    bool rows = tag == RANKER_SUMS || tag == RANKER_ROWS;
    if (!form->width[tag])
        return;
    for (uint32_t l = 0; l < spec->num_lookups; l++)
        if (rows && form->spec->lookups[l].column == tag + RANKER_COLUMNS)
            spec->lookups[l].column = spec->num_columns;
    memcpy(spec->features + first, form->floats[tag],
           form->num_floats[tag] * sizeof *spec->features);
    spec->columns[spec->num_columns++] =
        (struct batch_column){.type = rows ? BATCH_ROWS : BATCH_FLOATS,
                              .width = form->width[tag],
                              .first_feature = first,
                              .num_features = form->num_floats[tag],
                              .tag = tag};
}

/* Lookups' columns are tags, not places, until add_column. */
static void mark_lookups(struct batch_spec *spec) {
    for (uint32_t l = 0; l < spec->num_lookups; l++)
        spec->lookups[l].column += RANKER_COLUMNS;
}

static void form_finish(struct form *form) {
    struct batch_spec *spec = form->spec;
    enum job_loss loss = form->settings->loss;
    mark_lookups(spec);
    for (int tag = 0; tag < RANKER_LABEL; tag++)
        add_column(form, (enum ranker_column)tag);
    spec->regression = loss == JOB_MSE;
    spec->numbered = form->settings->dropout > 0;
    spec->columns[spec->num_columns++] =
        (struct batch_column){.type = BATCH_FLOATS,
                              .width = 1,
                              .max = loss != JOB_MSE,
                              .tag = RANKER_LABEL};
}

enum status ranker_form_build(const struct job_model *model,
                              const struct features *features,
                              struct batch_spec *spec, struct table *tables,
                              uint32_t *num_tables, struct failure *why) {
    struct form form = {.settings = model->settings,
                        .group = model->group,
                        .features = features,
                        .spec = spec,
                        .tables = tables,
                        .why = why};
    enum status status;
    *spec = (struct batch_spec){0};
    if (features)
        status = add_features(&form, model->type);
    else
        status = status_fail(why, FAILURE_JOB_INVALID,
                             "model.type: needs features; data.format has "
                             "none, allowed: a format of records");
    form_finish(&form);
    *num_tables = form.num_tables;
    return status;
}

/* Without names the numbers are those of all features, as many as there are. */
enum status ranker_form_inputs(const struct ranker_form_inputs *inputs,
                               const struct features *features,
                               struct batch_spec *spec, struct table *tables,
                               uint32_t *num_tables, struct failure *why) {
    static const struct ranker_settings none;
    static const char key[] = "model.features";
    struct form form = {.settings = &none,
                        .group = inputs->group,
                        .features = features,
                        .spec = spec,
                        .tables = tables,
                        .why = why};
    *spec = (struct batch_spec){0};
    enum status status =
        inputs->names ? add_names(&form, inputs->names, key, add_deep)
                      : add_some(&form, NULL, key, FEATURE_ROWS, add_embedding);
    if (!inputs->names)
        form.width[RANKER_DEEP] = features_width(features);
    mark_lookups(spec);
    add_column(&form, RANKER_DEEP);
    spec->columns[spec->num_columns++] = inputs->label;
    add_column(&form, RANKER_ROWS);
    *num_tables = form.num_tables;
    return status;
}

/* IN, then WIDTHS, then OUT unless it is 0. */
static struct job_widths widths_between(uint32_t in,
                                        const struct job_widths *widths,
                                        uint32_t out) {
    struct job_widths all = {.count = 1, .items = {in}};
    for (uint32_t l = 0; l < widths->count; l++)
        all.items[all.count++] = widths->items[l];
    if (out)
        all.items[all.count++] = out;
    return all;
}

static void dlrm_parts(struct ranker_parts *parts,
                       const struct ranker_settings *settings) {
    const struct job_widths *bottom = &settings->bottom;
    parts->dots = true;
    parts->dim = bottom->items[bottom->count - 1];
    parts->fields = 1 + parts->width[RANKER_ROWS] / parts->dim;
    parts->bottom = widths_between(parts->width[RANKER_DEEP], bottom, 0);
    parts->top =
        widths_between(parts->dim + parts->fields * (parts->fields - 1) / 2,
                       &settings->top, 1);
}

void ranker_form_parts(struct ranker_parts *parts,
                       const struct job_model *model,
                       const struct batch_spec *spec) {
    const struct ranker_settings *settings = model->settings;
    bool deep = model->type == JOB_DEEPFM || model->type == JOB_WIDE_DEEP;
    *parts = (struct ranker_parts){.first_order = model->type != JOB_DLRM,
                                   .init = settings->init};
    memcpy(parts->group, model->group, sizeof parts->group);
    for (int tag = 0; tag < RANKER_COLUMNS; tag++)
        parts->place[tag] = UINT32_MAX;
    parts->weights = batch_weights_column(spec);
    uint32_t end = parts->weights ? parts->weights : spec->num_columns;
    for (uint32_t c = 0; c < end; c++) {
        parts->place[spec->columns[c].tag] = c;
        parts->width[spec->columns[c].tag] = spec->columns[c].width;
    }
    if (model->type == JOB_DLRM)
        dlrm_parts(parts, settings);
    uint32_t inputs = parts->width[RANKER_DEEP] + parts->width[RANKER_ROWS];
    if (deep && inputs)
        parts->top = widths_between(inputs, &settings->hidden, 1);
    parts->pairs = settings->dim && parts->width[RANKER_ROWS];
    if (parts->pairs) {
        parts->dim = settings->dim;
        parts->fields = parts->width[RANKER_ROWS] / settings->dim;
    }
}

uint32_t ranker_form_first(const struct ranker_parts *parts) {
    return parts->first_order + (parts->width[RANKER_WIDE] > 0);
}

uint32_t ranker_form_parameters(const struct ranker_parts *parts,
                                struct parameter *parameters) {
    uint32_t count = 0, wide = parts->width[RANKER_WIDE];
    uint32_t bottom = parts->bottom.count ? parts->bottom.count - 1 : 0;
    uint32_t layers = bottom + (parts->top.count ? parts->top.count - 1 : 0);
    if (!parameters)
        return ranker_form_first(parts) + 2 * layers;
    if (wide)
        parameters[count++] =
            (struct parameter){.name = "wide.weight",
                               .num_dims = 2,
                               .dims = {1, wide},
                               .group = parts->group[JOB_GROUP_WIDE],
                               .elements = wide};
    if (parts->first_order)
        parameters[count++] =
            (struct parameter){.name = "bias",
                               .num_dims = 1,
                               .dims = {1},
                               .group = parts->group[JOB_GROUP_WIDE],
                               .elements = 1};
    dense_layers_parameters(&parts->bottom, &parts->init, "bottom",
                            parameters + count);
    dense_layers_parameters(&parts->top, &parts->init,
                            parts->dots ? "top" : "deep",
                            parameters + count + 2 * bottom);
    for (uint32_t p = count; p < count + 2 * layers; p++)
        parameters[p].group = parts->group[JOB_GROUP_DEEP];
    return count + 2 * layers;
}
