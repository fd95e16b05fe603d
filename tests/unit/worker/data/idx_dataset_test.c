/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/idx_dataset.h"

#include "tests/lib/assert_fails.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Three images of 2 x 2, and their labels. */
static const uint8_t images[28] = {0, 0, 8, 3, 0,   0,  0,  3,  0, 0,
                                   0, 2, 0, 0, 0,   2,  0,  1,  2, 255,
                                   4, 5, 6, 7, 128, 51, 10, 254};
static const uint8_t labels[11] = {0, 0, 8, 1, 0, 0, 0, 3, 2, 9, 0};

struct fixture {
    char folder[32], images[64], labels[64];
    struct dataset *dataset;
    struct failure why;
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

static int teardown(void **state) {
    struct fixture *fixture = *state;
    dataset_free(&fixture->dataset);
    unlink(fixture->images);
    unlink(fixture->labels);
    rmdir(fixture->folder);
    free(fixture);
    return 0;
}

static void write_bytes(const char *path, const uint8_t *bytes, size_t count) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static enum status load(struct fixture *fixture) {
    return idx_dataset_load(&fixture->dataset, fixture->images, fixture->labels,
                            NULL, &fixture->why);
}

static const struct idx_dataset *stored(const struct fixture *fixture) {
    return (const struct idx_dataset *)fixture->dataset;
}

static void images_and_labels_are_counted(void **state) {
    struct fixture *fixture = *state;
    write_bytes(fixture->images, images, sizeof images);
    write_bytes(fixture->labels, labels, sizeof labels);
    assert_int_equal(load(fixture), STATUS_OK);
    assert_int_equal(fixture->dataset->count, 3);
    assert_int_equal(fixture->dataset->features, 4);
    assert_int_equal(fixture->dataset->num_classes, 10);
    assert_memory_equal(stored(fixture)->images, images + 16, 12);
    assert_memory_equal(stored(fixture)->labels, labels + 8, 3);
}

static void pixels_are_bytes_over_255_in_float(void **state) {
    struct fixture *fixture = *state;
    write_bytes(fixture->images, images, sizeof images);
    write_bytes(fixture->labels, labels, sizeof labels);
    assert_int_equal(load(fixture), STATUS_OK);
    for (uint32_t i = 0; i < 3; i++) {
        float pixels[4];
        assert_int_equal(idx_dataset_sample(stored(fixture), i, pixels),
                         labels[8 + i]);
        for (uint32_t j = 0; j < 4; j++) {
            volatile float byte = images[16 + 4 * i + j];
            float expected = byte / 255.0f;
            assert_memory_equal(&pixels[j], &expected, sizeof expected);
        }
    }
}

static void another_number_of_labels_is_refused(void **state) {
    struct fixture *fixture = *state;
    uint8_t fewer[10];
    memcpy(fewer, labels, sizeof fewer);
    fewer[7] = 2;
    write_bytes(fixture->images, images, sizeof images);
    write_bytes(fixture->labels, fewer, sizeof fewer);
    assert_fails(load(fixture), &fixture->why, FAILURE_DATA_MISMATCH);
    assert_null(fixture->dataset);
    assert_non_null(strstr(fixture->why.text, "found 2 labels, expected 3"));
    assert_non_null(strstr(fixture->why.text, fixture->images));
    assert_non_null(strstr(fixture->why.text, fixture->labels));
}

static void swapped_files_are_refused_with_the_guess(void **state) {
    struct fixture *fixture = *state;
    write_bytes(fixture->images, labels, sizeof labels);
    write_bytes(fixture->labels, images, sizeof images);
    assert_fails(load(fixture), &fixture->why, FAILURE_DATA_DAMAGED);
    assert_non_null(strstr(fixture->why.text, "swapped?"));
}

static void a_corrupt_file_of_labels_is_refused(void **state) {
    struct fixture *fixture = *state;
    write_bytes(fixture->images, images, sizeof images);
    write_bytes(fixture->labels, labels, sizeof labels - 1);
    assert_fails(load(fixture), &fixture->why, FAILURE_DATA_DAMAGED);
    assert_non_null(strstr(fixture->why.text, fixture->labels));
    assert_non_null(strstr(fixture->why.text, "ends after byte 10"));
}

static void a_check_reports_a_missing_file(void **state) {
    struct fixture *fixture = *state;
    write_bytes(fixture->images, images, sizeof images);
    assert_fails(idx_dataset_check_files(fixture->images, fixture->labels,
                                         &fixture->why),
                 &fixture->why, FAILURE_DATA_UNREADABLE);
    assert_non_null(strstr(fixture->why.text, fixture->labels));
    write_bytes(fixture->labels, labels, 1); /* it reads nothing */
    assert_int_equal(idx_dataset_check_files(fixture->images, fixture->labels,
                                             &fixture->why),
                     STATUS_OK);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(images_and_labels_are_counted),
        TEST(pixels_are_bytes_over_255_in_float),
        TEST(another_number_of_labels_is_refused),
        TEST(swapped_files_are_refused_with_the_guess),
        TEST(a_corrupt_file_of_labels_is_refused),
        TEST(a_check_reports_a_missing_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
