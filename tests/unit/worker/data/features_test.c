/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/features.h"

#include "tests/lib/test.h"

#include <math.h>
#include <unistd.h>

static const char *const columns[] = {"a", "b", "c"};

static struct features *open_features(const char *text) {
    struct features *features;
    assert_ok(features_open(&features, text, columns, 3, NULL, &failure));
    return features;
}

/* The values of a record with TEXTS for a, b and c; "" is missing. */
static enum status read_texts(const struct features *features,
                              const char *const *texts, float *values,
                              struct failure *why) {
    struct record_text text[3];
    struct record_cell cells[3];
    const struct record_cell *of[3];
    uint32_t count;
    const char *const *read = features_columns(features, &count);
    for (int i = 0; i < 3; i++) {
        text[i] = (struct record_text){texts[i], strlen(texts[i])};
        cells[i] = (struct record_cell){
            .type = RECORD_TEXTS, .count = text[i].size > 0, .texts = &text[i]};
    }
    for (uint32_t c = 0; c < count; c++)
        of[c] = &cells[read[c][0] - 'a'];
    return features_read(features, of, values, why);
}

static void assert_values(const struct features *features,
                          const char *const *texts, const float *expected) {
    float values[16];
    assert_ok(read_texts(features, texts, values, &failure));
    for (uint32_t i = 0; i < features_width(features); i++)
        if (values[i] != expected[i])
            fail_msg("value %u: found %g, expected %g", i, (double)values[i],
                     (double)expected[i]);
}

#define TEXTS(...) ((const char *const[]){__VA_ARGS__})
#define VALUES(...) ((const float[]){__VA_ARGS__})

TEST(without_features_each_column_is_a_number) {
    struct features *features = open_features(NULL);
    assert_int_equal(features_width(features), 3);
    assert_values(features, TEXTS("1.5", "", "-2"), VALUES(1.5f, 0, -2));
    features_close(&features);
    assert_null(features);
}

TEST(numbers_may_be_transformed_and_missing) {
    struct features *features = open_features(
        "{\"x\": {\"type\": \"numeric\", \"of\": \"b\", \"transform\":"
        " \"log1p\"}, \"b\": {\"type\": \"numeric\", \"default_value\": 7},"
        " \"c\": {\"type\": \"numeric\"}}");
    assert_values(features, TEXTS("", "3", "4"), VALUES(log1pf(3), 3, 4));
    assert_values(features, TEXTS("", "-3", "4"), VALUES(0, -3, 4));
    assert_values(features, TEXTS("", "", ""), VALUES(0, 7, 0));
    features_close(&features);
}

/* TensorFlow: "buckets include the left boundary, and exclude the right". */
TEST(a_bucket_includes_its_left_boundary) {
    struct features *features = open_features(
        "{\"a\": {\"type\": \"bucketized\", \"boundaries\": [0, 1.5, 4]}}");
    assert_int_equal(features_width(features), 4);
    assert_values(features, TEXTS("-1", "", ""), VALUES(1, 0, 0, 0));
    assert_values(features, TEXTS("0", "", ""), VALUES(0, 1, 0, 0));
    assert_values(features, TEXTS("1.5", "", ""), VALUES(0, 0, 1, 0));
    assert_values(features, TEXTS("400", "", ""), VALUES(0, 0, 0, 1));
    features_close(&features);
}

TEST(a_vocabulary_counts_its_words) {
    char path[] = "/tmp/features_test.XXXXXX", text[128];
    int file = mkstemp(path);
    assert_int_equal(write(file, "blue\r\nred\n\ngreen", 16), 16);
    close(file);
    snprintf(text, sizeof text,
             "{\"a\": {\"type\": \"vocabulary\", \"file\": \"%s\"}}", path);
    struct features *of_file = open_features(text);
    struct features *of_list =
        open_features("{\"a\": {\"type\": \"vocabulary\", \"values\":"
                      " [\"blue\", \"red\", \"green\"]}}");
    assert_values(of_file, TEXTS("green", "", ""), VALUES(0, 0, 1));
    assert_values(of_list, TEXTS("green", "", ""), VALUES(0, 0, 1));
    assert_values(of_list, TEXTS("blue", "", ""), VALUES(1, 0, 0));
    assert_values(of_list, TEXTS("gree", "", ""), VALUES(0, 0, 0));
    assert_values(of_list, TEXTS("", "", ""), VALUES(0, 0, 0));
    features_close(&of_file);
    features_close(&of_list);
    unlink(path);
}

