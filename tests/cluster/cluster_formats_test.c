/* SPDX-License-Identifier: Apache-2.0 */
/* Runs over every format, plain and packed, from a file, a list and a pattern:
 * the same records give the same bits. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_fixture.h"

#include "tests/bench/click_log.h"
#include "tests/cluster/cluster_clicks.h"
#include "tests/cluster/cluster_points.h"
#include "tests/lib/file_bytes.h"
#include "tests/lib/test.h"

enum { CLICKS = 90, FILES = 128 /* bytes */, EXIT_CONFIG = 2 };

/* Rows of a click log as text. */
static const struct {
    const char *name;
    size_t (*text)(const struct click_log *log, const struct click_row *row,
                   char text[CLICK_LOG_ROW_BYTES]);
} click_files[] = {{"clicks.tsv", click_log_criteo},
                   {"clicks.libsvm", click_log_libsvm}};

static void write_clicks(const struct cluster_run *run) {
    struct click_log_options options = click_log_defaults();
    struct click_log *log;
    char text[CLICK_LOG_ROW_BYTES];
    struct click_row row;
    for (int f = 0; f < CLICK_LOG_FIELDS; f++)
        options.cardinality[f] = 10;
    assert_ok(click_log_open(&log, &options, &failure));
    for (int f = 0; f < 2; f++) {
        FILE *file = cluster_run_create(run, click_files[f].name);
        for (unsigned i = 0; i < CLICKS; i++) {
            click_log_row(log, i, &row);
            fwrite(text, 1, click_files[f].text(log, &row, text), file);
        }
        assert_int_equal(fclose(file), 0);
    }
    click_log_close(&log);
}

static int setup(void **state) {
    int failed = cluster_run_setup(state);
    if (!failed) {
        cluster_points_write(*state);
        write_clicks(*state);
    }
    return failed;
}

FIXTURE(setup, cluster_run_teardown);

#define ALL                                                                    \
    "\"epochs\": 2, \"train_micro_batch_size_per_gpu\": 10, \"optimizer\":"    \
    " {\"type\": \"Adagrad\", \"params\": {\"lr\": 0.1}}"
#define MLP "\"model\": {\"layers\": [4, 8, 1], \"loss\": \"mse\"}, " ALL
#define POINTS                                                                 \
    MLP ", \"features\": {\"x\": {\"type\": \"numeric\", \"shape\": 4}},"      \
        " \"data\": {\"label\": \"y\", \"shuffle_buffer\": 16, \"format\": "
#define CSV                                                                    \
    "{" MLP ", \"data\": {\"label\": \"y\", \"shuffle_buffer\": 16,"           \
    " \"format\": \"csv\", \"header\": true}}"
#define CRITEO                                                                 \
    "{" ALL ", \"model\": {\"type\": \"linear\", \"features\": [\"I1\","       \
    " \"C1\"]}, \"features\": {\"I1\": {\"type\": \"numeric\"}, \"C1\":"       \
    " {\"type\": \"hash_bucket\"}}, \"data\": {\"format\": \"criteo\","        \
    " \"shuffle_buffer\": 16}}"

/* Records of the SAME points have the bits of xy.csv. */
static const struct form {
    const char *name, *files[2], *job, *table;
    bool same;
} forms[] = {
    {"csv", {"xy.csv"}, CSV, NULL, true},
    {"idx", {"x.idx", "y.idx"}, "{" MLP "}", NULL, false},
    {"npy", {"xy.npy"}, "{" POINTS "\"npy\"}}", NULL, true},
    {"npz", {"xy.npz"}, "{" POINTS "\"npz\"}}", NULL, true},
    {"tfrecord", {"xy.tfrecord"}, "{" POINTS "\"tfrecord\"}}", NULL, true},
    {"safetensors",
     {"xy.safetensors"},
     "{" POINTS "\"safetensors\"}}",
     NULL,
     true},
    {"criteo", {"clicks.tsv"}, CRITEO, "C1", false},
    {"libsvm",
     {"clicks.libsvm"},
     "{" ALL ", \"model\": {\"type\": \"linear\", \"features\": [\"x\"]},"
     " \"data\": {\"format\": \"libsvm\", \"shuffle_buffer\": 16}}",
     "x",
     false},
};
enum { FORMS = sizeof forms / sizeof *forms };

