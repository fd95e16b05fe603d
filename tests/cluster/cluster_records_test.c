/* SPDX-License-Identifier: Apache-2.0 */
/* Runs over files of records: CSV with a planted rule, in parts of different
 * lengths, plain and compressed; and over numbers in IDX, which are learnt as
 * records are. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_fixture.h"

#include "tests/cluster/cluster_points.h"
#include "tests/lib/json_number.h"
#include "tests/lib/test.h"

#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <zlib.h>

enum { PARTS = 5, TEST_ROWS = 400, EXIT_FAILED = 1 };

/* Of a trainer that reads part 1 and 3 of 5, the longest share, and the
 * other. */
static const unsigned part_rows[PARTS] = {150, 410, 30, 600, 77};

static double uniform(uint32_t *seed) {
    *seed = *seed * 1664525 + 1013904223;
    return (*seed >> 8) * 0x1p-23 - 1;
}

/* Rows of two numbers and a word; the label is 1 where 2 a - b plus the word's
 * number is over 0, the target that sum. */
static void write_rows(const struct cluster_run *run, const char *name,
                       unsigned rows, uint32_t seed) {
    static const char *const words[] = {"red", "green", "blue"};
    const char *path = cluster_run_path(run, name);
    size_t length = strlen(name);
    bool packed = !strcmp(name + length - 3, ".gz");
    gzFile file = gzopen(path, packed ? "w" : "wT");
    assert_non_null(file);
    gzprintf(file, "a,b,word,label,target\n");
    for (unsigned i = 0; i < rows; i++) {
        double a = uniform(&seed), b = uniform(&seed);
        int word = (int)(1.5 * (uniform(&seed) + 1)) % 3;
        double sum = 2 * a - b + (word - 1);
        gzprintf(file, "%.6f,%.6f,\"%s\",%d,%.6f\n", a, b, words[word], sum > 0,
                 sum);
    }
    assert_int_equal(gzclose(file), Z_OK);
}

static int setup(void **state) {
    int failed = cluster_run_setup(state);
    const struct cluster_run *run = *state;
    char name[32];
    for (unsigned p = 0; !failed && p < PARTS; p++) {
        snprintf(name, sizeof name, "part-%u.csv%s", p, p % 2 ? ".gz" : "");
        write_rows(run, name, part_rows[p], p);
    }
    write_rows(run, "test.csv", TEST_ROWS, 99);
    return failed;
}

FIXTURE(setup, cluster_run_teardown);

#define DATA                                                                   \
    "\"data\": {\"format\": \"csv\", \"header\": true, \"train\":"             \
    " \"part-*\", \"test\": \"test.csv\", \"shuffle_buffer\": 64}"
#define FEATURES                                                               \
    "\"features\": {\"a\": {\"type\": \"numeric\"},"                           \
    " \"b\": {\"type\": \"numeric\"},"                                         \
    " \"word\": {\"type\": \"vocabulary\","                                    \
    " \"values\": [\"red\", \"green\", \"blue\"]}}"
#define MODEL                                                                  \
    "\"model\": {\"layers\": [5, 16, 1], \"loss\": \"sigmoid_cross_entropy\"}"
#define ADAM "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.01}}"

static const char binary[] =
    "{" DATA ", " FEATURES ", " MODEL ", " ADAM ", \"epochs\": 6}";

static double figure(struct cluster_process *process, const char *key) {
    return number_at(cluster_run_json(process), key);
}

static struct cluster_process *run_json(struct cluster_run *run,
                                        const char *num_ps, const char *workers,
                                        const char *set) {
    char ps[32] = "job.json";
    if (num_ps)
        snprintf(ps, sizeof ps, "--ps=%s", num_ps);
    struct cluster_process *process =
        cluster_run_start(run, "local",
                          WORDS("local", "--workers", workers, "--set", set,
                                "--set", "checkpoint.resume=never", "--json",
                                ps, num_ps ? "job.json" : NULL),
                          NULL);
    cluster_run_expect(process, 0, 2 * CLUSTER_RUN_DEADLINE);
    return process;
}

