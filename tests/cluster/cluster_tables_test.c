/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of models with tables on the ps, over click logs with a planted rule:
 * what they learn, that the bits of rows do not follow from the number of ps,
 * nor from where a run was resumed, and what is refused. */
#define STATE struct cluster_run *run

#include "core/store/tensor_file.h"
#include "core/tensor/layout.h"
#include "core/tensor/row_keys.h"
#include "tests/cluster/cluster_clicks.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/event_files.h"
#include "tests/lib/json_number.h"
#include "tests/lib/test.h"

#include <glob.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <unistd.h>

static int setup(void **state) {
    int failed = cluster_run_setup(state);
    if (!failed)
        cluster_clicks_write(*state);
    return failed;
}

FIXTURE(setup, cluster_run_teardown);

#define ADAGRAD                                                                \
    "\"optimizer\": {\"type\": \"Adagrad\", \"params\": {\"lr\": 0.1}}"
#define FTRL "\"optimizer\": {\"type\": \"Ftrl\", \"params\": {\"lr\": 0.5}}"
#define ADAM "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.02}}"

static const char linear[] =
    "{" CLUSTER_CLICKS_DATA
    "\"model\": {\"type\": \"linear\", \"features\": [\"cross\", \"weight\"]},"
    " \"epochs\": 8, " FTRL "}";
static const char deepfm[] = "{" CLUSTER_CLICKS_DEEPFM ", \"epochs\": 8}";
static const char wide_deep[] =
    "{" CLUSTER_CLICKS_DATA
    "\"model\": {\"type\": \"wide_deep\", \"wide\": [\"cross\"],"
    " \"deep\": [\"e_user\", \"e_item\", \"weight\"], \"hidden\": [16]},"
    " \"epochs\": 8, " ADAM "}";
static const char dlrm[] =
    "{" CLUSTER_CLICKS_DATA
    "\"model\": {\"type\": \"dlrm\", \"dense\": [\"weight\"], \"embeddings\":"
    " [\"e_user\", \"e_item\"], \"bottom\": [8], \"top\": [16]},"
    " \"epochs\": 8, " ADAM "}";

#define GROUPS                                                                 \
    "\"optimizers\": {\"wide\": {\"type\": \"Ftrl\", \"params\":"              \
    " {\"lr\": 0.5}}, \"deep\": {\"type\": \"Adagrad\", \"params\":"           \
    " {\"lr\": 0.1}}}"
static const char grouped[] =
    "{" CLUSTER_CLICKS_DATA
    "\"model\": {\"type\": \"wide_deep\", \"wide\": [\"cross\", \"weight\"],"
    " \"deep\": [\"e_user\", \"e_item\", \"weight\"], \"hidden\": [16]},"
    " \"epochs\": 8, " GROUPS "}";
/* Without tables. */
static const char dense_groups[] =
    "{" CLUSTER_CLICKS_DATA
    "\"model\": {\"type\": \"wide_deep\", \"wide\": [\"weight\"], \"deep\":"
    " [\"weight\"], \"hidden\": [16]}, \"epochs\": 1, " GROUPS "}";

static double figure(struct cluster_process *process, const char *key) {
    return number_at(cluster_run_json(process), key);
}

/* COUNT ("table_rows") of table NAME in the summary. */
static double rows_of(struct cluster_process *process, const char *count,
                      const char *name) {
    const json_t *summary = cluster_run_json(process);
    const json_t *rows = json_object_get(json_object_get(summary, count), name);
    if (!json_is_integer(rows))
        fail_msg("no %s of %s in the summary", count, name);
    double number = json_number_value(rows);
    return number;
}

static struct cluster_process *train(struct cluster_run *run, unsigned num_ps,
                                     const char *set) {
    return CLUSTER_FIXTURE_RUN(run, num_ps, 2, 0, "checkpoint.resume=never",
                               set);
}

TEST(models_with_tables_learn_what_is_planted) {
    static const char *const jobs[] = {linear, deepfm, wide_deep, dlrm,
                                       grouped};
    for (int i = 0; i < 5; i++) {
        cluster_run_job(run, jobs[i]);
        struct cluster_process *process = train(run, 2, "seed=1");
        if (figure(process, "test_auc") < 0.93)
            fail_msg("model %d: test_auc %g", i, figure(process, "test_auc"));
        assert_true(figure(process, "row_bytes_per_step") > 0);
    }
}

TEST(the_rows_of_the_only_step_are_counted) {
    cluster_run_job(*state, deepfm);
    struct cluster_process *process = CLUSTER_FIXTURE_RUN(
        *state, 1, 2, 0, "checkpoint.resume=never", "epochs=null", "steps=1");
    assert_true(figure(process, "row_bytes_per_step") > 0);
}

/* The label as a number: a click is 1, and what is planted explains all but
 * noise of 0.02. */
TEST(models_with_tables_learn_a_number) {
    static const char *const models[] = {
        "{\"type\": \"linear\", \"features\": [\"cross\"],"
        " \"loss\": \"mse\"}",
        "{\"type\": \"fm\", \"features\": [\"user\", \"item\"],"
        " \"dim\": 8, \"loss\": \"mse\"}",
        "{\"type\": \"deepfm\", \"features\": [\"user\", \"item\"],"
        " \"dim\": 8, \"hidden\": [16], \"loss\": \"mse\"}",
        "{\"type\": \"matrix_factorization\", \"user\": \"user\","
        " \"item\": \"item\", \"dim\": 8}"};
    for (int i = 0; i < 4; i++) {
        char job[2048];
        snprintf(job, sizeof job,
                 "{" CLUSTER_CLICKS_DATA "\"model\": %s, \"epochs\": 8, " ADAM
                 "}",
                 models[i]);
        cluster_run_job(run, job);
        double loss = figure(train(run, 2, "seed=1"), "test_loss");
        if (!(loss < 0.1))
            fail_msg("%s: test_loss %g", models[i], loss);
    }
}