enum { SUFFIXES = 3 };
static const char *const suffixes[SUFFIXES] = {"", ".gz", ".zst"};

static void pack_as(const struct cluster_run *run, const char *from,
                    const char *to, file_bytes_writer *writer) {
    file_bytes_copy(cluster_run_path(run, from), cluster_run_path(run, to),
                    writer);
}

/* Writes NAME.gz and NAME.zst. */
static void pack(const struct cluster_run *run, const char *name) {
    char packed[64];
    for (int s = 1; s < SUFFIXES; s++) {
        snprintf(packed, sizeof packed, "%s%s", name, suffixes[s]);
        pack_as(run, name, packed, s == 1 ? file_bytes_gzip : file_bytes_zstd);
    }
}

/* FORM's files, each with SUFFIX behind its name, as data.train or data.test
 * has them. */
static void list_files(const struct form *form, const char *suffix,
                       char files[FILES]) {
    size_t used =
        (size_t)snprintf(files, FILES, "[\"%s%s\"", form->files[0], suffix);
    if (form->files[1])
        used += (size_t)snprintf(files + used, FILES - used, ", \"%s%s\"",
                                 form->files[1], suffix);
    snprintf(files + used, FILES - used, "]");
}

/* Trains job.json from FILES, and evaluates with them, into FOLDER/DIR; ends
 * with CODE. */
static struct cluster_process *train(struct cluster_run *run, const char *files,
                                     const char *dir, int code) {
    const char *trained = textf("data.train=%s", files);
    const char *tested = textf("data.test=%s", files);
    return CLUSTER_FIXTURE_RUN(run, 1, 2, code, trained, tested,
                               textf("checkpoint.dir=%s", dir));
}

static double test_loss(struct cluster_process *process) {
    const json_t *summary = cluster_run_json(process);
    const json_t *value = json_object_get(summary, "test_loss");
    assert_true(json_is_number(value));
    double loss = json_number_value(value);
    return loss;
}

/* The first sample that `data peek` shows of FILES, but for its place. */
static json_t *peek(struct cluster_run *run, const char *files) {
    const json_t *all = cluster_run_json(cluster_fixture_tool(
        run, 0,
        WORDS("data", "peek", "--rows=1", "--json", "--set",
              textf("data.train=%s", files), "job.json")));
    json_t *sample = json_array_get(json_object_get(all, "samples"), 0);
    assert_non_null(json_object_get(sample, "features"));
    assert_null(json_object_get(sample, "error"));
    json_object_del(sample, "at");
    return sample;
}

static void expect_same(struct cluster_run *run, const char *a, const char *b,
                        const char *table) {
    cluster_fixture_expect_same_checkpoints(run, a, b);
    if (table)
        cluster_clicks_expect_same_rows(run, a, b, table);
}

/* Each suffix; the checkpoints are in FOLDER/NAME and FOLDER/NAME.gz ... */
static void expect_alike(struct cluster_run *run, const struct form *form,
                         int num_suffixes) {
    const json_t *first = NULL;
    double loss = 0;
    cluster_run_job(run, form->job);
    for (int s = 0; s < num_suffixes; s++) {
        char files[FILES];
        list_files(form, suffixes[s], files);
        const char *dir = textf("%s%s", form->name, suffixes[s]);
        double found = test_loss(train(run, files, dir, 0));
        const json_t *sample = peek(run, files);
        if (!s) {
            loss = found;
            first = sample;
        } else {
            expect_same(run, form->name, dir, form->table);
        }
        assert_true(found == loss);
        assert_true(json_equal(sample, first));
    }
}

TEST(packed_files_train_to_the_bits_of_plain_ones) {
    for (int f = 0; f < FORMS; f++) {
        bool packs = strcmp(forms[f].name, "safetensors") != 0;
        printf("%s\n", forms[f].name);
        for (int i = 0; packs && i < 2 && forms[f].files[i]; i++)
            pack(run, forms[f].files[i]);
        expect_alike(run, &forms[f], packs ? SUFFIXES : 1);
        if (forms[f].same)
            expect_same(run, "csv", forms[f].name, NULL);
    }
}