/* Shares by file (2 trainers: parts 0, 2, 4 and 1, 3) and by record (3). */
TEST(records_are_learnt_by_every_strategy) {
    static const char *const workers[] = {"2", "3", "2", "2"};
    static const char *const ps[] = {"2", "1", NULL, "1"};
    static const char *const sets[] = {"threads=1", "wire=bf16",
                                       "strategy.type=allreduce",
                                       "strategy.staleness=inf"};
    cluster_run_job(run, binary);
    for (int i = 0; i < 4; i++) {
        struct cluster_process *process =
            run_json(run, ps[i], workers[i], sets[i]);
        assert_true(figure(process, "test_accuracy") > 0.93);
        assert_true(figure(process, "test_auc") > 0.98);
        assert_true(figure(process, "test_logloss") < 0.25);
        assert_true(fabs(figure(process, "test_calibration") - 1) < 0.1);
    }
}

/* Of 5 files two trainers read 257 and 1010 records: 101 rounds an epoch. */
TEST(an_epoch_is_as_long_as_the_longest_share) {
    cluster_run_job(run, binary);
    struct cluster_process *process = run_json(run, "1", "2", "epochs=2");
    assert_int_equal((int)figure(process, "steps"), 202);
}

TEST(a_number_is_learnt_by_squared_errors) {
    cluster_run_job(
        run,
        "{\"data\": {\"format\": \"csv\", \"header\": true,"
        " \"train\": \"part-*\", \"test\": \"test.csv\", \"label\": \"target\"},"
        " \"model\": {\"layers\": [5, 1], \"loss\": \"mse\"}," FEATURES "," ADAM
        ", \"epochs\": 30}");
    struct cluster_process *process = run_json(run, "1", "2", "seed=3");
    assert_true(figure(process, "test_loss") < 0.01);
    const json_t *summary = cluster_run_json(process);
    assert_true(json_is_null(json_object_get(summary, "test_accuracy")));
    cluster_fixture_expect_logged(process, ": test loss 0.0");
}

/* File NUMBER of NAME has so many ROWS, which are alike. */
static void write_alike(const struct cluster_run *run, const char *name,
                        unsigned number, unsigned rows) {
    FILE *file =
        fopen(cluster_run_path(run, textf("%s-%u.csv", name, number)), "w");
    assert_non_null(file);
    fputs("x,label\n", file);
    for (unsigned i = 0; i < rows; i++)
        fputs("0.5,3\n", file);
    fclose(file);
}

/* A short share has one of three micro batches. If they are a step each, the
 * rounds' means are then over the other trainer; if they are a step together,
 * the trainer's gradient is that one's, not a third of it. All samples have the
 * same gradient, so it does not matter who has how many. */
TEST(a_short_share_counts_as_much_as_a_long_one) {
    for (unsigned f = 0; f < 4; f++) {
        write_alike(run, "even", f, f < 2 ? 3 : 0);
        write_alike(run, "uneven", f, f == 0 ? 1 : f == 1 ? 3 : 0);
    }
    for (unsigned accumulation = 1; accumulation <= 3; accumulation += 2) {
        double loss[2];
        cluster_run_job(
            run, textf("{\"data\": {\"format\": \"csv\", \"header\": true,"
                       " \"train\": \"even-*\", \"test\": \"even-0.csv\"},"
                       " \"model\": {\"layers\": [1, 1], \"loss\": \"mse\"},"
                       " \"epochs\": 1, \"train_micro_batch_size_per_gpu\": 1,"
                       " \"gradient_accumulation_steps\": %u}",
                       accumulation));
        loss[0] = figure(run_json(run, "1", "2", "threads=1"), "test_loss");
        loss[1] =
            figure(run_json(run, "1", "2", "data.train=uneven-*"), "test_loss");
        assert_true(fabs(loss[0] - loss[1]) < 1e-5 * loss[0]);
    }
}

