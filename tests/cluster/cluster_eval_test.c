/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan eval` finds what the run's own evaluation found, and the predictions
 * of `capstan predict` are those that it is of, whatever the samples are read
 * from. */
#define STATE struct cluster_run *run

#include "core/store/atomic_file.h"
#include "core/store/npz.h"
#include "tests/cluster/cluster_clicks.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/test.h"
#include "worker/data/record_reader.h"

#include <math.h>

enum { TEXT = 1 << 20, IMAGES = 200, PIXELS = 64, CLASSES = 10, HEADER = 16 };

#define TOOL(run, code, ...)                                                   \
    cluster_fixture_tool(run, code, (const char *[]){__VA_ARGS__, NULL})

static double number_of(struct cluster_process *process, const char *key) {
    const json_t *object = cluster_run_json(process);
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        fail_msg("no number %s in the output", key);
    double number = json_number_value(value);
    return number;
}

/* FOLDER/NAME, the caller's. */
static char *read_all(const struct cluster_run *run, const char *name) {
    char *text = calloc(1, TEXT);
    const char *path = cluster_run_path(run, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(text);
    assert_in_range(fread(text, 1, TEXT - 1, file), 1, TEXT - 2);
    fclose(file);
    return text;
}

static void expect_same_text(const struct cluster_run *run, const char *a,
                             const char *b) {
    char *left = read_all(run, a), *right = read_all(run, b);
    if (strcmp(left, right) != 0)
        fail_msg("%s and %s differ", a, b);
    free(left);
    free(right);
}

/* FOLDER/TO is FOLDER/FROM without the column of the label, the first. */
static void drop_labels(const struct cluster_run *run, const char *from,
                        const char *to) {
    char *text = read_all(run, from), *rest = text;
    const char *path = cluster_run_path(run, to);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (char *line; (line = strsep(&rest, "\n")) && *line;)
        fprintf(file, "%s\n", strchr(line, ',') + 1);
    fclose(file);
    free(text);
}

/* The mean log loss of FOLDER/PREDICTIONS, for the labels in FOLDER/test.csv.
 */
static double logloss_of(const struct cluster_run *run,
                         const char *predictions) {
    char *labels = read_all(run, "test.csv");
    char *found = read_all(run, predictions);
    char *label = strchr(labels, '\n') + 1, *at = strchr(found, '\n') + 1;
    double sum = 0;
    assert_memory_equal(found, "probability\n", strlen("probability\n"));
    for (int i = 0; i < CLUSTER_CLICKS_TEST; i++) {
        double probability = strtod(at, &at);
        assert_int_equal(*at++, '\n');
        sum -= log(*label == '1' ? probability : 1 - probability);
        label = strchr(label, '\n') + 1;
    }
    assert_int_equal(*at, 0);
    free(labels);
    free(found);
    return sum / CLUSTER_CLICKS_TEST;
}

/* A run of a model with tables, and its checkpoints of 2 ps. */
static struct cluster_process *train_clicks(struct cluster_run *run) {
    cluster_clicks_write(run);
    cluster_run_job(run, "{" CLUSTER_CLICKS_DEEPFM ", \"epochs\": 2,"
                         " \"checkpoint\": {\"every_steps\": 60}}");
    return CLUSTER_FIXTURE_RUN(run, 2, 2, 0, "seed=3");
}

static void expect_as_run(struct cluster_process *found,
                          struct cluster_process *trained) {
    static const char *const keys[] = {"test_auc", "test_logloss",
                                       "test_accuracy"};
    for (int i = 0; i < 3; i++) {
        double wanted = number_of(trained, keys[i]);
        if (!(fabs(number_of(found, keys[i]) - wanted) <= 1e-6 * wanted))
            fail_msg("%s: found %.9g, the run %.9g", keys[i],
                     number_of(found, keys[i]), wanted);
    }
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(an_evaluation_finds_what_the_run_did) {
    struct cluster_process *trained = train_clicks(run);
    expect_as_run(TOOL(run, 0, "eval", "--json", "job.json"), trained);
    expect_as_run(TOOL(run, 0, "eval", "--json", "checkpoint"), trained);
    struct cluster_process *last =
        TOOL(run, 0, "eval", "--json", "checkpoint/step-000000126/");
    expect_as_run(last, trained);
    assert_int_equal((int)number_of(last, "step"), 126);
    struct cluster_process *before =
        TOOL(run, 0, "eval", "--json", "--step", "60", "job.json");
    assert_int_equal((int)number_of(before, "step"), 60);
    assert_true(number_of(before, "test_logloss") >
                number_of(trained, "test_logloss"));
    struct cluster_process *other =
        TOOL(run, 0, "eval", "--json", "--set", "data.test=train.csv", "--set",
             "threads=2", "checkpoint");
    assert_true(number_of(other, "test_logloss") !=
                number_of(trained, "test_logloss"));
    FILE *file = fopen(cluster_run_path(run, "test.csv"), "a");
    assert_non_null(file);
    fputs("no record\n", file);
    assert_int_equal(fclose(file), 0);
    struct cluster_process *skipping = TOOL(
        run, 0, "eval", "--json", "--set", "data.bad_lines=skip", "checkpoint");
    expect_as_run(skipping, trained);
    assert_int_equal((int)number_of(skipping, "test_bad_lines"), 1);
}

TEST(predictions_need_no_labels) {
    struct cluster_process *trained = train_clicks(run);
    double wanted = number_of(trained, "test_logloss");
    struct cluster_process *process =
        TOOL(run, 0, "predict", "--json", "checkpoint", "test.csv", "a.csv");
    assert_int_equal((int)number_of(process, "samples"), CLUSTER_CLICKS_TEST);
    assert_true(fabs(logloss_of(run, "a.csv") - wanted) <= 1e-5 * wanted);
    drop_labels(run, "test.csv", "unlabelled.csv");
    TOOL(run, 0, "predict", "job.json", "unlabelled.csv", "b.csv");
    expect_same_text(run, "a.csv", "b.csv");
}

/* Fails unless FOLDER/NAME.npz has for each sample the class and the
 * probabilities that FOLDER/NAME.csv has. */
static void expect_npz_as_csv(const struct cluster_run *run, const char *name) {
    static const char *const names[] = {"class", "probability"};
    char file_name[64];
    struct record_file *file;
    struct npz_row row = {0};
    struct record record;
    snprintf(file_name, sizeof file_name, "%s.csv", name);
    char *text = read_all(run, file_name), *at = strchr(text, '\n') + 1;
    snprintf(file_name, sizeof file_name, "%s.npz", name);
    assert_ok(npz_reader.open(
        &file, cluster_run_path(run, file_name),
        &(struct record_cut){.names = names, .num_names = 2}, &failure));
    for (int s = 0; s < IMAGES; s++) {
        const struct record_cell *cells;
        double sum = 0;
        assert_ok(npz_reader.next(file, &record, &failure));
        assert_ok(npz_row_read(&row, 2, &record, &cells, &failure));
        assert_int_equal(cells[0].integers[0], strtol(at, &at, 10));
        assert_int_equal(cells[1].count, CLASSES);
        for (int c = 0; c < CLASSES; c++) {
            float probability = cells[1].floats[c];
            assert_int_equal(*at++, ',');
            assert_true(probability == strtof(at, &at));
            assert_true(probability <= cells[1].floats[cells[0].integers[0]]);
            sum += (double)probability;
        }
        assert_true(fabs(sum - 1) <= 1e-5);
        assert_int_equal(*at++, '\n');
    }
    free(row.cells);
    npz_reader.close(&file);
    free(text);
}

/* The share of FOLDER/NAME's classes that are FOLDER/test-labels's. */
static double accuracy_of(const struct cluster_run *run, const char *name) {
    char *text = read_all(run, name);
    char *at = text;
    int right = 0;
    const char *path = cluster_run_path(run, "test-labels");
    FILE *labels = fopen(path, "r");
    assert_non_null(labels);
    fseek(labels, 8, SEEK_SET);
    for (int s = 0; s < IMAGES; s++) {
        at = strchr(at, '\n') + 1;
        right += fgetc(labels) == strtol(at, NULL, 10);
    }
    fclose(labels);
    free(text);
    return (double)right / IMAGES;
}

/* The bytes of FOLDER/test-images behind the header. */
static void read_images(const struct cluster_run *run,
                        unsigned char images[IMAGES][PIXELS]) {
    FILE *file = fopen(cluster_run_path(run, "test-images"), "r");
    assert_non_null(file);
    fseek(file, HEADER, SEEK_SET);
    assert_int_equal(fread(images, PIXELS, IMAGES, file), IMAGES);
    fclose(file);
}

/* FOLDER/NAME: an archive of one array of TYPE. */
static void write_npz(const struct cluster_run *run, const char *name,
                      const char *type, const void *bytes, size_t size) {
    struct npz_array array = {"arr_0", type, {IMAGES, PIXELS}, 2, size};
    struct atomic_file file;
    struct npz *npz;
    assert_ok(
        atomic_file_create(&file, cluster_run_path(run, name), size, &failure));
    assert_ok(npz_open(&npz, &file, &failure));
    assert_ok(npz_begin(npz, &array, &failure));
    assert_ok(npz_append(npz, bytes, size, &failure));
    assert_ok(npz_finish(npz, &failure));
    npz_close(&npz);
    assert_ok(atomic_file_commit(&file, &failure));
}

/* The same images in other formats: bytes, and floats from 0 to 1. */
static void write_images(const struct cluster_run *run) {
    static unsigned char images[IMAGES][PIXELS];
    static float pixels[IMAGES][PIXELS];
    char header[256];
    read_images(run, images);
    const char *path = cluster_run_path(run, "images.csv");
    FILE *csv = fopen(path, "w");
    for (int p = 0; p < PIXELS; p++)
        fprintf(csv, "%sp%d", p ? "," : "", p);
    for (int s = 0; s < IMAGES; s++)
        for (int p = 0; p < PIXELS; p++) {
            pixels[s][p] = (float)images[s][p] / 255.0f;
            fprintf(csv, "%s%d", p ? "," : "\n", images[s][p]);
        }
    fputc('\n', csv);
    fclose(csv);
    write_npz(run, "bytes.npz", "|u1", images, sizeof images);
    write_npz(run, "floats.npz", "<f4", pixels, sizeof pixels);
    path = cluster_run_path(run, "images.safetensors");
    FILE *file = fopen(path, "w");
    uint64_t length =
        (uint64_t)snprintf(header, sizeof header,
                           "{\"%s\":{\"dtype\":\"F32\",\"shape\":[%d,8,8],"
                           "\"data_offsets\":[0,%zu]}}",
                           "x", IMAGES, sizeof pixels);
    fwrite(&length, sizeof length, 1, file);
    fputs(header, file);
    fwrite(pixels, sizeof pixels, 1, file);
    fclose(file);
    memset(pixels, 0x43, sizeof pixels); /* 195.26 */
    write_npz(run, "wrong.npz", "<f4", pixels, sizeof pixels);
}

TEST(images_may_come_in_any_format) {
    static const char *const inputs[] = {"bytes.npz", "floats.npz",
                                         "images.csv", "images.safetensors"};
    cluster_run_job(run, NULL);
    struct cluster_process *trained = CLUSTER_FIXTURE_RUN(run, 1, 1, 0, NULL);
    double wanted = number_of(trained, "test_accuracy");
    write_images(run);
    TOOL(run, 0, "predict", "job.json", "test-images", "a.csv");
    assert_true(fabs(accuracy_of(run, "a.csv") - wanted) <= 1e-9);
    TOOL(run, 0, "predict", "job.json", "test-images", "a.npz");
    expect_npz_as_csv(run, "a");
    for (int i = 0; i < 4; i++) {
        TOOL(run, 0, "predict", "checkpoint", inputs[i], "b.csv");
        expect_same_text(run, "a.csv", "b.csv");
    }
    struct cluster_process *wrong =
        TOOL(run, 1, "predict", "checkpoint", "wrong.npz", "c.csv");
    cluster_fixture_expect_logged(wrong, "wrong.npz: record 0: value 0: found");
    cluster_fixture_expect_logged(wrong, "divided by 255");
}

/* FOLDER/NAME: COUNT images of 64 fields, each VALUE. */
static void write_csv_images(const struct cluster_run *run, const char *name,
                             const char *value) {
    FILE *file = cluster_run_create(run, name);
    for (int p = 0; p < PIXELS; p++)
        fprintf(file, "%sp%d", p ? "," : "", p);
    for (int p = 0; p < PIXELS; p++)
        fprintf(file, "%s%s", p ? "," : "\n", value);
    fputc('\n', file);
    fclose(file);
}

TEST(what_is_no_image_is_refused) {
    cluster_run_job(run, NULL);
    CLUSTER_FIXTURE_RUN(run, 1, 1, 0, NULL);
    write_csv_images(run, "share.csv", "0.5");
    write_csv_images(run, "empty.csv", "");
    struct cluster_process *process =
        TOOL(run, 1, "predict", "checkpoint", "share.csv", "a.csv");
    cluster_fixture_expect_logged(process, "share.csv:2: value 0: found 0.5, "
                                           "expected an integer from 0 to 255");
    process = TOOL(run, 1, "predict", "checkpoint", "empty.csv", "a.csv");
    cluster_fixture_expect_logged(process, "found 0 values, expected 64");
}

static void write_numbers(const struct cluster_run *run, const char *name,
                          bool swapped) {
    FILE *file = cluster_run_create(run, name);
    fputs(swapped ? "b,a,label\n" : "a,b,label\n", file);
    for (int i = 0; i < 20; i++)
        fprintf(file, "%d,%d,%d\n", i, i % 3, i % 2);
    fclose(file);
}

#define NUMBERS                                                                \
    "\"data\": {\"format\": \"csv\", \"header\": true, \"train\": \"ab.csv\"," \
    " \"test\": \"ab.csv\"}, \"epochs\": 1, "

/* The names in the model count, not the order of the job's object. */
TEST(features_in_another_order_are_refused) {
    write_numbers(run, "ab.csv", false);
    cluster_run_job(run, "{" NUMBERS "\"features\": {\"a\": {\"type\":"
                         " \"numeric\"}, \"b\": {\"type\": \"numeric\"}},"
                         " \"model\": {\"layers\": [2, 2], \"features\":"
                         " [\"a\", \"b\"]}}");
    CLUSTER_FIXTURE_RUN(run, 1, 1, 0, NULL);
    struct cluster_process *resumed = CLUSTER_FIXTURE_RUN(
        run, 1, 1, 2, "epochs=2", "model.features=[\"b\",\"a\"]");
    cluster_fixture_expect_logged(resumed, "the order of features or of");
    CLUSTER_FIXTURE_RUN(run, 1, 1, 0, "epochs=2",
                        "features={\"b\":{\"type\":\"numeric\"},"
                        "\"a\":{\"type\":\"numeric\"}}");
}

/* Columns that no features name count by place. */
TEST(columns_in_another_order_are_refused) {
    cluster_run_job(run, "{" NUMBERS "\"model\": {\"layers\": [2, 2]}}");
    write_numbers(run, "ab.csv", false);
    write_numbers(run, "ba.csv", true);
    CLUSTER_FIXTURE_RUN(run, 1, 1, 0, NULL);
    cluster_fixture_expect_logged(
        TOOL(run, 2, "eval", "--set", "data.test=ba.csv", "checkpoint"),
        "data.test: found \"b\" as column 1");
    cluster_fixture_expect_logged(
        TOOL(run, 2, "predict", "checkpoint", "ba.csv", "a.csv"),
        "INPUT: found \"b\" as column 1");
    TOOL(run, 0, "predict", "checkpoint", "ab.csv", "a.csv");
    struct cluster_process *resumed = CLUSTER_FIXTURE_RUN(
        run, 1, 1, 2, "data.train=ba.csv", "data.test=ba.csv", "epochs=2");
    cluster_fixture_expect_logged(resumed, "the order of features or of");
    CLUSTER_FIXTURE_RUN(run, 1, 1, 0, "epochs=2");
}

TEST(a_regression_predicts_its_numbers) {
    cluster_clicks_write(run);
    cluster_run_job(run, "{" CLUSTER_CLICKS_DATA
                         "\"model\": {\"type\": \"linear\", \"features\":"
                         " [\"cross\", \"weight\"], \"loss\": \"mse\"},"
                         " \"epochs\": 1}");
    struct cluster_process *trained = CLUSTER_FIXTURE_RUN(run, 1, 1, 0, NULL);
    TOOL(run, 0, "predict", "checkpoint", "test.csv", "a.csv");
    char *labels = read_all(run, "test.csv"), *text = read_all(run, "a.csv");
    char *label = strchr(labels, '\n') + 1, *at = strchr(text, '\n') + 1;
    double sum = 0, wanted = number_of(trained, "test_loss");
    assert_memory_equal(text, "prediction\n", strlen("prediction\n"));
    for (int i = 0; i < CLUSTER_CLICKS_TEST; i++, at++) {
        double error = strtod(at, &at) - (*label == '1');
        sum += error * error;
        label = strchr(label, '\n') + 1;
    }
    if (!(fabs(sum / CLUSTER_CLICKS_TEST - wanted) <= 1e-5 * wanted))
        fail_msg("mse: %.9g, the run %.9g", sum / CLUSTER_CLICKS_TEST, wanted);
    free(labels);
    free(text);
}

TEST(what_does_not_fit_is_named) {
    static const struct {
        const char *const arguments[8];
        int code;
        const char *said;
    } cases[] = {
        {{"eval", "absent", NULL}, 2, "cannot open absent"},
        {{"eval", "test.csv", NULL}, 2, "test.csv"},
        {{"eval", ".", NULL}, 1, ". has no checkpoint"},
        {{"eval", "--set", "checkpoint.dir=null", "job.json", NULL},
         2,
         "checkpoint.dir: not given"},
        {{"eval", "--set", "data.test=null", "checkpoint", NULL},
         2,
         "data.test"},
        {{"eval", "--set", "model.hidden=[8]", "job.json", NULL},
         2,
         "model.hidden differs from that of the job"},
        {{"eval", "--set", "model.activation=tanh", "checkpoint", NULL},
         2,
         "model.activation differs"},
        {{"eval", "--step", "60", "checkpoint/step-000000126", NULL},
         2,
         "another step than --step 60"},
        {{"predict", "checkpoint", "test.csv", "test.csv", NULL},
         2,
         "test.csv is INPUT, too"},
        {{"eval", "--set", "data.test=bad.csv", "--set", "data.bad_lines=skip",
          "checkpoint"},
         2,
         "no sample was evaluated"},
        {{"eval", "--step", "7", "checkpoint", NULL}, 1, "of step 7"},
        {{"eval", "--set", "data.format=libsvm", "--set", "data.test=absent",
          "checkpoint"},
         2,
         "job + --set: 3 errors"},
        {{"predict", "checkpoint", "few.npz", "a.csv", NULL},
         2,
         "few.npz: found no array user; it has arr_0"},
        {{"predict", "checkpoint", "test.csv", NULL}, 2, "capstan predict"},
        {{"predict", "checkpoint", "test.csv", "a.json", NULL},
         2,
         "ends in .npz or .csv"},
        {{"predict", "checkpoint", "absent.csv", "a.csv", NULL},
         2,
         "absent.csv: no such file"},
        {{"predict", "checkpoint", "test.csv", "absent/a.csv", NULL},
         1,
         "absent/a.csv"},
        {{"predict", "checkpoint", "bad.csv", "a.csv", NULL},
         1,
         "bad.csv:2: found 2 fields"},
    };
    static const unsigned char bytes[IMAGES * PIXELS];
    train_clicks(run);
    write_npz(run, "few.npz", "|u1", bytes, sizeof bytes);
    const char *path = cluster_run_path(run, "bad.csv");
    FILE *bad = fopen(path, "w");
    fputs("label,user,item,weight\n1,u1\n1,u1\n", bad);
    fclose(bad);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cluster_process *process =
            cluster_fixture_tool(run, cases[i].code, cases[i].arguments);
        cluster_fixture_expect_logged(process, cases[i].said);
        assert_string_equal(cluster_run_output(process), "");
    }
    path = cluster_run_path(run, "a.csv");
    assert_null(fopen(path, "r")); /* nothing was left */
}