#define USERS_DATA                                                             \
    "{\"data\": {\"format\": \"csv\", \"header\": true, \"train\":"            \
    " \"train.csv\", \"test\": \"test.csv\"}, \"features\": {\"user\":"        \
    " {\"type\": \"vocabulary\", \"file\": \"users.txt\"}}, \"epochs\": 2, "

static void write_vocabulary(const struct cluster_run *run) {
    FILE *file = cluster_run_create(run, "users.txt");
    for (int u = 0; u < CLUSTER_CLICKS_USERS; u++)
        fprintf(file, "u%d\n", u);
    fclose(file);
}

/* Trains MODEL by RULE into FOLDER/NAME and exports its weights to OUT. */
static void train_users(struct cluster_run *run, const char *model,
                        const char *rule, const char *name, const char *out) {
    char job[1024], set[64];
    snprintf(job, sizeof job,
             USERS_DATA "\"model\": %s, \"optimizer\": {\"type\": \"%s\","
                        " \"params\": {\"lr\": 0.2}}}",
             model, rule);
    cluster_run_job(run, job);
    snprintf(set, sizeof set, "checkpoint.dir=%s", name);
    CLUSTER_FIXTURE_RUN(run, 2, 2, 0, set);
    cluster_fixture_tool(run, 0, WORDS("ckpt", "export", name, out));
}

static void read_weights(const struct cluster_run *run, const char *name,
                         float *weights) {
    static const struct parameter tensor = {.name = "layer0.weight",
                                            .num_dims = 2,
                                            .dims = {1, CLUSTER_CLICKS_USERS},
                                            .elements = CLUSTER_CLICKS_USERS};
    struct tensor_file *file;
    assert_ok(tensor_file_open(&file, cluster_run_path(run, name), &failure));
    assert_ok(tensor_file_read(file, &tensor, weights, &failure));
    tensor_file_close(&file);
}

/* A linear model over the ids of words, and a layer over their indicators: by
 * each rule that moves only the rows pushed, from zeros. */
TEST(rows_are_the_weights_of_a_dense_run) {
    static const char *const rules[] = {"SGD", "Adagrad", "Ftrl"};
    write_vocabulary(run);
    for (int r = 0; r < 3; r++) {
        float weights[CLUSTER_CLICKS_USERS];
        char name[16];
        int row = 0;
        train_users(run, "{\"type\": \"linear\", \"features\": [\"user\"]}",
                    rules[r], rules[r], "table.safetensors");
        snprintf(name, sizeof name, "dense%d", r);
        train_users(run,
                    "{\"layers\": [40, 1], \"init\": \"zeros\","
                    " \"loss\": \"sigmoid_cross_entropy\"}",
                    rules[r], name, "dense.safetensors");
        read_weights(run, "dense.safetensors", weights);
        char *text = cluster_clicks_exported(run, rules[r], "user"), *line;
        for (line = strchr(text, '\n') + 1; *line; row++) {
            assert_int_equal(strtol(line, &line, 10), row);
            double weight = strtod(line + 1, &line);
            if (!(fabs(weight - (double)weights[row]) <= 1e-5))
                fail_msg("%s, row %d: %.9g in the table, %.9g dense", rules[r],
                         row, weight, (double)weights[row]);
            line += *line == '\n';
        }
        assert_int_equal(row, CLUSTER_CLICKS_USERS);
        assert_true(fabsf(weights[0] - weights[1]) > 1e-3f);
        free(text);
    }
}

/* Inputs: a number and two embeddings of 8. Classes are integers. */
TEST(an_mlp_reads_embeddings_and_has_any_number_of_outputs) {
    char job[2048];
    snprintf(job, sizeof job,
             "{" CLUSTER_CLICKS_DATA "\"model\": {\"layers\": [17, 16, 2]},"
             " \"epochs\": 8, " ADAM "}");
    cluster_run_job(run, job);
    struct cluster_process *process = train(run, 2, "seed=1");
    if (!(figure(process, "test_accuracy") > 0.93))
        fail_msg("two outputs: %g", figure(process, "test_accuracy"));
    assert_int_equal((int)rows_of(process, "table_rows", "e_user"),
                     CLUSTER_CLICKS_USERS);
    process = CLUSTER_FIXTURE_RUN(
        run, 1, 2, 0, "checkpoint.resume=never", "model.layers=[16,16,1]",
        "model.activation=tanh", "model.loss=sigmoid_cross_entropy",
        "model.init=xavier_normal", "model.features=[\"e_user\",\"e_item\"]",
        "optimizer=null",
        "optimizers.deep={\"type\": \"Adam\", \"params\": {\"lr\": 0.02}}");
    if (!(figure(process, "test_auc") > 0.93))
        fail_msg("one output: %g", figure(process, "test_auc"));
    process = CLUSTER_FIXTURE_RUN(run, 1, 1, 2, "model.layers=[16,16,2]");
    cluster_fixture_expect_logged(process,
                                  "found 16 inputs, expected 17, the numbers "
                                  "and the embeddings of its features");
    process = CLUSTER_FIXTURE_RUN(run, 1, 1, 2,
                                  "model.features=[\"e_user\",\"user\"]");
    cluster_fixture_expect_logged(process, "model.features: found \"user\"");
}