/* Samples that the checkpoint of STEP in FOLDER/DIR has behind it. */
static int64_t samples_behind(struct cluster_run *run, const char *dir,
                              int64_t step) {
    const char *ls[] = {"ckpt", "ls", "--json", dir, NULL};
    const json_t *all = cluster_run_json(cluster_fixture_tool(run, 0, ls)),
                 *one;
    int64_t samples = -1;
    size_t i;
    json_array_foreach(
        json_object_get(all, "checkpoints"), i,
        one) if (json_integer_value(json_object_get(one, "step")) == step)
        samples = json_integer_value(json_object_get(one, "samples"));
    return samples;
}

/* Half the way, then the rest: the data goes on where it was, at an epoch's
 * end, within one, and by steps, which count nothing. */
TEST(a_resumed_run_reads_on_to_the_same_bits) {
    static const char *const whole[] = {"epochs=2", "steps=150", "epochs=2"};
    static const char *const half[] = {"epochs=1", "steps=67", "epochs=1"};
    static const char *const from[] = {"auto", "auto", "37"};
    cluster_run_job(run, binary);
    for (int i = 0; i < 3; i++) {
        char one[64], two[64];
        const char *resume = textf("checkpoint.resume=%s", from[i]);
        snprintf(one, sizeof one, "checkpoint.dir=one-%d", i);
        snprintf(two, sizeof two, "checkpoint.dir=two-%d", i);
        CLUSTER_FIXTURE_RUN(run, 2, 2, 0, one, whole[i]);
        CLUSTER_FIXTURE_RUN(run, 1, 2, 0, two, half[i], "data.num_workers=3",
                            "checkpoint.every_steps=37", "checkpoint.keep=0");
        CLUSTER_FIXTURE_RUN(run, 3, 2, 0, two, whole[i], resume);
        cluster_fixture_expect_same_checkpoints(
            run, one + strlen("checkpoint.dir="),
            two + strlen("checkpoint.dir="));
    }
    /* 37 batches of 10 of one trainer; the other's share ends before. */
    assert_int_equal(samples_behind(run, "two-0", 37), 370 + 257);
    assert_int_equal(samples_behind(run, "two-0", 101), 1010 + 257);
}

static void append_line(const struct cluster_run *run, const char *name,
                        const char *line) {
    FILE *file = fopen(cluster_run_path(run, name), "a");
    assert_non_null(file);
    fputs(line, file);
    assert_int_equal(fclose(file), 0);
}

/* Of record 180 of its share trainer 0 dies after 18 batches of 10, long before
 * the other trainer's next heartbeat. */
TEST(a_bad_record_is_named_or_skipped) {
    cluster_run_job(run, binary);
    append_line(run, "part-2.csv", "0.5,n/a,\"red\",1,0\n");
    struct cluster_process *process =
        CLUSTER_FIXTURE_RUN(run, 1, 2, EXIT_FAILED, "data.shuffle=false",
                            "train_micro_batch_size_per_gpu=10");
    cluster_fixture_expect_logged(process, "part-2.csv:32: column b: found "
                                           "\"n/a\", expected a number");
    double steps = figure(process, "steps");
    assert_true(steps == 17 || steps == 18);
    append_line(run, "test.csv", "x,1,\"red\",1,0\n");
    process = CLUSTER_FIXTURE_RUN(
        run, 1, 2, 0, "data.bad_lines=skip", "data.num_workers=3",
        "data.prefetch_factor=8", "train_micro_batch_size_per_gpu=10");
    cluster_fixture_expect_logged(process, "part-2.csv:32: column b");
    assert_true(figure(process, "bad_lines") == 6); /* once an epoch */
    assert_true(figure(process, "test_bad_lines") == 1);
    assert_false(cluster_fixture_has_logged(process, "of the test set)"));
    CLUSTER_FIXTURE_RUN(run, 1, 2, 0, "data.bad_lines=skip",
                        "checkpoint.resume=never", "epochs=1",
                        "train_micro_batch_size_per_gpu=1",
                        "gradient_accumulation_steps=3");
    FILE *file = cluster_run_create(run, "bad.csv");
    fputs("a,b,word,label,target\nx,1,red,0,0\nx,1,red,0,0\n", file);
    assert_int_equal(fclose(file), 0);
    process = CLUSTER_FIXTURE_RUN(run, 1, 2, 0, "data.bad_lines=skip",
                                  "checkpoint.resume=never", "epochs=1",
                                  "data.test=bad.csv");
    assert_true(figure(process, "test_bad_lines") == 2);
    const char *end = strstr(cluster_run_errors(process), "epoch 1/1: train");
    assert_non_null(end);
    assert_null(strstr(end + 1, "epoch 1/1: ")); /* evaluated once */
}

