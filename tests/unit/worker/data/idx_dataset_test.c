/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "worker/data/idx_dataset.h"

#include "core/base/free_memory.h"
#include "tests/lib/file_bytes.h"
#include "tests/lib/test.h"

#include <unistd.h>

#define DATA "/usr/share/datasets/fashion-mnist/"

/* Three images of 2 x 2, and their labels. */
static const uint8_t images[28] = {0, 0, 8, 3, 0,   0,  0,  3,  0, 0,
                                   0, 2, 0, 0, 0,   2,  0,  1,  2, 255,
                                   4, 5, 6, 7, 128, 51, 10, 254};
static const uint8_t labels[11] = {0, 0, 8, 1, 0, 0, 0, 3, 2, 9, 0};

struct fixture {
    char folder[32], images[64], labels[64];
    struct dataset *dataset;
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    strcpy(fixture->folder, "/tmp/idx_dataset_test.XXXXXX");
    assert_non_null(mkdtemp(fixture->folder));
    snprintf(fixture->images, sizeof fixture->images, "%s/images",
             fixture->folder);
    snprintf(fixture->labels, sizeof fixture->labels, "%s/labels",
             fixture->folder);
    *state = fixture;
    return 0;
}

TEARDOWN(teardown) {
    dataset_free(&fixture->dataset);
    unlink(fixture->images);
    unlink(fixture->labels);
    rmdir(fixture->folder);
    free(fixture);
}

FIXTURE(setup, teardown);

static enum status load(struct fixture *fixture) {
    return idx_dataset_load(&fixture->dataset, fixture->images, fixture->labels,
                            NULL, &failure);
}

static const struct idx_dataset *stored(const struct fixture *fixture) {
    return (const struct idx_dataset *)fixture->dataset;
}

TEST(images_and_labels_are_counted) {
    file_bytes_write(fixture->images, images, sizeof images);
    file_bytes_write(fixture->labels, labels, sizeof labels);
    assert_ok(load(fixture));
    assert_int_equal(fixture->dataset->count, 3);
    assert_int_equal(fixture->dataset->features, 4);
    assert_int_equal(fixture->dataset->num_classes, 10);
    assert_memory_equal(stored(fixture)->images, images + 16, 12);
    for (int i = 0; i < 3; i++)
        assert_true(fixture->dataset->labels[i] == (float)labels[8 + i]);
}

TEST(pixels_are_bytes_over_255_in_float) {
    file_bytes_write(fixture->images, images, sizeof images);
    file_bytes_write(fixture->labels, labels, sizeof labels);
    assert_ok(load(fixture));
    for (uint32_t i = 0; i < 3; i++) {
        float pixels[4];
        assert_true(idx_dataset_sample(stored(fixture), i, pixels) ==
                    (float)labels[8 + i]);
        for (uint32_t j = 0; j < 4; j++) {
            volatile float byte = images[16 + 4 * i + j];
            float expected = byte / 255.0f;
            assert_memory_equal(&pixels[j], &expected, sizeof expected);
        }
    }
}

/* Three images of 2 shorts, and labels of 4 bytes each. */
static const uint8_t shorts[24] = {0, 0, 11, 2,   0, 0,   0,   3,
                                   0, 0, 0,  2,   0, 255, 255, 255,
                                   1, 0, 0,  254, 0, 0,   128, 0};

/* Loads those with labels of TYPE, whose bytes are BITS. */
static enum status load_labels(struct fixture *fixture, enum idx_file_type type,
                               const uint32_t bits[3]) {
    uint8_t bytes[20] = {0, 0, (uint8_t)type, 1, 0, 0, 0, 3};
    for (int i = 0; i < 12; i++)
        bytes[8 + i] = (uint8_t)(bits[i / 4] >> (24 - 8 * (i % 4)));
    dataset_free(&fixture->dataset);
    file_bytes_write(fixture->images, shorts, sizeof shorts);
    file_bytes_write(fixture->labels, bytes, sizeof bytes);
    return load(fixture);
}

TEST(other_pixels_than_bytes_are_not_scaled) {
    static const uint32_t none[3];
    static const float expected[3][2] = {{255, -1}, {256, 254}, {0, -32768}};
    assert_int_equal(load_labels(fixture, IDX_FILE_INT, none), STATUS_OK);
    assert_int_equal(fixture->dataset->features, 2);
    for (uint32_t i = 0; i < 3; i++) {
        float pixels[2];
        assert_true(idx_dataset_sample(stored(fixture), i, pixels) == 0);
        assert_memory_equal(pixels, expected[i], sizeof pixels);
    }
}