/* All ids occur in 4000 records, so each has its row. */
TEST(each_id_that_was_trained_has_a_row) {
    cluster_run_job(run, deepfm);
    struct cluster_process *process = train(run, 2, "epochs=2");
    cluster_fixture_expect_logged(process, "memory: rows of 2 tables take at");
    cluster_fixture_expect_logged(process,
                                  "2 tables, such as \"user\", have no");
    assert_int_equal((int)rows_of(process, "table_rows", "user"),
                     CLUSTER_CLICKS_USERS);
    assert_int_equal((int)rows_of(process, "table_rows", "item/factors"),
                     CLUSTER_CLICKS_ITEMS);
}

TEST(staleness_learns_as_well) {
    cluster_run_job(run, deepfm);
    assert_true(figure(train(run, 2, "strategy.staleness=inf"), "test_auc") >
                0.9);
    assert_true(figure(train(run, 1, "strategy.staleness=2"), "test_auc") >
                0.9);
}

TEST(the_number_of_ps_does_not_change_a_bit) {
    static const char *const dirs[] = {"one", "two", "three"};
    char set[64];
    cluster_run_job(run, deepfm);
    for (unsigned i = 0; i < 3; i++) {
        snprintf(set, sizeof set, "checkpoint.dir=%s", dirs[i]);
        CLUSTER_FIXTURE_RUN(run, i + 1, 2, 0, "epochs=null", "steps=120", set);
    }
    for (unsigned i = 1; i < 3; i++) {
        cluster_clicks_expect_same_rows(run, dirs[0], dirs[i], "user");
        cluster_clicks_expect_same_rows(run, dirs[0], dirs[i], "item/factors");
    }
}

/* The rows that begin after the resumption do so as they would have. */
#define NORMAL "features.e_user.init={\"type\": \"normal\", \"std\": 0.2}"

/* Half of the steps on two ps, the rest on three. */
TEST(a_resumed_run_has_the_same_rows_on_more_ps) {
    static const char *const jobs[] = {linear, deepfm, grouped};
    static const char *const tables[] = {"cross", "user/factors", "e_user"};
    for (int i = 0; i < 3; i++) {
        run = cluster_fixture_reset(state);
        assert_non_null(run);
        cluster_clicks_write(run);
        cluster_run_job(run, jobs[i]);
        CLUSTER_FIXTURE_RUN(run, 2, 2, 0, NORMAL, "epochs=null", "steps=120",
                            "checkpoint.dir=whole");
        CLUSTER_FIXTURE_RUN(run, 2, 2, 0, NORMAL, "epochs=null", "steps=50",
                            "checkpoint.dir=parts");
        CLUSTER_FIXTURE_RUN(run, 3, 2, 0, NORMAL, "epochs=null", "steps=120",
                            "checkpoint.dir=parts");
        cluster_clicks_expect_same_rows(run, "whole", "parts", tables[i]);
    }
}

/* Two summands have the same sum in any order. By ps, and in turns by both and
 * on other numbers of ps: rows, state and what an evaluation finds. */
TEST(all_reduce_has_the_rows_of_ps) {
    static const char *const jobs[] = {linear, deepfm, grouped};
    static const char *const tables[] = {"cross", "user/factors", "e_user"};
    static const unsigned num_ps[] = {0, 3, 0};
    static const char *const steps[] = {"steps=50", "steps=90", "steps=120"};
    static const char schedule[] =
        "scheduler={\"type\": \"WarmupCosineLR\", \"params\":"
        " {\"total_num_steps\": 200, \"warmup_num_steps\": 8}}";
    for (int i = 0; i < 3; i++) {
        run = cluster_fixture_reset(state);
        struct cluster_process *parts = NULL;
        cluster_clicks_write(run);
        cluster_run_job(run, jobs[i]);
        struct cluster_process *whole = CLUSTER_FIXTURE_RUN(
            run, 2, 2, 0, NORMAL, schedule, "gradient_clipping=0.2",
            "epochs=null", "steps=120", "checkpoint.dir=whole");
        for (int p = 0; p < 3; p++)
            parts = CLUSTER_FIXTURE_RUN(run, num_ps[p], 2, 0, NORMAL, schedule,
                                        "gradient_clipping=0.2", "epochs=null",
                                        steps[p], "checkpoint.dir=parts");
        cluster_clicks_expect_same_rows(run, "whole", "parts", tables[i]);
        cluster_fixture_expect_same_checkpoints(run, "whole", "parts");
        assert_true(figure(parts, "test_loss") == figure(whole, "test_loss"));
        assert_true(figure(parts, "row_bytes_per_step") > 0);
    }
}

/* The sums of three ranks are in a ring's order. */
TEST(three_ranks_learn_as_a_ps_does) {
    cluster_run_job(run, deepfm);
    struct cluster_process *process = CLUSTER_FIXTURE_RUN(run, 0, 3, 0, NULL);
    assert_true(figure(process, "test_auc") > 0.9);
    assert_int_equal((int)rows_of(process, "table_rows", "user"),
                     CLUSTER_CLICKS_USERS);
    cluster_fixture_expect_logged(process, "at most 130 MB on each trainer");
}