/* Those of an epoch or two around the checkpoint may be read ahead. */
TEST(bad_lines_before_a_checkpoint_stay_counted_when_the_run_goes_back) {
    cluster_run_job(run, binary);
    append_line(run, "part-2.csv", "0.5,n/a,\"red\",1,0\n");
    struct cluster_process *local = cluster_run_start(
        run, "local",
        WORDS("local", "job.json", "--json", "--ps", "1", "--workers", "2",
              "--set", "data.bad_lines=skip", "--set", "epochs=300", "--set",
              "checkpoint.every_epochs=20", "--set", "checkpoint.dir=rewound"),
        NULL);
    const char *text =
        strstr(cluster_run_await_soon(local, "ps 0 joined from "), ", pid ");
    pid_t pid = text ? (pid_t)atoi(text + strlen(", pid ")) : 0;
    assert_true(pid > 1);
    for (int i = 0; i < 3; i++)
        cluster_run_await_soon(local, "chief: checkpoint ");
    assert_int_equal(kill(pid, SIGKILL), 0);
    cluster_run_await_soon(local, "the run goes on after step ");
    cluster_run_expect(local, 0, 4 * CLUSTER_RUN_DEADLINE);
    assert_in_range((uintmax_t)figure(local, "bad_lines"), 297, 303);
}

/* With both lengths, and again from what the run has left behind. */
TEST(a_run_of_bad_records_alone_fails) {
    static const char *const lengths[] = {"epochs=2", "steps=2000"};
    cluster_run_job(run, binary);
    FILE *file = cluster_run_create(run, "bad.csv");
    fputs("a,b,word,label,target\n", file);
    for (int i = 0; i < 40; i++)
        fputs("x,1,red,0,0\n", file);
    assert_int_equal(fclose(file), 0);
    for (int i = 0; i < 4; i++) {
        struct cluster_process *process = CLUSTER_FIXTURE_RUN(
            run, 1, 2, EXIT_FAILED, "data.bad_lines=skip", lengths[i / 2],
            "data.train=bad.csv", "checkpoint.dir=left",
            "checkpoint.every_steps=1");
        cluster_fixture_expect_logged(process, " are bad and were left out");
        double bad = figure(process, "bad_lines");
        assert_true(i / 2 ? bad >= 40 : bad == 80);
    }
}

/* NAME with spaces around the fields of SPACED, as UCI's adult.data has. */
static void space_out(const struct cluster_run *run, const char *name,
                      const char *spaced_name) {
    FILE *from = fopen(cluster_run_path(run, name), "r"),
         *to = cluster_run_create(run, spaced_name);
    assert_non_null(from);
    for (int c; (c = fgetc(from)) != EOF;)
        fputs(c == ',' ? " ,  " : (char[]){(char)c, 0}, to);
    assert_int_equal(fclose(to), 0);
    fclose(from);
}

