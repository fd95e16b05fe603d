/* SPDX-License-Identifier: Apache-2.0 */
/* What models of ranker.h make of features: columns, tables, parameters. */
#define STATE struct form_fixture *f

#include "worker/models/ranker_form.h"

#include "core/tensor/initializer.h"
#include "tests/lib/test.h"
#include "worker/data/features.h"

#include <math.h>

static const char features_text[] =
    "{\"I1\": {\"type\": \"numeric\"}, \"I2\": {\"type\": \"numeric\"},"
    " \"C1\": {\"type\": \"hash_bucket\", \"max_rows\": 500},"
    " \"C2\": {\"type\": \"hash_bucket\", \"size\": 100},"
    " \"age\": {\"type\": \"bucketized\", \"of\": \"I2\","
    "  \"boundaries\": [18, 30]},"
    " \"e1\": {\"type\": \"embedding\", \"of\": \"C1\", \"dim\": 4,"
    "  \"combiner\": \"mean\"},"
    " \"e2\": {\"type\": \"embedding\", \"of\": \"C2\", \"dim\": 4}}";

/* A form of the features above. */
struct form_fixture {
    struct features *features;
    struct batch_spec spec;
    struct table tables[BATCH_MAX_FEATURES];
    uint32_t num_tables;
    struct ranker_parts parts;
};

static int form_setup(void **state) {
    static struct form_fixture fixture;
    fixture = (struct form_fixture){0};
    assert_ok(features_open(&fixture.features, features_text, NULL, 0, NULL,
                            &failure));
    *state = &fixture;
    return 0;
}

static int form_teardown(void **state) {
    struct form_fixture *fixture = *state;
    features_close(&fixture->features);
    return 0;
}

FIXTURE(form_setup, form_teardown);

static enum status build(struct form_fixture *fixture, enum job_model_type type,
                         const struct ranker_settings *settings) {
    struct job_model model = {.type = type, .settings = settings};
    enum status status =
        ranker_form_build(&model, fixture->features, &fixture->spec,
                          fixture->tables, &fixture->num_tables, &failure);
    ranker_form_parts(&fixture->parts, &model, &fixture->spec);
    return status;
}

static void must_build(struct form_fixture *fixture, enum job_model_type type,
                       const struct ranker_settings *settings) {
    assert_ok(build(fixture, type, settings));
}

static void expect_lookup(const struct form_fixture *fixture, uint32_t l,
                          const char *table, enum ranker_column tag,
                          uint32_t offset) {
    const struct batch_lookup *lookup = &fixture->spec.lookups[l];
    assert_in_range(l, 0, fixture->spec.num_lookups - 1);
    assert_string_equal(fixture->tables[lookup->table].name, table);
    assert_int_equal(lookup->column, fixture->parts.place[tag]);
    assert_int_equal(fixture->spec.columns[lookup->column].type, BATCH_ROWS);
    assert_int_equal(lookup->offset, offset);
}

TEST(what_gives_ids_has_rows_and_a_number_a_weight) {
    must_build(f, JOB_LINEAR, &(struct ranker_settings){.loss = JOB_MSE});
    assert_int_equal(f->parts.width[RANKER_WIDE], 2);
    assert_int_equal(f->parts.width[RANKER_SUMS], 1);
    assert_int_equal(f->num_tables, 3);
    expect_lookup(f, 0, "C1", RANKER_SUMS, 0);
    expect_lookup(f, 1, "C2", RANKER_SUMS, 0);
    expect_lookup(f, 2, "age", RANKER_SUMS, 0);
    assert_int_equal(f->tables[0].dim, 1);
    assert_int_equal(f->tables[0].max_rows, 500);
    assert_int_equal(f->tables[0].num_ids, 0);
    assert_int_equal(f->tables[1].num_ids, 100);
    assert_int_equal(f->tables[2].num_ids, 3);
    assert_true(f->tables[0].init_bound == 0);
    assert_int_equal(f->spec.num_ids, 3);
    assert_true(f->spec.regression);
    assert_int_equal(f->parts.place[RANKER_LABEL], f->spec.num_columns - 1);
}

TEST(factors_lie_side_by_side) {
    static char names[] = "[\"C1\", \"I1\", \"C2\"]";
    must_build(f, JOB_DEEPFM,
               &(struct ranker_settings){
                   .features = names, .dim = 3, .hidden = {1, {8}}});
    assert_int_equal(f->num_tables, 4);
    expect_lookup(f, 0, "C1", RANKER_SUMS, 0);
    expect_lookup(f, 1, "C1/factors", RANKER_ROWS, 0);
    expect_lookup(f, 3, "C2/factors", RANKER_ROWS, 3);
    assert_int_equal(f->spec.num_ids, 2);
    assert_int_equal(f->spec.lookups[3].ids, f->spec.lookups[2].ids);
    assert_true(f->tables[1].init_bound > 0);
    assert_int_equal(f->parts.fields, 2);
    assert_int_equal(f->parts.top.items[0], 1 + 6);
    assert_int_equal(ranker_form_parameters(&f->parts, NULL), 2 + 4);
}