/* Writes records with COUNT ids whose factors are all in one partition. */
static void write_crowded(struct cluster_run *run, unsigned count) {
    const struct layout layout = {.num_partitions = LAYOUT_PARTITIONS};
    FILE *file = cluster_run_create(run, "crowded.csv");
    fputs("label,user\n", file);
    for (uint64_t id = 0; count; id++)
        if (!layout_partition(&layout, layout_row_hash(1, id)))
            fprintf(file, "%u,%llu\n", count-- % 2, (unsigned long long)id);
    fclose(file);
}

/* A batch is the whole file; rows have 16 KB. */
static const char crowded[] =
    "{\"data\": {\"format\": \"csv\", \"header\": true, \"train\":"
    " \"crowded.csv\", \"test\": null}, \"features\": {\"user\":"
    " {\"type\": \"identity\"}}, \"model\": {\"type\": \"fm\","
    " \"features\": [\"user\"], \"dim\": 4096}, \"epochs\": 2, " ADAM
    ", \"train_micro_batch_size_per_gpu\": 5000,"
    " \"dataloader_drop_last\": false}";

/* 10 MB, more than shared memory carries at once; above 64 MB none does. */
TEST(rows_of_a_partition_travel_in_one_message) {
    static const char *const lanes[] = {"auto", "tcp"};
    cluster_run_job(run, crowded);
    write_crowded(run, 600);
    for (int i = 0; i < 2; i++) {
        char dir[64];
        snprintf(dir, sizeof dir, "checkpoint.dir=%s", lanes[i]);
        const char *const arguments[] = {
            "local",  "--ps",  "1", "--workers", "1", "--lane",
            lanes[i], "--set", dir, "job.json",  NULL};
        cluster_run_expect(cluster_run_start(run, lanes[i], arguments, NULL), 0,
                           CLUSTER_RUN_DEADLINE);
    }
    cluster_clicks_expect_same_rows(run, "auto", "tcp", "user");
    write_crowded(run, 4200);
    struct cluster_process *large = CLUSTER_FIXTURE_RUN(
        run, 1, 1, 2, "checkpoint.resume=never", "epochs=1");
    cluster_fixture_expect_logged(large, "more than the 64 MiB of a message");
    cluster_fixture_expect_logged(large, "train_micro_batch_size_per_gpu");
}

/* Most crosses are pushed so seldom that they expire, and come again. */
#define EXPIRING(steps)                                                        \
    "{\"data\": {\"format\": \"csv\", \"header\": true, \"train\":"            \
    " \"train.csv\", \"test\": \"test.csv\", \"shuffle_buffer\": 512},"        \
    " \"train_micro_batch_size_per_gpu\": 32, \"threads\": 1, "                \
    "\"features\": {\"user\": {\"type\": \"hash_bucket\"},"                    \
    " \"item\": {\"type\": \"hash_bucket\"},"                                  \
    " \"cross\": {\"type\": \"crossed\", \"of\": [\"user\", \"item\"],"        \
    " \"size\": 1000000, \"admit\": {\"count\": 2},"                           \
    " \"expire\": {\"steps\": 32}}}, \"chief\": \"coordinate\","               \
    "\"model\": {\"type\": \"deepfm\", \"features\": [\"user\", \"cross\"],"   \
    " \"dim\": 8, \"hidden\": [16]}, \"steps\": " steps ", " ADAGRAD           \
    ", \"checkpoint\": {\"dir\": \"parts\", \"every_steps\": 1000000,"         \
    " \"delta_every_steps\": 10, \"keep\": 3}}"
static const char expiring[] = EXPIRING("1200");

/* Entry AT of the checkpoints of DIR that `ckpt ls` lists, from the newest on;
 * the caller's. */
static json_t *listed(struct cluster_run *run, const char *dir, size_t at) {
    const json_t *all = cluster_run_json(
        cluster_fixture_tool(run, 0, WORDS("ckpt", "ls", "--json", dir)));
    json_t *list = json_object_get(all, "checkpoints");
    assert_true(at < json_array_size(list));
    json_t *one =
        json_incref(json_array_get(list, json_array_size(list) - 1 - at));
    return one;
}

static json_int_t listed_number(struct cluster_run *run, const char *dir,
                                size_t at, const char *key) {
    json_t *one = listed(run, dir, at);
    const json_t *value = json_object_get(one, key);
    json_int_t number = json_is_integer(value) ? json_integer_value(value) : -1;
    json_decref(one);
    return number;
}

/* Starts it on NUM_PS ps, and kills all of it once there are deltas. */
static void kill_between_deltas(struct cluster_run *run, unsigned num_ps) {
    struct cluster_fixture fixture;
    cluster_fixture_describe(&fixture, run, 1, num_ps, 2);
    cluster_fixture_start_all(&fixture);
    for (int i = 0; i < 2; i++)
        cluster_run_await(fixture.tasks[0].process, ", a delta of step ",
                          CLUSTER_RUN_DEADLINE);
    for (unsigned i = 0; i < fixture.count; i++)
        cluster_run_signal(fixture.tasks[i].process, SIGKILL);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 128 + SIGKILL,
                           CLUSTER_RUN_DEADLINE);
}