TEST(fields_between_spaces_train_to_the_same_bits) {
    cluster_run_job(run, binary);
    space_out(run, "part-2.csv", "spaced.csv");
    space_out(run, "test.csv", "spaced-test.csv");
    double loss[2];
    for (int i = 0; i < 2; i++)
        loss[i] =
            figure(CLUSTER_FIXTURE_RUN(
                       run, 1, 2, 0,
                       i ? "data.train=spaced.csv" : "data.train=part-2.csv",
                       i ? "data.test=spaced-test.csv" : "data.test=test.csv",
                       i ? "checkpoint.dir=b" : "checkpoint.dir=a"),
                   "test_loss");
    assert_true(loss[0] == loss[1]);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(run, 1, 2, 2, "data.train=spaced.csv",
                            "data.trim=false"),
        "data.label: found \"label\"; allowed: a column: a ");
}

/* A word that is none of a vocabulary's counts nowhere: of one of which no word
 * is ever found the job is wrong. */
TEST(a_vocabulary_without_its_words_is_named) {
    cluster_run_job(run, binary);
    struct cluster_process *process = CLUSTER_FIXTURE_RUN(
        run, 1, 2, 0, "epochs=1",
        "features.word.values=[\"Red\",\"Blue\",\"Green\"]");
    cluster_fixture_expect_logged(
        process, "data.train: features.word: none of the first 1000 records");
    cluster_fixture_expect_logged(process, "in column word; they have ");
    cluster_fixture_expect_logged(
        process, "data.test: features.word: none of the first 1000 records");
    process = CLUSTER_FIXTURE_RUN(
        run, 1, 2, 0, "epochs=1", "checkpoint.resume=never",
        "features.word.values=[\"Red\",\"Blue\",\"green\"]");
    assert_false(cluster_fixture_has_logged(process, "features.word"));
}

/* 5 epochs of 1267 samples are 42.2 of the 150 that the first file has. */
TEST(a_run_goes_on_in_the_epoch_of_its_samples) {
    const char *path;
    cluster_run_job(run, binary);
    CLUSTER_FIXTURE_RUN(run, 1, 1, 0, "epochs=4");
    struct cluster_process *process =
        CLUSTER_FIXTURE_RUN(run, 1, 1, 0, "epochs=5");
    assert_false(cluster_fixture_has_logged(process, "epochs of the data"));
    for (unsigned p = 1; p < PARTS; p++) {
        path = cluster_run_path(run,
                                textf("part-%u.csv%s", p, p % 2 ? ".gz" : ""));
        assert_int_equal(unlink(path), 0);
    }
    process = CLUSTER_FIXTURE_RUN(run, 1, 1, 0, "epochs=45");
    cluster_fixture_expect_logged(
        process, "its 6335 samples are 42.2 epochs of the data as they are "
                 "now, 150 samples: the run goes on in epoch 43");
    cluster_fixture_expect_logged(process, "epoch 43/45");
}

/* What the model reads of the first records, as JSON. */
TEST(peek_shows_what_the_model_reads) {
    cluster_run_job(run, binary);
    FILE *file = cluster_run_create(run, "test.csv");
    fputs("a,b,word,label,target\n0.5,,\"blue\",1,0\nx,1,red,0,0\n", file);
    fclose(file);
    const json_t *all = cluster_run_json(cluster_fixture_tool(
        run, 0,
        WORDS("data", "peek", "--rows=2", "--json", "--set",
              "data.train=test.csv", "job.json")));
    json_t *rows = json_object_get(all, "samples");
    json_t *expected = json_loads(
        "{\"columns\": {\"a\": \"0.5\", \"b\": null, \"word\": \"blue\"},"
        " \"features\": {\"a\": 0.5, \"b\": 0.0, \"word\": [0.0, 0.0, 1.0]},"
        " \"label\": 1.0}",
        0, NULL);
    json_t *first = json_array_get(rows, 0);
    assert_int_equal(json_array_size(rows), 2);
    assert_contains(json_string_value(json_object_get(first, "at")),
                    "/test.csv:2");
    json_object_del(first, "at");
    assert_true(json_equal(first, expected));
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(rows, 1), "error")),
        "column a: found \"x\", expected a number");
    json_decref(expected);
    struct cluster_process *bench = cluster_fixture_tool(
        run, 0, WORDS("data", "bench", "--json", "job.json"));
    const json_t *measured = cluster_run_json(bench);
    assert_string_equal(json_string_value(json_object_get(measured, "reader")),
                        "csv");
    assert_true(figure(bench, "samples_per_second") > 0);
    assert_true(figure(bench, "records_per_second") > 0);
    assert_true(figure(bench, "bytes_per_second") > 0);
}

