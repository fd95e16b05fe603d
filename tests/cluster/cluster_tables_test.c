/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of models with tables on the ps, over click logs with a planted rule:
 * what they learn, that the bits of rows do not follow from the number of ps,
 * nor from where a run was resumed, and what is refused. */
#include "tests/cluster/cluster_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRAIN = 4000, TEST = 1000, USERS = 40, ITEMS = 60 };

/* Numbers in [0, below). */
static unsigned draw(uint32_t *seed, unsigned below) {
    *seed = *seed * 1664525 + 1013904223;
    return (*seed >> 8) % below;
}

/* A user clicks items of its own parity, up to noise. */
static void write_clicks(const struct cluster_run *run, const char *name,
                         unsigned rows, uint32_t seed) {
    char path[PATH_MAX];
    cluster_run_path(run, name, path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("label,user,item,weight\n", file);
    for (unsigned i = 0; i < rows; i++) {
        unsigned user = draw(&seed, USERS), item = draw(&seed, ITEMS);
        bool click = (user + item) % 2 == 0;
        fprintf(file, "%d,u%u,i%u,0.%u\n", draw(&seed, 50) ? click : !click,
                user, item, draw(&seed, 10));
    }
    fclose(file);
}

static int setup(void **state) {
    int failed = cluster_run_setup(state);
    const struct cluster_run *run = *state;
    if (!failed) {
        write_clicks(run, "train.csv", TRAIN, 1);
        write_clicks(run, "test.csv", TEST, 2);
    }
    return failed;
}

#define DATA                                                                   \
    "\"data\": {\"format\": \"csv\", \"header\": true, \"train\":"             \
    " \"train.csv\", \"test\": \"test.csv\", \"shuffle_buffer\": 512},"        \
    " \"train_micro_batch_size_per_gpu\": 32, \"threads\": 1, "
#define FEATURES                                                               \
    "\"features\": {\"user\": {\"type\": \"hash_bucket\"},"                    \
    " \"item\": {\"type\": \"hash_bucket\", \"size\": 1000000},"               \
    " \"cross\": {\"type\": \"crossed\", \"of\": [\"user\", \"item\"],"        \
    " \"size\": 1000000},"                                                     \
    " \"weight\": {\"type\": \"numeric\"},"                                    \
    " \"e_user\": {\"type\": \"embedding\", \"of\": \"user\", \"dim\": 8},"    \
    " \"e_item\": {\"type\": \"embedding\", \"of\": \"item\", \"dim\": 8}}, "
#define ADAGRAD                                                                \
    "\"optimizer\": {\"type\": \"Adagrad\", \"params\": {\"lr\": 0.1}}"
#define FTRL "\"optimizer\": {\"type\": \"Ftrl\", \"params\": {\"lr\": 0.5}}"
#define ADAM "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.02}}"

static const char linear[] =
    "{" DATA FEATURES
    "\"model\": {\"type\": \"linear\", \"features\": [\"cross\", \"weight\"]},"
    " \"epochs\": 8, " FTRL "}";
static const char deepfm[] =
    "{" DATA FEATURES
    "\"model\": {\"type\": \"deepfm\", \"features\": [\"user\", \"item\"],"
    " \"dim\": 8, \"hidden\": [16]}, \"epochs\": 8, " ADAGRAD "}";
static const char wide_deep[] =
    "{" DATA FEATURES
    "\"model\": {\"type\": \"wide_deep\", \"wide\": [\"cross\"],"
    " \"deep\": [\"e_user\", \"e_item\", \"weight\"], \"hidden\": [16]},"
    " \"epochs\": 8, " ADAM "}";
static const char dlrm[] =
    "{" DATA FEATURES
    "\"model\": {\"type\": \"dlrm\", \"dense\": [\"weight\"], \"embeddings\":"
    " [\"e_user\", \"e_item\"], \"bottom\": [8], \"top\": [16]},"
    " \"epochs\": 8, " ADAM "}";

static double figure(const struct cluster_process *process, const char *key) {
    json_t *summary = cluster_run_json(process);
    const json_t *value = json_object_get(summary, key);
    if (!json_is_number(value))
        fail_msg("no number %s in the summary", key);
    double number = json_number_value(value);
    json_decref(summary);
    return number;
}

static double rows_of(const struct cluster_process *process, const char *name) {
    json_t *summary = cluster_run_json(process);
    const json_t *rows =
        json_object_get(json_object_get(summary, "table_rows"), name);
    if (!json_is_integer(rows))
        fail_msg("no rows of %s in the summary", name);
    double number = json_number_value(rows);
    json_decref(summary);
    return number;
}

static struct cluster_process *train(struct cluster_run *run, unsigned num_ps,
                                     const char *set) {
    return CLUSTER_FIXTURE_RUN(run, num_ps, 2, 0, "checkpoint.resume=never",
                               set);
}

static void models_with_tables_learn_what_is_planted(void **state) {
    static const char *const jobs[] = {linear, deepfm, wide_deep, dlrm};
    for (int i = 0; i < 4; i++) {
        cluster_run_job(*state, jobs[i]);
        struct cluster_process *process = train(*state, 2, "seed=1");
        if (figure(process, "test_auc") < 0.93)
            fail_msg("model %d: test_auc %g", i, figure(process, "test_auc"));
        assert_true(figure(process, "row_bytes_per_step") > 0);
    }
}

/* All ids occur in 4000 records, so each has its row. */
static void each_id_that_was_trained_has_a_row(void **state) {
    cluster_run_job(*state, deepfm);
    struct cluster_process *process = train(*state, 2, "epochs=2");
    assert_int_equal((int)rows_of(process, "user"), USERS);
    assert_int_equal((int)rows_of(process, "item/factors"), ITEMS);
}

static void staleness_learns_as_well(void **state) {
    cluster_run_job(*state, deepfm);
    assert_true(figure(train(*state, 2, "strategy.staleness=inf"), "test_auc") >
                0.9);
    assert_true(figure(train(*state, 1, "strategy.staleness=2"), "test_auc") >
                0.9);
}

/* The rows of TABLE in the newest checkpoint of DIR, as text. */
static char *exported(struct cluster_run *run, const char *dir,
                      const char *table) {
    char set[64], path[PATH_MAX];
    snprintf(set, sizeof set, "--table=%s", table);
    cluster_fixture_tool(
        run, 0, (const char *[]){"ckpt", "export", set, dir, "rows.csv", NULL});
    cluster_run_path(run, "rows.csv", path);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    assert_in_range(fread(text, 1, (1 << 20) - 1, file), 100, (1 << 20) - 2);
    fclose(file);
    return text;
}

static void expect_same_rows(struct cluster_run *run, const char *left,
                             const char *right, const char *table) {
    char *a = exported(run, left, table), *b = exported(run, right, table);
    if (strcmp(a, b))
        fail_msg("rows of %s differ between %s and %s", table, left, right);
    free(a);
    free(b);
}

static void the_number_of_ps_does_not_change_a_bit(void **state) {
    static const char *const dirs[] = {"one", "two", "three"};
    char set[64];
    cluster_run_job(*state, deepfm);
    for (unsigned i = 0; i < 3; i++) {
        snprintf(set, sizeof set, "checkpoint.dir=%s", dirs[i]);
        CLUSTER_FIXTURE_RUN(*state, i + 1, 2, 0, "epochs=null", "steps=120",
                            set);
    }
    for (unsigned i = 1; i < 3; i++) {
        expect_same_rows(*state, dirs[0], dirs[i], "user");
        expect_same_rows(*state, dirs[0], dirs[i], "item/factors");
    }
}

/* Half of the steps on two ps, the rest on three. */
static void a_resumed_run_has_the_same_rows_on_more_ps(void **state) {
    static const char *const jobs[] = {linear, deepfm};
    static const char *const tables[] = {"cross", "user/factors"};
    for (int i = 0; i < 2; i++) {
        struct cluster_run *run = cluster_fixture_reset(state);
        assert_non_null(run);
        write_clicks(run, "train.csv", TRAIN, 1);
        write_clicks(run, "test.csv", TEST, 2);
        cluster_run_job(run, jobs[i]);
        CLUSTER_FIXTURE_RUN(run, 2, 2, 0, "epochs=null", "steps=120",
                            "checkpoint.dir=whole");
        CLUSTER_FIXTURE_RUN(run, 2, 2, 0, "epochs=null", "steps=50",
                            "checkpoint.dir=parts");
        CLUSTER_FIXTURE_RUN(run, 3, 2, 0, "epochs=null", "steps=120",
                            "checkpoint.dir=parts");
        expect_same_rows(run, "whole", "parts", tables[i]);
    }
}

static void a_run_by_all_reduce_has_no_tables(void **state) {
    cluster_run_job(*state, deepfm);
    struct cluster_process *process =
        CLUSTER_FIXTURE_RUN(*state, 0, 2, 2, "strategy.type=allreduce");
    cluster_fixture_expect_logged(process, "table");
}

static void rules_that_move_rows_not_pushed_are_refused(void **state) {
    cluster_run_job(*state, deepfm);
    CLUSTER_FIXTURE_RUN(*state, 1, 1, 2,
                        "optimizer={\"type\": \"SGD\", \"params\":"
                        " {\"lr\": 0.1, \"momentum\": 0.9}}");
    CLUSTER_FIXTURE_RUN(*state, 1, 1, 2, "optimizer={\"type\": \"RMSprop\"}");
}

int main(void) {
#define T(test)                                                                \
    cmocka_unit_test_setup_teardown(test, setup, cluster_run_teardown)
    const struct CMUnitTest tests[] = {
        T(models_with_tables_learn_what_is_planted),
        T(each_id_that_was_trained_has_a_row),
        T(staleness_learns_as_well),
        T(the_number_of_ps_does_not_change_a_bit),
        T(a_resumed_run_has_the_same_rows_on_more_ps),
        T(a_run_by_all_reduce_has_no_tables),
        T(rules_that_move_rows_not_pushed_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