/* On NUM_PS ps, then on MORE. */
static void resume_between_deltas(struct cluster_run *run, unsigned num_ps,
                                  unsigned more) {
    static const char *const tables[] = {"user", "user/factors", "cross",
                                         "cross/factors"};
    char resumed[64], steps[64];
    cluster_run_job(run, EXPIRING("1000000"));
    kill_between_deltas(run, num_ps);
    json_int_t step = listed_number(run, "parts", 0, "step");
    assert_true(listed_number(run, "parts", 0, "base") > 0);
    cluster_fixture_tool(run, 0, WORDS("ckpt", "verify", "parts"));
    snprintf(steps, sizeof steps, "steps=%" JSON_INTEGER_FORMAT, step + 200);
    struct cluster_process *whole =
        CLUSTER_FIXTURE_RUN(run, 2, 2, 0, "checkpoint.dir=whole",
                            "checkpoint.delta_every_steps=0", steps);
    double loss = figure(whole, "test_loss");
    assert_true(rows_of(whole, "table_rows", "cross") < 1500);
    struct cluster_process *parts = CLUSTER_FIXTURE_RUN(run, more, 2, 0, steps);
    snprintf(resumed, sizeof resumed,
             "/parts/step-%09" JSON_INTEGER_FORMAT ", epoch", step);
    cluster_fixture_expect_logged(parts, resumed);
    cluster_fixture_expect_logged(parts, ", a delta of step ");
    for (int i = 0; i < 4; i++)
        cluster_clicks_expect_same_rows(run, "whole", "parts", tables[i]);
    assert_true(figure(parts, "test_loss") == loss);
    cluster_fixture_expect_same_checkpoints(run, "whole", "parts");
    assert_int_equal(listed_number(run, "parts", 0, "base"), -1);
}

TEST(a_run_killed_between_deltas_resumes_to_the_same_rows) {
    resume_between_deltas(run, 2, 3);
}

TEST(all_reduce_resumes_from_a_delta_to_the_same_rows) {
    resume_between_deltas(run, 0, 0);
}

/* The last value of TAG. */
static double last_point(struct cluster_run *run, const char *tag) {
    struct event_point points[64];
    unsigned count =
        event_files_read(cluster_run_path(run, "events"), tag, points, 64);
    if (!count)
        fail_msg("no %s", tag);
    return points[count - 1].value;
}

/* By ps and by all-reduce, of which each has the same bits. */
TEST(each_epoch_is_evaluated_at_its_end) {
    static const unsigned num_ps[] = {1, 3, 0};
    static const char *const names[] = {"one", "three", "none"};
    char step[32];
    struct event_point points[8];
    uint64_t saved[8];
    const char *folder;
    char first[256], set[128];
    cluster_run_job(run, deepfm);
    for (int i = 0; i < 3; i++) {
        snprintf(set, sizeof set,
                 "tensorboard={\"enabled\": true, \"output_path\": \"%s\"}",
                 names[i]);
        CLUSTER_FIXTURE_RUN(run, num_ps[i], 2, 0, set, "epochs=4",
                            "checkpoint.resume=never",
                            "checkpoint.every_epochs=1", "checkpoint.keep=0");
        folder = cluster_run_path(run, names[i]);
        const char *text = event_files_text(folder, "test/auc");
        if (!i)
            snprintf(first, sizeof first, "%s", text);
        assert_string_equal(text, first);
    }
    assert_int_equal(event_files_read(folder, "test/auc", points, 8), 4);
    for (int e = 0; e < 4; e++)
        assert_int_equal(points[e].step, 63 * (e + 1));
    /* One that is due while another is written is left out; not the last. */
    unsigned count = cluster_fixture_checkpoints(run, "checkpoint", saved, 8);
    for (unsigned c = 0; c < count; c++) {
        snprintf(step, sizeof step, "--step=%" PRIu64, saved[c]);
        double auc =
            figure(cluster_fixture_tool(
                       run, 0, WORDS("eval", step, "--json", "job.json")),
                   "test_auc");
        assert_true(fabs(auc - points[saved[c] / 63 - 1].value) < 1e-6);
    }
    assert_int_equal(saved[count - 1], 252);
}

/* The run's progress, summary and TensorBoard have the rows of "cross", and the
 * last two the evaluation. */
static void expect_rows_shown(struct cluster_run *run,
                              struct cluster_process *chief) {
    double rows = rows_of(chief, "table_rows", "cross");
    double admitted = rows_of(chief, "table_admitted", "cross");
    double expired = rows_of(chief, "table_expired", "cross");
    assert_true(admitted > 0 && admitted < rows && expired > rows);
    rows = last_point(run, "rows/cross");
    admitted = last_point(run, "rows_admitted/cross");
    assert_true(admitted > 0 && admitted < rows);
    assert_true(last_point(run, "rows_expired/cross") > rows);
    assert_true(last_point(run, "rows_bytes/cross") ==
                rows * (double)row_keys_row_bytes(1, 1));
    cluster_fixture_expect_logged(chief, " a step), ");
    static const char *const figures[] = {"auc", "logloss", "calibration"};
    for (int f = 0; f < 3; f++) {
        char tag[32], key[32];
        snprintf(tag, sizeof tag, "test/%s", figures[f]);
        snprintf(key, sizeof key, "test_%s", figures[f]);
        assert_true(fabs(last_point(run, tag) - figure(chief, key)) < 1e-6);
    }
}