enum { WEIGHTED = 24, COPIES = 36 };

/* Rows with weights 0 to 3, or as many COPIES of each, of weight 1. */
static void write_weighted(const struct cluster_run *run, const char *name,
                           bool copies) {
    uint32_t seed = 7;
    FILE *file = cluster_run_create(run, name);
    fputs("a,b,w,label\n", file);
    for (int i = 0; i < WEIGHTED; i++) {
        double a = uniform(&seed), b = uniform(&seed);
        for (int c = copies ? i % 4 : 1; c > 0; c--)
            fprintf(file, "%.6f,%.6f,%d,%d\n", a, b, copies ? 1 : i % 4,
                    2 * a - b > 0.1 * (i % 4));
    }
    fclose(file);
}

#define WEIGHTED_DATA                                                          \
    "\"data\": {\"format\": \"csv\", \"header\": true, \"train\":"             \
    " \"weighted.csv\", \"test\": \"copies.csv\", \"weight\": \"w\","          \
    " \"shuffle\": false}, \"features\": {\"a\": {\"type\": \"numeric\"},"     \
    " \"b\": {\"type\": \"numeric\"}}, \"optimizer\": {\"type\": \"SGD\","     \
    " \"params\": {\"lr\": 0.5}}, \"train_micro_batch_size_per_gpu\": 24,"     \
    " \"epochs\": 40"

/* A batch is the whole file: its mean is over 24 samples, or over 36. */
TEST(a_weight_counts_as_copies_do) {
    static const char *const jobs[] = {
        "{" WEIGHTED_DATA ", \"model\": {\"layers\": [2, 8, 1],"
        " \"loss\": \"sigmoid_cross_entropy\"}}",
        "{" WEIGHTED_DATA ", \"model\": {\"layers\": [2, 8, 2]}}",
        "{" WEIGHTED_DATA ", \"model\": {\"type\": \"linear\","
        " \"features\": [\"a\", \"b\"], \"loss\": \"mse\"}}"};
    write_weighted(run, "weighted.csv", false);
    write_weighted(run, "copies.csv", true);
    for (int i = 0; i < 3; i++) {
        cluster_run_job(run, jobs[i]);
        double found = figure(run_json(run, "1", "1", "seed=2"), "test_loss");
        struct cluster_process *process = CLUSTER_FIXTURE_RUN(
            run, 1, 1, 0, "data.train=copies.csv", "seed=2",
            "checkpoint.resume=never", "train_micro_batch_size_per_gpu=36",
            "optimizer.params.lr=0.75");
        double wanted = figure(process, "test_loss");
        if (!(fabs(found - wanted) <= 1e-4 * wanted))
            fail_msg("model %d: test_loss %.9g, with copies %.9g", i, found,
                     wanted);
        double all = figure(
            cluster_fixture_tool(run, 0,
                                 WORDS("eval", "--json", "--set",
                                       "data.test=weighted.csv", "checkpoint")),
            "test_loss");
        assert_true(fabs(all * WEIGHTED - wanted * COPIES) <=
                    1e-5 * wanted * COPIES);
    }
}

TEST(a_weight_that_does_not_fit_is_named) {
    cluster_run_job(run,
                    "{" WEIGHTED_DATA ", \"model\": {\"layers\": [2, 8, 2]}}");
    write_weighted(run, "weighted.csv", false);
    write_weighted(run, "copies.csv", true);
    struct cluster_process *process =
        CLUSTER_FIXTURE_RUN(run, 1, 1, 2, "data.weight=v");
    cluster_fixture_expect_logged(process, "data.weight: found \"v\"");
    FILE *file = cluster_run_create(run, "weighted.csv");
    fputs("a,b,w,label\n1,1,1,0\n1,1,-0.5,1\n", file);
    fclose(file);
    process = CLUSTER_FIXTURE_RUN(run, 1, 1, EXIT_FAILED,
                                  "train_micro_batch_size_per_gpu=2");
    cluster_fixture_expect_logged(
        process, "weighted.csv:3: weight w: found -0.5, expected 0 or more");
}

