/* SPDX-License-Identifier: Apache-2.0 */
/* Files with ids through dataset_open and a loader: what batches have of them.
 */
#define STATE struct fixture *fixture

#include "tests/lib/test.h"
#include "worker/data/features.h"
#include "worker/data/loader.h"

#include <unistd.h>

enum { BATCH = 4 };

struct fixture {
    char path[32];
    struct job job;
    struct job_files files;
    struct batch_spec spec;
    struct dataset *dataset;
    struct loader *loader;
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    strcpy(fixture->path, "/tmp/record_ids.XXXXXX");
    close(mkstemp(fixture->path));
    fixture->files.paths[0] = fixture->path;
    fixture->job = (struct job){.data = {.format = JOB_LIBSVM,
                                         .shuffle_buffer = 16,
                                         .header = true,
                                         .delimiter = ",",
                                         .label = "label"}};
    /* Rows in front of the label, as a linear model over ids has them. */
    fixture->spec =
        (struct batch_spec){.num_columns = 2,
                            .columns = {{BATCH_ROWS, .width = 1},
                                        {BATCH_FLOATS, .width = 1, .max = 1}},
                            .num_ids = 1};
    *state = fixture;
    return 0;
}

TEARDOWN(teardown) {
    loader_close(&fixture->loader);
    dataset_free(&fixture->dataset);
    unlink(fixture->path);
    free(fixture);
}

FIXTURE(setup, teardown);