TEST(tables_are_in_progress_and_metrics) {
    const char *events =
        "tensorboard={\"enabled\": true, \"output_path\": \"events\"}";
    cluster_run_job(run, expiring);
    expect_rows_shown(
        run, CLUSTER_FIXTURE_RUN(run, 2, 2, 0, "steps_per_print=100", events));
    expect_rows_shown(run,
                      CLUSTER_FIXTURE_RUN(run, 0, 2, 0, "steps_per_print=100",
                                          events, "checkpoint.resume=never"));
    struct cluster_process *process = cluster_run_start(
        run, "local",
        WORDS("local", "--ps", "1", "--workers", "2", "--link-gbits", "1",
              "--set", "steps_per_print=100", "--set",
              "checkpoint.resume=never", "job.json"),
        NULL);
    cluster_run_expect(process, 0, CLUSTER_RUN_DEADLINE);
    cluster_fixture_expect_logged(process, " % of the network)");
}

/* The same rows from the delta as from a run that ended there; older ones go,
 * and bases only with their last delta. */
TEST(a_delta_has_the_rows_of_its_step_and_keeps_its_base) {
    char steps[64];
    cluster_run_job(run, EXPIRING("1000000"));
    kill_between_deltas(run, 2);
    json_int_t step = listed_number(run, "parts", 0, "step"),
               base = listed_number(run, "parts", 0, "base");
    snprintf(steps, sizeof steps, "steps=%" JSON_INTEGER_FORMAT, step);
    CLUSTER_FIXTURE_RUN(run, 1, 2, 0, "checkpoint.dir=whole", steps);
    cluster_clicks_expect_same_rows(run, "whole", "parts", "user/factors");
    cluster_clicks_expect_same_rows(run, "whole", "parts", "cross");
    snprintf(steps, sizeof steps, "steps=%" JSON_INTEGER_FORMAT, step + 1);
    CLUSTER_FIXTURE_RUN(run, 2, 2, 0, "checkpoint.keep=1", steps,
                        "checkpoint.every_steps=1000000");
    uint64_t left[8];
    assert_int_equal(cluster_fixture_checkpoints(run, "parts", left, 8), 1);
    assert_int_equal(left[0], step + 1);
    snprintf(steps, sizeof steps, "parts/step-%09" JSON_INTEGER_FORMAT, base);
    assert_int_equal(access(cluster_run_path(run, steps), F_OK), -1);
}

TEST(a_delta_whose_base_is_gone_is_passed_over) {
    char name[128];
    cluster_run_job(run, EXPIRING("1000000"));
    kill_between_deltas(run, 2);
    json_int_t base = listed_number(run, "parts", 0, "base");
    snprintf(name, sizeof name,
             "parts/step-%09" JSON_INTEGER_FORMAT "/manifest.json", base);
    assert_int_equal(unlink(cluster_run_path(run, name)), 0);
    cluster_fixture_expect_logged(
        cluster_fixture_tool(run, 1, WORDS("ckpt", "verify", "parts")),
        "checkpoints in parts fail");
    struct cluster_process *process = CLUSTER_FIXTURE_RUN(run, 2, 2, 1, NULL);
    cluster_fixture_expect_logged(process, "passed over: ");
    cluster_fixture_expect_logged(process, "a delta, and its base of step ");
    cluster_fixture_expect_logged(process, "checkpoints can be read");
}

/* One of its files is enough, and its manifest may still be there. */
TEST(a_full_checkpoint_follows_when_the_base_is_gone) {
    struct cluster_fixture fixture;
    glob_t files;
    char name[128];
    unsigned long long base;
    cluster_run_job(run, EXPIRING("1000000"));
    cluster_fixture_describe(&fixture, run, 1, 2, 2);
    cluster_fixture_start_all(&fixture);
    struct cluster_process *chief = fixture.tasks[0].process;
    const char *line =
        cluster_run_await(chief, ", a delta of step ", CLUSTER_RUN_DEADLINE);
    assert_int_equal(
        sscanf(strstr(line, "a delta of "), "a delta of step %llu", &base), 1);
    snprintf(name, sizeof name, "parts/step-%09llu/ps-1-of-2-*", base);
    assert_int_equal(glob(cluster_run_path(run, name), 0, NULL, &files), 0);
    assert_int_equal(unlink(files.gl_pathv[0]), 0);
    globfree(&files);
    cluster_run_await(chief, "a delta, and its base ", CLUSTER_RUN_DEADLINE);
    for (int i = 0; i < 4; i++)
        cluster_run_await(chief, ", a delta of step ", CLUSTER_RUN_DEADLINE);
    cluster_run_signal(chief, SIGTERM);
    cluster_run_expect(chief, 128 + SIGTERM, CLUSTER_RUN_DEADLINE);
    for (unsigned i = 1; i < fixture.count; i++)
        cluster_run_expect(fixture.tasks[i].process, 138, CLUSTER_RUN_DEADLINE);
    for (size_t at = 0; at < 3; at++)
        assert_true(listed_number(run, "parts", at, "base") != (long long)base);
    uint64_t left[8];
    assert_in_range(cluster_fixture_checkpoints(run, "parts", left, 8), 3, 4);
}

/* Each of 8000 records has a user of its own, then twenty have all. */
static void write_users(const struct cluster_run *run) {
    const char *path;
    for (int few = 0; few < 2; few++) {
        path = cluster_run_path(run, few ? "few.csv" : "train.csv");
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs("label,user,item,weight\n", file);
        for (int i = 0; i < 8000; i++)
            fprintf(file, "%d,u%d,i%d,0\n", i % 2, few ? i % 20 : i, i % 9);
        fclose(file);
    }
}