/* xy.csv as spreadsheets of many countries write it: the same bits. */
static void write_dialect(const struct cluster_run *run) {
    FILE *from = fopen(cluster_run_path(run, "xy.csv"), "r"),
         *to = cluster_run_create(run, "dialect.csv");
    assert_non_null(from);
    for (int c; (c = fgetc(from)) != EOF;)
        fputs(c == ',' ? " ; " : c == '.' ? "," : (char[]){(char)c, 0}, to);
    assert_int_equal(fclose(to), 0);
    fclose(from);
}

TEST(dialects_of_csv_train_to_the_same_bits) {
    write_dialect(run);
    cluster_run_job(run, CSV);
    train(run, "xy.csv", "plain", 0);
    CLUSTER_FIXTURE_RUN(run, 1, 2, 0, "data.train=dialect.csv",
                        "data.test=dialect.csv", "data.delimiter=;",
                        "data.decimal=,", "checkpoint.dir=dialect");
    cluster_fixture_expect_same_checkpoints(run, "plain", "dialect");
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(run, 1, 2, 1, "data.train=dialect.csv",
                            "data.test=dialect.csv", "data.delimiter=;",
                            "checkpoint.dir=none"),
        "expected a number");
}

TEST(packed_tensors_are_refused) {
    pack(run, "xy.safetensors");
    cluster_run_job(run, "{" POINTS "\"safetensors\"}}");
    for (int s = 1; s < SUFFIXES; s++) {
        cluster_fixture_expect_logged(
            train(run, textf("xy.safetensors%s", suffixes[s]), "checkpoint",
                  EXIT_CONFIG),
            "is not a valid safetensors file: it is packed by gzip or "
            "Zstandard; unpack it first");
    }
}

/* Cuts the lines of NAME into COUNT files part-I of different lengths, each
 * with the first line before its own if that is a HEADER; and the same as
 * packed-I, by gzip and Zstandard in turns. */
static void cut(const struct cluster_run *run, const char *name, bool header,
                unsigned count) {
    char first[CLICK_LOG_ROW_BYTES] = "", line[CLICK_LOG_ROW_BYTES];
    const char *path = cluster_run_path(run, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    if (header)
        assert_non_null(fgets(first, sizeof first, file));
    for (unsigned p = 0; p < count; p++) {
        unsigned lines = p + 1 < count ? 11 + 6 * p : UINT_MAX;
        const char *part_name = textf("part-%u", p);
        const char *packed_name = textf("packed-%u", p);
        FILE *part = cluster_run_create(run, part_name);
        fputs(first, part);
        while (lines-- && fgets(line, sizeof line, file))
            fputs(line, part);
        assert_int_equal(fclose(part), 0);
        pack_as(run, part_name, packed_name,
                p % 2 ? file_bytes_zstd : file_bytes_gzip);
    }
    fclose(file);
}

/* Two files are one after the other, their records shared out as those of one;
 * of five each trainer reads its own, so FORM's file is not compared. */
static void expect_parts_alike(struct cluster_run *run, const struct form *form,
                               unsigned count) {
    const char *const sets[] = {count == 2 ? form->files[0] : "part-?",
                                "part-*", "packed-*",
                                count == 2 ? "[\"packed-0\", \"part-1\"]"
                                           : "[\"packed-[0-3]\", \"part-4\"]"};
    cut(run, form->files[0], !strcmp(form->name, "csv"), count);
    for (int i = 0; i < 4; i++) {
        char dir[2][64];
        for (int d = 0; d < 2; d++)
            snprintf(dir[d], sizeof dir[d], "%s-%u-%d", form->name, count,
                     d ? i : 0);
        train(run, sets[i], dir[1], 0);
        if (i)
            expect_same(run, dir[0], dir[1], form->table);
    }
}

static void expect_lists_alike(struct cluster_run *run, const char *name) {
    const struct form *form = forms;
    while (strcmp(form->name, name))
        form++;
    cluster_run_job(run, form->job);
    expect_parts_alike(run, form, 2);
    expect_parts_alike(run, form, 5);
}

TEST(lists_of_csv_train_as_one_file_does) {
    expect_lists_alike(run, "csv");
}

TEST(lists_of_clicks_train_as_one_file_does) {
    expect_lists_alike(run, "criteo");
}