TEST(a_word_that_is_there_twice_is_named_by_its_lines) {
    char path[] = "/tmp/features_test.XXXXXX", text[128], place[64];
    int file = mkstemp(path);
    struct features *features;
    assert_int_equal(write(file, "red\nblue\n\ngreen\nblue\n", 22), 22);
    close(file);
    snprintf(text, sizeof text,
             "{\"a\": {\"type\": \"vocabulary\", \"file\": \"%s\"}}", path);
    snprintf(place, sizeof place, "%s:5 and line 2", path);
    assert_error(features_open(&features, text, columns, 3, NULL, &failure),
                 FAILURE_JOB_INVALID);
    assert_contains(failure.text, place);
    unlink(path);
}

/* Integers are words in decimal, as ids of TensorFlow's columns are. */
TEST(lists_have_the_features_shape) {
    struct features *features;
    const int64_t words[] = {7, -3, 7};
    const float pair[] = {1, 2};
    struct record_cell numbers = {RECORD_FLOATS, 2, .floats = pair};
    struct record_cell ids = {RECORD_INTEGERS, 3, .integers = words};
    const struct record_cell *cells[] = {&numbers, &ids};
    float values[4];
    assert_ok(features_open(
        &features,
        "{\"n\": {\"type\": \"numeric\", \"shape\": 2}, \"i\":"
        " {\"type\": \"vocabulary\", \"values\": [\"-3\", \"7\"]}}",
        NULL, 0, NULL, &failure));
    assert_ok(features_read(features, cells, values, &failure));
    assert_memory_equal(values, VALUES(1, 2, 1, 2), sizeof values);
    numbers.count = 1;
    assert_error(features_read(features, cells, values, &failure),
                 FAILURE_DATA_DAMAGED);
    numbers.count = 2;
    numbers.floats = (const float[]){1, NAN};
    assert_error(features_read(features, cells, values, &failure),
                 FAILURE_DATA_DAMAGED);
    numbers.floats = pair;
    cells[1] = &numbers;
    assert_error(features_read(features, cells, values, &failure),
                 FAILURE_DATA_DAMAGED);
    features_close(&features);
}

TEST(a_text_that_is_no_number_is_named) {
    struct features *features = open_features(NULL);
    float values[3];
    assert_error(read_texts(features, TEXTS("1", "n/a", "2"), values, &failure),
                 FAILURE_DATA_DAMAGED);
    assert_string_equal(failure.text,
                        "column b: found \"n/a\", expected a number");
    features_close(&features);
}

TEST(wrong_settings_are_refused_together) {
    static const char *const wrong[] = {
        "{\"a\": {}}",
        "{\"a\": {\"type\": \"hash\"}}",
        "{\"z\": {\"type\": \"numeric\"}}",
        "{\"x\": {\"type\": \"numeric\", \"of\": \"z\"}}",
        "{\"a\": {\"type\": \"numeric\", \"transform\": \"log\"}}",
        "{\"a\": {\"type\": \"numeric\", \"shape\": 0}}",
        "{\"a\": {\"type\": \"numeric\", \"boundaries\": [1]}}",
        "{\"a\": {\"type\": \"bucketized\"}}",
        "{\"a\": {\"type\": \"bucketized\", \"boundaries\": [2, 2]}}",
        "{\"a\": {\"type\": \"vocabulary\"}}",
        "{\"a\": {\"type\": \"vocabulary\", \"values\": [\"x\", \"x\"]}}",
        "{\"a\": {\"type\": \"vocabulary\", \"values\": [1]}}",
    };
    struct features *features;
    char *many = malloc(300 * 64), *at = many;
    for (int i = 0; i < 257; i++)
        at += sprintf(at,
                      "%s\"f%d\": {\"type\": \"numeric\", \"of\": \"a\","
                      " \"shape\": 16777216}",
                      i ? ", " : "{", i);
    strcpy(at, "}");
    assert_error(features_open(&features, many, columns, 3, NULL, &failure),
                 FAILURE_JOB_INVALID);
    free(many);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_error(
            features_open(&features, wrong[i], columns, 3, NULL, &failure),
            FAILURE_JOB_INVALID);
        assert_null(features);
        assert_contains(failure.text, "features.");
    }
    assert_error(
        features_open(&features,
                      "{\"a\": {\"type\": \"vocabulary\", \"file\": \"/no\"}}",
                      columns, 3, NULL, &failure),
        FAILURE_DATA_UNREADABLE);
}