TEST(a_delta_is_small_when_few_rows_have_changed) {
    write_users(run);
    cluster_run_job(run, expiring);
    CLUSTER_FIXTURE_RUN(run, 2, 2, 0, "steps=125");
    json_int_t full = listed_number(run, "parts", 0, "size");
    CLUSTER_FIXTURE_RUN(run, 2, 2, 0, "steps=155", "data.train=few.csv",
                        "checkpoint.delta_every_steps=29");
    assert_int_equal(listed_number(run, "parts", 1, "base"), 125);
    json_int_t delta = listed_number(run, "parts", 1, "size");
    print_message("# %" JSON_INTEGER_FORMAT
                  " bytes, the delta %" JSON_INTEGER_FORMAT "\n",
                  full, delta);
    assert_true(delta < full / 4);
}

TEST(an_asynchronous_run_resumes_from_a_delta) {
    char resumed[64], steps[64];
    cluster_run_job(
        run, EXPIRING("1000000, \"strategy\": {\"staleness\": \"inf\"}"));
    kill_between_deltas(run, 2);
    json_int_t step = listed_number(run, "parts", 0, "step");
    assert_true(listed_number(run, "parts", 0, "base") > 0);
    snprintf(steps, sizeof steps, "steps=%" JSON_INTEGER_FORMAT, step + 300);
    snprintf(resumed, sizeof resumed,
             "/parts/step-%09" JSON_INTEGER_FORMAT ", epoch", step);
    cluster_fixture_expect_logged(CLUSTER_FIXTURE_RUN(run, 3, 2, 0, steps),
                                  resumed);
    cluster_fixture_tool(run, 0, WORDS("ckpt", "verify", "parts"));
}

TEST(deltas_without_tables_are_refused) {
    cluster_run_job(run, NULL);
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(run, 1, 1, 2, "checkpoint.delta_every_steps=5"),
        "checkpoint.delta_every_steps: found 5, and the model has no tables");
}

/* Of all ps together, however they are spread. */
TEST(max_rows_are_those_of_all_ps) {
    char all[64], fewer[64];
    cluster_run_job(run, deepfm);
    snprintf(all, sizeof all, "features.item.max_rows=%d",
             CLUSTER_CLICKS_ITEMS);
    snprintf(fewer, sizeof fewer, "features.item.max_rows=%d",
             CLUSTER_CLICKS_ITEMS - 1);
    CLUSTER_FIXTURE_RUN(run, 3, 2, 0, "checkpoint.resume=never", all);
    for (unsigned ps = 1; ps <= 3; ps += 2)
        cluster_fixture_expect_logged(
            CLUSTER_FIXTURE_RUN(run, ps, 2, 1, "checkpoint.resume=never",
                                "epochs=100000", fewer),
            "table \"item");
}

static void write_words(struct cluster_run *run, const char *words) {
    FILE *file = cluster_run_create(run, "words.txt");
    fputs(words, file);
    assert_int_equal(fclose(file), 0);
}

/* A change gives other ids, or other numbers, to what rows and weights were
 * learnt for. The limits of rows may change. */
TEST(changed_features_are_refused) {
    static const char *const changes[][2] = {
        {"features.item.size=2000000", "feature \"item\" is {"},
        {"features.weight.transform=log1p", "feature \"weight\" is {"},
        {"features.e_user.combiner=sum", "feature \"e_user\" is {"}};
    cluster_run_job(run, deepfm);
    write_words(run, "u1\nu2\n");
    const char *words = "features.words={\"type\": \"vocabulary\", \"of\":"
                        " \"user\", \"file\": \"words.txt\"}";
    CLUSTER_FIXTURE_RUN(run, 2, 2, 0, "checkpoint.dir=c", words, "epochs=1");
    for (int i = 0; i < 3; i++) {
        struct cluster_process *process = CLUSTER_FIXTURE_RUN(
            run, 2, 2, 2, "checkpoint.dir=c", words, changes[i][0], "epochs=2");
        cluster_fixture_expect_logged(process, "with other features than");
        cluster_fixture_expect_logged(process, changes[i][1]);
    }
    write_words(run, "u2\nu1\n");
    cluster_fixture_expect_logged(CLUSTER_FIXTURE_RUN(run, 2, 2, 2,
                                                      "checkpoint.dir=c", words,
                                                      "epochs=2"),
                                  "a file of words has changed");
    write_words(run, "u1\nu2\n");
    CLUSTER_FIXTURE_RUN(run, 2, 2, 0, "checkpoint.dir=c", words,
                        "features.user.max_rows=1000", "epochs=2");
}

/* The file of weights and state of the newest checkpoint of DIR. */
static char *exported_state(struct cluster_run *run, const char *dir,
                            size_t *bytes) {
    cluster_fixture_tool(
        run, 0, WORDS("ckpt", "export", "--state", dir, "state.safetensors"));
    FILE *file = fopen(cluster_run_path(run, "state.safetensors"), "r");
    assert_non_null(file);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    *bytes = fread(text, 1, (1 << 20) - 1, file);
    fclose(file);
    return text;
}