TEST(a_feature_that_the_file_lacks_is_named) {
    cluster_run_job(run,
                    "{" WEIGHTED_DATA ", \"model\": {\"layers\": [1, 2]}}");
    write_weighted(run, "weighted.csv", false);
    write_weighted(run, "copies.csv", true);
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(run, 1, 1, 2,
                            "features={\"v\": {\"type\": \"numeric\"}}"),
        textf(": data.train: features.v: found \"v\" (a string); allowed: a "
              "column of %s: a, b\n",
              cluster_run_path(run, "weighted.csv")));
}

#define POINTS_JOB                                                             \
    "{\"model\": {\"layers\": [4, 8, 1], \"loss\": \"mse\"}, \"data\":"        \
    " {\"train\": [\"x.idx\", \"y.idx\"], \"test\": [\"x.idx\", \"y.idx\"],"   \
    " \"shuffle\": false}, \"epochs\": 20, " ADAM "}"

static void expect_same_files(const struct cluster_run *run, const char *a,
                              const char *b) {
    enum { ROOM = 1 << 14 };
    static char bytes[2][ROOM];
    const char *path;
    size_t sizes[2];
    for (int i = 0; i < 2; i++) {
        path = cluster_run_path(run, i ? b : a);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        sizes[i] = fread(bytes[i], 1, ROOM, file);
        fclose(file);
    }
    assert_in_range(sizes[0], 1, ROOM - 1);
    assert_int_equal(sizes[0], sizes[1]);
    assert_memory_equal(bytes[0], bytes[1], sizes[0]);
}

TEST(numbers_in_idx_train_as_numpy_s_do) {
    cluster_points_write(run);
    cluster_run_job(run, POINTS_JOB);
    double loss = figure(CLUSTER_FIXTURE_RUN(run, 1, 1, 0, NULL), "test_loss");
    assert_true(loss < 5);
    double npy =
        figure(CLUSTER_FIXTURE_RUN(
                   run, 1, 1, 0, "data.format=npy", "data.train=xy.npy",
                   "data.test=xy.npy", "data.label=y", "checkpoint.dir=npy",
                   "features={\"x\": {\"type\": \"numeric\", \"shape\": 4}}"),
               "test_loss");
    assert_true(loss == npy);
    cluster_fixture_expect_same_checkpoints(run, "checkpoint", "npy");
    double found = figure(
        cluster_fixture_tool(run, 0, WORDS("eval", "--json", "job.json")),
        "test_loss");
    assert_true(fabs(found - loss) <= 1e-6 * loss);
    const json_t *all = cluster_run_json(cluster_fixture_tool(
        run, 0, WORDS("data", "peek", "--rows=1", "--json", "job.json")));
    const json_t *row = json_array_get(json_object_get(all, "samples"), 0);
    double label = json_number_value(json_object_get(row, "label"));
    assert_true(label != floor(label));
}

/* The numbers of a model that was trained with floats are not scaled, in
 * whatever format they come. */
TEST(numbers_are_predicted_as_they_were_trained) {
    static const char *const inputs[] = {"x.idx", "xy.npy"};
    static const char *const outputs[] = {"idx.csv", "npy.csv"};
    struct cluster_process *process = NULL;
    cluster_points_write(run);
    cluster_run_job(run, POINTS_JOB);
    CLUSTER_FIXTURE_RUN(run, 1, 1, 0, NULL);
    for (int i = 0; i < 2; i++)
        cluster_fixture_tool(
            run, 0, WORDS("predict", "checkpoint", inputs[i], outputs[i]));
    expect_same_files(run, outputs[0], outputs[1]);
    assert_int_equal(remove(cluster_run_path(run, "x.idx")), 0);
    process = cluster_fixture_tool(
        run, 1, WORDS("predict", "checkpoint", "xy.npy", "c.csv"));
    cluster_fixture_expect_logged(process, "its numbers are divided by 255, as "
                                           "if the model was trained with");
    cluster_fixture_expect_logged(process, "expected 0 to 1");
}