static const struct batch_column classes = {
    .type = BATCH_CLASSES, .width = 1, .num_classes = 10};
static const struct batch_column number = {.type = BATCH_FLOATS, .width = 1};
static const struct batch_column two_values = {
    .type = BATCH_FLOATS, .width = 1, .max = 1};

/* Bits of float32: 2, 0.5, 1e30. */
enum { TWO = 0x40000000, HALF = 0x3f000000, HUGE_ONE = 0x7149f2ca };

TEST(a_label_that_the_model_has_not_is_named) {
    static const struct {
        enum idx_file_type type;
        uint32_t bits[3], num_classes;
        const struct batch_column *column;
        const char *text; /* NULL: they are allowed */
    } cases[] = {
        {IDX_FILE_INT, {9, 0, 3}, 10, &classes, NULL},
        {IDX_FILE_FLOAT, {0, TWO, 0}, 3, &classes, NULL},
        {IDX_FILE_INT,
         {5, UINT32_MAX, 0},
         6,
         &classes,
         "sample 1: label: found -1, expected a class, an integer from 0 to 9"},
        {IDX_FILE_INT, {5, 0, 10}, 11, &classes, "sample 2: label: found 10,"},
        /* rounded to 2^31 */
        {IDX_FILE_INT, {INT32_MAX}, 0x80000001u, &classes, "found 2.14748e+09"},
        {IDX_FILE_FLOAT, {HUGE_ONE}, 1, &classes, "sample 0: label: found 1e"},
        {IDX_FILE_FLOAT, {0, HALF}, 1, &classes, "sample 1: label: found 0.5"},
        {IDX_FILE_FLOAT, {HALF, HUGE_ONE, TWO}, 3, &number, NULL},
        {IDX_FILE_INT, {UINT32_MAX}, 1, &number, NULL},
        {IDX_FILE_INT, {1, 0, 1}, 2, &two_values, NULL},
        {IDX_FILE_INT,
         {1, 0, 2},
         3,
         &two_values,
         "sample 2: label: found 2, expected 0 or 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(load_labels(fixture, cases[i].type, cases[i].bits),
                         STATUS_OK);
        assert_int_equal(fixture->dataset->num_classes, cases[i].num_classes);
        enum status status = dataset_check_labels(
            fixture->dataset, cases[i].column, fixture->labels, &failure);
        if (!cases[i].text) {
            assert_int_equal(status, STATUS_OK);
            continue;
        }
        assert_error(status, FAILURE_DATA_DAMAGED);
        assert_contains(failure.text, fixture->labels);
        assert_contains(failure.text, cases[i].text);
    }
}

/* The first batch of all samples with LABEL as the model's column. */
static void fill_batch(struct fixture *fixture, struct batch_column label,
                       struct batch *batch) {
    const struct batch_source_table *table = fixture->dataset->table->batches;
    struct batch_spec spec = {
        .num_columns = 2,
        .columns = {{.type = BATCH_FLOATS, .width = 2}, label}};
    struct batch_source *source;
    struct batch_claim claim = {0};
    struct failure *why = &failure;
    assert_int_equal(fixture->dataset->table->range(&source, fixture->dataset,
                                                    &spec, 0, 3, 3, why),
                     STATUS_OK);
    assert_int_equal(table->claim(source, &claim, why), STATUS_OK);
    assert_int_equal(table->fill(source, &claim, batch, why), STATUS_OK);
    batch_claim_free(table, &claim);
    table->close(&source);
}

TEST(a_batch_has_classes_or_numbers_as_the_model) {
    static const uint32_t integers[3] = {7, 0, 2}, halves[3] = {HALF, TWO, 0};
    static const float numbers[3] = {7, 0, 2}, reals[3] = {0.5f, 2, 0};
    static const float pixels[6] = {255, -1, 256, 254, 0, -32768};
    float inputs[6], found[3];
    struct batch batch = {.columns = {inputs, found}};
    assert_int_equal(load_labels(fixture, IDX_FILE_INT, integers), STATUS_OK);
    fill_batch(fixture, classes, &batch);
    assert_int_equal(batch.count, 3);
    assert_memory_equal(inputs, pixels, sizeof pixels);
    assert_memory_equal(found, integers, sizeof integers);
    fill_batch(fixture, number, &batch);
    assert_memory_equal(found, numbers, sizeof numbers);
    assert_int_equal(load_labels(fixture, IDX_FILE_FLOAT, halves), STATUS_OK);
    fill_batch(fixture, number, &batch);
    assert_memory_equal(found, reals, sizeof reals);
}