/* The header is the first 8 bytes and the names behind them. */
static void expect_state(struct cluster_run *run, const char *dir) {
    static const char *const there[] = {"wide.weight.linear", "bias.accum",
                                        "deep0.weight.sum", "deep1.bias.sum"};
    static const char *const not_there[] = {"wide.weight.sum",
                                            "deep0.weight.accum"};
    size_t bytes;
    char *text = exported_state(run, dir, &bytes);
    for (int i = 0; i < 4; i++)
        if (!strstr(text + 8, there[i]))
            fail_msg("no %s in %s", there[i], dir);
    for (int i = 0; i < 2; i++)
        assert_null(strstr(text + 8, not_there[i]));
    free(text);
}

/* A first step by both rules changes each group as a first step by its rule
 * alone does. */
TEST(each_group_is_trained_by_its_own_rule) {
    static const char *const dirs[] = {"both", "ftrl", "adagrad"};
    static const char *const sets[] = {
        "steps=1",
        "optimizers={\"wide\": {\"type\": \"Ftrl\", \"params\": {\"lr\": 0.5}}}",
        "optimizers={\"deep\": {\"type\": \"Adagrad\", \"params\": {\"lr\": 0.1}}}"};
    static const char *const optimizers[] = {
        "optimizer=null", "optimizer.type=Ftrl", "optimizer.type=Adagrad"};
    cluster_run_job(run, grouped);
    for (int i = 0; i < 3; i++) {
        char dir[64];
        snprintf(dir, sizeof dir, "checkpoint.dir=%s", dirs[i]);
        CLUSTER_FIXTURE_RUN(run, 2, 2, 0, "epochs=null", "steps=1", dir,
                            sets[i], optimizers[i]);
    }
    cluster_clicks_expect_same_rows(run, "both", "ftrl", "cross");
    cluster_clicks_expect_same_rows(run, "both", "adagrad", "e_user");
    char *both = cluster_clicks_exported(run, "both", "e_user");
    char *other = cluster_clicks_exported(run, "ftrl", "e_user");
    assert_string_not_equal(both, other);
    free(both);
    free(other);
    expect_state(run, "both");
}

TEST(a_resumed_group_keeps_its_rule_and_may_change_its_rate) {
    cluster_run_job(run, grouped);
    CLUSTER_FIXTURE_RUN(run, 2, 2, 0, "epochs=null", "steps=5",
                        "checkpoint.dir=c");
    struct cluster_process *process = CLUSTER_FIXTURE_RUN(
        run, 2, 2, 2, "epochs=null", "steps=10", "checkpoint.dir=c",
        "optimizers.wide={\"type\": \"Adagrad\"}");
    cluster_fixture_expect_logged(
        process, "optimizer Ftrl with 2 state tensors for \"wide.weight\"");
    process = CLUSTER_FIXTURE_RUN(run, 2, 2, 2, "epochs=null", "steps=10",
                                  "checkpoint.dir=c", "optimizers.wide=null",
                                  "optimizer={\"type\": \"Adagrad\"}");
    cluster_fixture_expect_logged(process, "state tensors for \"wide.weight\"");
    CLUSTER_FIXTURE_RUN(run, 3, 2, 0, "epochs=null", "steps=10",
                        "checkpoint.dir=c", "optimizers.wide.params.lr=0.1");
    expect_state(run, "c");
}

/* Two summands have the same sum in any order. Clipping, a schedule and scaled
 * rates hold for each group. */
TEST(all_reduce_has_the_bits_of_a_ps_for_groups) {
    static const char *const stages[] = {"zero_optimization.stage=0",
                                         "zero_optimization.stage=2"};
    static const char schedule[] =
        "scheduler={\"type\": \"WarmupCosineLR\", \"params\":"
        " {\"total_num_steps\": 40, \"warmup_num_steps\": 8}}";
    cluster_run_job(run, dense_groups);
    CLUSTER_FIXTURE_RUN(run, 2, 2, 0, "epochs=null", "steps=30",
                        "checkpoint.dir=ps", "gradient_clipping=0.1", schedule,
                        "scale_lr=linear");
    size_t bytes, other_bytes;
    char *ps = exported_state(run, "ps", &bytes);
    for (int i = 0; i < 2; i++) {
        char dir[64];
        snprintf(dir, sizeof dir, "checkpoint.dir=allreduce%d", i);
        CLUSTER_FIXTURE_RUN(run, 0, 2, 0, "epochs=null", "steps=20", dir,
                            "gradient_clipping=0.1", schedule,
                            "scale_lr=linear", stages[i]);
        CLUSTER_FIXTURE_RUN(run, 0, 2, 0, "epochs=null", "steps=30", dir,
                            "gradient_clipping=0.1", schedule,
                            "scale_lr=linear", stages[1 - i]);
        expect_state(run, strchr(dir, '=') + 1);
        char *other = exported_state(run, strchr(dir, '=') + 1, &other_bytes);
        assert_int_equal(bytes, other_bytes);
        assert_memory_equal(ps, other, bytes);
        free(other);
    }
    free(ps);
}

TEST(rules_that_move_rows_not_pushed_are_refused) {
    cluster_run_job(run, deepfm);
    CLUSTER_FIXTURE_RUN(run, 1, 1, 2,
                        "optimizer={\"type\": \"SGD\", \"params\":"
                        " {\"lr\": 0.1, \"momentum\": 0.9}}");
    CLUSTER_FIXTURE_RUN(run, 1, 1, 2, "optimizer={\"type\": \"RMSprop\"}");
}