/* Bytes of classes 0 to 9 are numbers to squared errors. */
TEST(labels_in_idx_have_to_fit_the_model) {
    struct cluster_process *process;
    cluster_run_job(run, "{\"model\": {\"layers\": [64, 1]}}");
    CLUSTER_FIXTURE_RUN(run, 1, 1, 0, "model.loss=mse",
                        "optimizer.params.lr=0.001");
    process =
        CLUSTER_FIXTURE_RUN(run, 1, 1, 2, "model.loss=sigmoid_cross_entropy");
    cluster_fixture_expect_logged(process, "train-labels: sample ");
    cluster_fixture_expect_logged(process, ", expected 0 or 1");
    cluster_points_write(run);
    cluster_run_job(run, POINTS_JOB);
    process = CLUSTER_FIXTURE_RUN(run, 1, 1, 2, "model.layers=[4, 8, 3]",
                                  "model.loss=softmax_cross_entropy");
    cluster_fixture_expect_logged(process, "y.idx: sample 0: label: found ");
    cluster_fixture_expect_logged(process,
                                  ", expected a class, an integer from 0 to 2");
}

/* All keys of data in one job. */
TEST(criteo_s_files_need_no_keys_of_csv) {
    const char *const arguments[] = {"schema", "job.json", NULL};
    cluster_run_job(
        run,
        "{\"data\": {\"format\": \"criteo\", \"train\": [\"day_*.tsv.gz\"],"
        " \"test\": [\"day_23.tsv.gz\"], \"shuffle\": true,"
        " \"shuffle_buffer\": 65536, \"header\": false,"
        " \"delimiter\": \",\", \"label\": \"clicked\","
        " \"weight\": null, \"bad_lines\": \"stop\"},"
        " \"features\": {\"C1\": {\"type\": \"hash_bucket\"}},"
        " \"model\": {\"type\": \"linear\", \"features\": [\"C1\"]}}");
    cluster_fixture_tool(run, 0, arguments);
    cluster_run_job(run, "{\"data\": {\"format\": \"criteo\", \"train\": \"a\","
                         " \"header\": true}, \"features\": {\"C1\":"
                         " {\"type\": \"hash_bucket\"}}, \"model\":"
                         " {\"type\": \"linear\", \"features\": [\"C1\"]}}");
    cluster_fixture_expect_logged(cluster_fixture_tool(run, 2, arguments),
                                  "data.header: found true; allowed: false");
}

/* Nobody writes to it: to open it for reading would wait for ever. */
TEST(a_pipe_is_refused_where_a_file_is_read) {
    static const char *const sets[] = {
        "data.train=pipe", "data.test=pipe",
        "features.word={\"type\":\"vocabulary\",\"file\":\"pipe\"}"};
    assert_int_equal(mkfifo(cluster_run_path(run, "pipe"), 0600), 0);
    cluster_run_job(run, binary);
    for (int i = 0; i < 3; i++)
        cluster_fixture_expect_logged(
            CLUSTER_FIXTURE_RUN(run, 1, 1, 2, sets[i]), "/pipe: found a pipe");
    static const char *const arguments[][8] = {
        {"data", "peek", "--json", "pipe", NULL},
        {"data", "peek", "--json", "--set",
         "data={\"format\":\"npz\",\"train\":\"pipe\"}", "job.json", NULL},
        {"run", "--deepspeed_config", "pipe", "job.json", NULL}};
    for (int i = 0; i < 3; i++)
        cluster_fixture_expect_logged(
            cluster_fixture_tool(run, 2, arguments[i]), "pipe: found a pipe");
}