TEST(wide_and_deep_read_columns_of_their_own) {
    static char wide[] = "[\"I2\", \"C1\"]",
                deep[] = "[\"e1\", \"I1\", \"age\"]";
    must_build(f, JOB_WIDE_DEEP,
               &(struct ranker_settings){
                   .wide = wide, .deep = deep, .hidden = {1, {8}}});
    const struct batch_column *of_wide =
        &f->spec.columns[f->parts.place[RANKER_WIDE]];
    const struct batch_column *of_deep =
        &f->spec.columns[f->parts.place[RANKER_DEEP]];
    assert_int_equal(of_wide->num_features, 1);
    assert_int_equal(f->spec.features[of_wide->first_feature], 1);
    assert_int_equal(of_deep->num_features, 2);
    assert_int_equal(f->spec.features[of_deep->first_feature], 0);
    assert_int_equal(of_deep->width, 1 + 3);
    expect_lookup(f, 1, "e1", RANKER_ROWS, 0);
    assert_int_equal(f->spec.lookups[1].combiner, BATCH_MEAN);
    assert_int_equal(f->tables[1].dim, 4);
}

TEST(dlrm_takes_all_numbers_and_embeddings) {
    must_build(f, JOB_DLRM,
               &(struct ranker_settings){.bottom = {1, {4}}, .top = {1, {8}}});
    assert_int_equal(f->parts.width[RANKER_DEEP], 2);
    assert_int_equal(f->parts.width[RANKER_ROWS], 8);
    assert_int_equal(f->parts.fields, 3);
    assert_int_equal(f->parts.top.items[0], 4 + 3);
    expect_lookup(f, 1, "e2", RANKER_ROWS, 4);
    assert_int_equal(f->tables[1].num_ids, 100);
}

/* Of model.init, model.factors_init and optimizers. */
TEST(layers_and_factors_begin_as_the_job_says) {
    struct parameter parameters[16];
    const struct ranker_settings settings = {
        .dim = 3,
        .hidden = {1, {8}},
        .loss = JOB_MSE,
        .init = {.kind = JOB_INIT_HE_UNIFORM},
        .factors_init = {JOB_INIT_NORMAL, 0, 0.125}};
    must_build(f, JOB_DEEPFM, &settings);
    assert_true(f->tables[0].init_bound == 0 && !f->tables[0].init_kind);
    assert_true(f->tables[1].init_bound == 0.125f);
    assert_int_equal(f->tables[1].init_kind, INITIALIZER_NORMAL);
    uint32_t count = ranker_form_parameters(&f->parts, parameters);
    assert_int_equal(count, 6);
    uint32_t in = parameters[2].dims[1];
    assert_true(parameters[2].init_bound == (float)sqrt(6.0 / in));
    assert_true(parameters[3].init_bound == 0); /* a bias */
}

TEST(parts_are_in_the_groups_of_their_models) {
    struct parameter parameters[16];
    const struct ranker_settings settings = {
        .dim = 3, .hidden = {1, {8}}, .loss = JOB_MSE};
    struct job_model model = {
        .type = JOB_DEEPFM, .settings = &settings, .group = {0, 1, 2}};
    assert_ok(ranker_form_build(&model, f->features, &f->spec, f->tables,
                                &f->num_tables, &failure));
    ranker_form_parts(&f->parts, &model, &f->spec);
    for (uint32_t t = 0; t < f->num_tables; t++)
        assert_int_equal(f->tables[t].optimizer,
                         strstr(f->tables[t].name, "/factors") ? 2 : 1);
    uint32_t count = ranker_form_parameters(&f->parts, parameters);
    for (uint32_t p = 0; p < count; p++)
        assert_int_equal(parameters[p].group,
                         strncmp(parameters[p].name, "deep", 4) ? 1 : 2);
}

TEST(matrix_factorization_has_biases_and_factors) {
    static char user[] = "C1", item[] = "C2";
    must_build(f, JOB_MATRIX_FACTORIZATION,
               &(struct ranker_settings){.user = user, .item = item, .dim = 5});
    assert_int_equal(f->num_tables, 4);
    assert_string_equal(f->tables[3].name, "C2/factors");
    assert_int_equal(f->parts.fields, 2);
    assert_int_equal(ranker_form_parameters(&f->parts, NULL), 1);
}

static void expect_form_refused(struct form_fixture *f,
                                enum job_model_type type,
                                const struct ranker_settings *settings,
                                const char *text) {
    assert_int_equal(build(f, type, settings), STATUS_CONFIG);
    assert_int_equal(failure.code, FAILURE_JOB_INVALID);
    assert_contains(failure.text, text);
}

TEST(a_feature_that_does_not_fit_is_refused) {
    static char none[] = "[\"C3\"]", row[] = "[\"e1\"]", id[] = "[\"C1\"]";
    static char user[] = "I1", item[] = "C2";
    expect_form_refused(f, JOB_LINEAR,
                        &(struct ranker_settings){.features = none},
                        "model.features: found \"C3\"; allowed: ");
    expect_form_refused(f, JOB_LINEAR,
                        &(struct ranker_settings){.features = row},
                        "found \"e1\"; allowed: features that give ids or "
                        "numbers: I1, I2, C1, C2, age");
    expect_form_refused(f, JOB_WIDE_DEEP,
                        &(struct ranker_settings){.wide = id, .deep = id},
                        "model.deep: found \"C1\"");
    expect_form_refused(
        f, JOB_MATRIX_FACTORIZATION,
        &(struct ranker_settings){.user = user, .item = item, .dim = 2},
        "model.user: found \"I1\"");
    expect_form_refused(
        f, JOB_DLRM,
        &(struct ranker_settings){.bottom = {1, {5}}, .top = {1, {8}}},
        "found \"e1\" of dim 4; allowed: dim 5");
    features_close(&f->features);
    expect_form_refused(f, JOB_LINEAR, &(struct ranker_settings){0},
                        "model.type: needs features");
}