static void write_data(struct fixture *fixture, const char *text) {
    FILE *file = fopen(fixture->path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void open_data(struct fixture *fixture, const char *text) {
    struct dataset_options options = {.job = &fixture->job,
                                      .files = &fixture->files,
                                      .key = "data.train",
                                      .num_ranks = 1,
                                      .count = true};
    write_data(fixture, text);
    assert_ok(dataset_open(&fixture->dataset, &options, &failure));
}

static void open_loader(struct fixture *fixture) {
    struct sampler_options options = {.micro_batch = BATCH};
    assert_ok(loader_open(&fixture->loader, fixture->dataset, &fixture->spec,
                          &options, 0, (struct loader_prefetch){1, 2},
                          &failure));
}

static const struct batch *next_batch(struct fixture *fixture) {
    const struct batch *batch;
    assert_ok(loader_next(fixture->loader, &batch, &failure));
    return batch;
}

#define ARRAY(type, ...) ((const type[]){__VA_ARGS__})

/* OFFSETS [count + 1], and as many ids. */
static void assert_ids(const struct batch *batch, const struct batch_ids *ids,
                       const uint32_t *offsets, const uint64_t *expected) {
    assert_memory_equal(ids->offsets, offsets,
                        (batch->count + 1) * sizeof *offsets);
    for (uint32_t i = 0; i < offsets[batch->count]; i++)
        assert_true(ids->ids[i] == expected[i]);
}

/* The lines of one epoch are two batches, of 4 and of 2 samples. */
TEST(a_file_of_libsvm_is_one_feature_with_weights) {
    static const uint64_t ids[] = {7, UINT64_MAX, 3, 7, 1};
    static const float weights[] = {0.5f, -1, 2, 1, 1e3f};
    open_data(fixture, "# made by hand\n"
                       "-1 7:0.5 18446744073709551615:-1\n"
                       "+1\n\n  \n"
                       "1 3:2 7:1 # the last pairs\n"
                       "0 1:1e3\r\n"
                       "-1 9:9\n"
                       "1 8:8");
    assert_int_equal(fixture->dataset->count, 6);
    assert_int_equal(fixture->dataset->features, 0);
    open_loader(fixture);
    for (int epoch = 0; epoch < 3; epoch++) {
        const struct batch *batch = next_batch(fixture);
        assert_int_equal(batch->count, 4);
        assert_ids(batch, batch->ids, ARRAY(uint32_t, 0, 2, 2, 4, 5), ids);
        assert_memory_equal(batch->ids->weights, weights, sizeof weights);
        assert_memory_equal(batch->columns[1], ARRAY(float, 0, 1, 1, 0),
                            4 * sizeof(float));
        batch = next_batch(fixture);
        assert_int_equal(batch->count, 2);
        assert_ids(batch, batch->ids, ARRAY(uint32_t, 0, 1, 2),
                   ARRAY(uint64_t, 9, 8));
        assert_memory_equal(batch->columns[1], ARRAY(float, 0, 1),
                            2 * sizeof(float));
    }
}

/* -1 is the first of two classes, but an ordinary number to regress on. */
TEST(only_two_classes_may_be_minus_and_plus_one) {
    struct batch_column *label = &fixture->spec.columns[1];
    const struct batch *batch;
    open_data(fixture, "-1 1:1\n1 2:1\n");
    *label = (struct batch_column){BATCH_FLOATS, .width = 1};
    open_loader(fixture);
    batch = next_batch(fixture);
    assert_memory_equal(batch->columns[1], ARRAY(float, -1, 1),
                        2 * sizeof(float));
    loader_close(&fixture->loader);
    *label = (struct batch_column){BATCH_CLASSES, .width = 1, .num_classes = 2};
    open_loader(fixture);
    batch = next_batch(fixture);
    assert_memory_equal(batch->columns[1], ARRAY(uint32_t, 0, 1),
                        2 * sizeof(uint32_t));
    loader_close(&fixture->loader);
    label->num_classes = 3;
    open_loader(fixture);
    assert_error(loader_next(fixture->loader, &batch, &failure),
                 FAILURE_BAD_RECORD);
}

TEST(a_bad_line_leaves_no_ids_behind) {
    fixture->job.data.skip_bad_lines = true;
    open_data(fixture, "1 5:1 6:1\n"
                       "1 7:1 8:x\n"  /* no number */
                       "3 9:1 10:1\n" /* a label beyond the model's */
                       "0 11:1\n"
                       "1 12:1 13\n");
    open_loader(fixture);
    const struct batch *batch = next_batch(fixture);
    assert_int_equal(batch->count, 2);
    assert_ids(batch, batch->ids, ARRAY(uint32_t, 0, 2, 3),
               ARRAY(uint64_t, 5, 6, 11));
    batch = next_batch(fixture);
    assert_int_equal(batch->count, 0);
    assert_int_equal(batch->ids->offsets[0], 0);
}

TEST(a_bad_line_is_named_by_its_place) {
    const struct batch *batch;
    open_data(fixture, "# a comment counts as a line\n1 7:1 8:x\n");
    open_loader(fixture);
    assert_error(loader_next(fixture->loader, &batch, &failure),
                 FAILURE_BAD_RECORD);
    assert_contains(failure.text,
                    ":2: column 7: found \"8:x\", expected ID:VALUE");
}

/* Wide and deep: columns of numbers, of which two have the same, ids of two
 * features, the label last. */
TEST(columns_and_ids_have_the_features_they_list) {
    fixture->job.data.format = JOB_CSV;
    fixture->job.features =
        "{\"C\": {\"type\": \"identity\"}, \"p\": {\"type\": \"numeric\"},"
        " \"q\": {\"type\": \"numeric\"}, \"k\": {\"type\": \"bucketized\","
        " \"of\": \"p\", \"boundaries\": [10]}}";
    fixture->spec = (struct batch_spec){
        .num_columns = 6,
        .columns =
            {{BATCH_FLOATS, .width = 1, .num_features = 1},
             {BATCH_ROWS, .width = 3},
             {BATCH_FLOATS, .width = 3, .first_feature = 1, .num_features = 2},
             {BATCH_FLOATS, .width = 3, .first_feature = 3, .num_features = 2},
             {BATCH_FLOATS, .width = 1, .first_feature = 2, .num_features = 1},
             {BATCH_CLASSES, .width = 1, .num_classes = 3}},
        .features = {2, 3, 1, 3, 1}, /* q; k, p; k, p; p */
        .num_ids = 2,
        .id_features = {3, 0}};
    open_data(fixture, "p,C,q,label\n"
                       "1,5,2,0\n"
                       "20,,4,2\n"
                       "5,9,6,1\n");
    assert_int_equal(fixture->dataset->features, 4);
    open_loader(fixture);
    const struct batch *batch = next_batch(fixture);
    assert_int_equal(batch->count, 3);
    assert_memory_equal(batch->columns[0], ARRAY(float, 2, 4, 6),
                        3 * sizeof(float));
    for (int c = 2; c < 4; c++)
        assert_memory_equal(batch->columns[c],
                            ARRAY(float, 1, 0, 1, 0, 1, 20, 1, 0, 5),
                            9 * sizeof(float));
    assert_memory_equal(batch->columns[4], ARRAY(float, 1, 20, 5),
                        3 * sizeof(float));
    assert_memory_equal(batch->columns[5], ARRAY(uint32_t, 0, 2, 1),
                        3 * sizeof(uint32_t));
    assert_ids(batch, &batch->ids[0], ARRAY(uint32_t, 0, 1, 2, 3),
               ARRAY(uint64_t, 0, 1, 0));
    assert_ids(batch, &batch->ids[1], ARRAY(uint32_t, 0, 1, 1, 2),
               ARRAY(uint64_t, 5, 9));
    assert_null(batch->ids[0].weights);
}

TEST(labels_are_the_last_column_without_rows) {
    fixture->spec.columns[0] =
        (struct batch_column){BATCH_FLOATS, .width = 1, .max = 1};
    fixture->spec.columns[1] = (struct batch_column){BATCH_ROWS, .width = 8};
    assert_int_equal(batch_label_column(&fixture->spec), 0);
    assert_int_equal(batch_bytes(&fixture->spec, 3), 3 * 9 * sizeof(float));
    open_data(fixture, "1 7:1\n0 8:1\n");
    open_loader(fixture);
    const struct batch *batch = next_batch(fixture);
    assert_memory_equal(batch->columns[0], ARRAY(float, 1, 0),
                        2 * sizeof(float));
}

/* Ids of a batch grow with it; later ones reuse the memory. */
TEST(ids_have_room_for_any_number) {
    enum { MANY = 5000 };
    char *text = malloc(2 * MANY * 16), *at = text;
    for (int line = 0; line < 2; line++) {
        at += sprintf(at, "1");
        for (int i = 0; i < (line ? MANY : 3); i++)
            at += sprintf(at, " %d:%d", i, line + i);
        at += sprintf(at, "\n");
    }
    open_data(fixture, text);
    free(text);
    open_loader(fixture);
    const struct batch_ids *ids = next_batch(fixture)->ids;
    assert_int_equal(ids->offsets[2], MANY + 3);
    assert_true(ids->room >= MANY + 3);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(ids->ids[3 + i], i);
        assert_true(ids->weights[3 + i] == (float)(1 + i));
    }
}

/* With the batch's columns the label is the model's: a class, or an error. */
TEST(peek_shows_ids_weights_and_labels) {
    fixture->job.features =
        "{\"x\": {\"type\": \"identity\"}, \"x2\": {\"type\": \"crossed\","
        " \"of\": [\"x\", \"x\"], \"size\": 1}, \"e\": {\"type\":"
        " \"embedding\", \"of\": \"x\", \"dim\": 4}}";
    open_data(fixture, "-1 18446744073709551615:0.5 2:3\n0.3 1:1\n");
    json_t *list = json_array();
    assert_ok(fixture->dataset->table->peek(fixture->dataset, &fixture->spec, 3,
                                            list, &failure));
    assert_non_null(json_object_get(json_array_get(list, 1), "error"));
    json_t *row = json_array_get(list, 0);
    json_object_del(row, "at");
    json_t *expected = json_loads(
        "{\"columns\": {\"x\": [\"18446744073709551615:0.5\", \"2:3\"]},"
        " \"features\": {\"x\": [\"18446744073709551615:0.5\", \"2:3\"],"
        " \"x2\": [\"0\", \"0\", \"0\", \"0\"],"
        " \"e\": {\"of\": \"x\", \"dim\": 4, \"ids\": 2}}, \"label\": 0.0}",
        0, NULL);
    assert_int_equal(json_array_size(list), 2);
    assert_true(json_equal(row, expected));
    json_decref(list);
    list = json_array();
    assert_ok(fixture->dataset->table->peek(fixture->dataset, NULL, 1, list,
                                            &failure));
    row = json_array_get(list, 0);
    assert_true(json_number_value(json_object_get(row, "label")) == -1);
    json_decref(list);
    json_decref(expected);
}