TEST(without_a_file_labels_are_0) {
    file_bytes_write(fixture->images, shorts, sizeof shorts);
    assert_ok(idx_dataset_load(&fixture->dataset, fixture->images, NULL, NULL,
                               &failure));
    assert_int_equal(fixture->dataset->count, 3);
    for (int i = 0; i < 3; i++)
        assert_true(fixture->dataset->labels[i] == 0);
}

TEST(another_number_of_labels_is_refused) {
    uint8_t fewer[10];
    memcpy(fewer, labels, sizeof fewer);
    fewer[7] = 2;
    file_bytes_write(fixture->images, images, sizeof images);
    file_bytes_write(fixture->labels, fewer, sizeof fewer);
    assert_error(load(fixture), FAILURE_DATA_MISMATCH);
    assert_null(fixture->dataset);
    assert_contains(failure.text, "found 2 labels, expected 3");
    assert_contains(failure.text, fixture->images);
    assert_contains(failure.text, fixture->labels);
}

TEST(swapped_files_are_refused_with_the_guess) {
    file_bytes_write(fixture->images, labels, sizeof labels);
    file_bytes_write(fixture->labels, images, sizeof images);
    assert_error(load(fixture), FAILURE_DATA_DAMAGED);
    assert_contains(failure.text, "swapped?");
}

TEST(a_corrupt_file_of_labels_is_refused) {
    file_bytes_write(fixture->images, images, sizeof images);
    file_bytes_write(fixture->labels, labels, sizeof labels - 1);
    assert_error(load(fixture), FAILURE_DATA_DAMAGED);
    assert_contains(failure.text, fixture->labels);
    assert_contains(failure.text, "ends after byte 10");
}

/* Bytes that this process has read. */
static unsigned long long bytes_read(void) {
    unsigned long long bytes = 0;
    FILE *file = fopen("/proc/self/io", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "rchar: %llu", &bytes), 1);
    fclose(file);
    return bytes;
}

/* As where a run goes back. */
TEST(files_that_have_not_changed_are_read_once) {
    static const char of_images[] = DATA "t10k-images-idx3-ubyte.gz",
                      of_labels[] = DATA "t10k-labels-idx1-ubyte.gz";
    unsigned long long first = bytes_read(), second;
    assert_ok(idx_dataset_load(&fixture->dataset, of_images, of_labels, NULL,
                               &failure));
    float label = fixture->dataset->labels[9999];
    dataset_free(&fixture->dataset);
    assert_int_equal(free_memory_held(), 10000 * (784 + sizeof(float)));
    second = bytes_read();
    assert_true(second - first > 1 << 20);
    assert_ok(idx_dataset_load(&fixture->dataset, of_images, of_labels, NULL,
                               &failure));
    assert_true(bytes_read() - second < 1 << 20);
    assert_int_equal(fixture->dataset->count, 10000);
    assert_true(fixture->dataset->labels[9999] == label);
    dataset_free(&fixture->dataset);
    assert_ok(
        idx_dataset_load(&fixture->dataset, of_images, NULL, NULL, &failure));
    assert_true(fixture->dataset->labels[9999] == 0);
    assert_int_equal(free_memory_held(), 0);
}

TEST(a_file_that_is_written_anew_is_read_again) {
    uint8_t others[sizeof labels];
    memcpy(others, labels, sizeof others);
    file_bytes_write(fixture->images, images, sizeof images);
    for (int i = 0; i < 20; i++) {
        file_bytes_write(fixture->labels, others, sizeof others);
        assert_ok(load(fixture));
        assert_true(fixture->dataset->labels[1] == (float)others[9]);
        dataset_free(&fixture->dataset);
        others[9] ^= 1;
    }
}

TEST(a_check_reports_a_missing_file) {
    file_bytes_write(fixture->images, images, sizeof images);
    assert_error(
        idx_dataset_check_files(fixture->images, fixture->labels, &failure),
        FAILURE_DATA_UNREADABLE);
    assert_contains(failure.text, fixture->labels);
    file_bytes_write(fixture->labels, labels, 1); /* it reads nothing */
    assert_ok(
        idx_dataset_check_files(fixture->images, fixture->labels, &failure));
}
