/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/libsvm_format.h"

#include "tests/lib/test.h"

#include <inttypes.h>

/* TEXT as an allocation of its own: a read beyond it is found. */
static enum status read_line(struct libsvm_format *format, const char *text,
                             size_t size, bool *empty, struct failure *why) {
    char *copy = malloc(size);
    memcpy(copy, text, size);
    struct record record = {.bytes = copy, .size = size};
    enum status status = libsvm_format_read(format, &record, empty, why);
    free(copy);
    return status;
}

TEST(a_line_has_a_label_and_pairs) {
    static const char text[] =
        " -1.5\t7:0.25 18446744073709551615:-2e3  7:1 # 9:9";
    struct libsvm_format format = {0};
    bool empty;
    assert_ok(read_line(&format, text, sizeof text - 1, &empty, &failure));
    assert_false(empty);
    assert_true(format.label == -1.5f);
    assert_int_equal(format.pairs.count, 3);
    assert_int_equal(format.pairs.integers[0], 7);
    assert_true((uint64_t)format.pairs.integers[1] == UINT64_MAX);
    assert_true(format.pairs.floats[1] == -2000);
    assert_true(format.pairs.floats[2] == 1);
    assert_ok(read_line(&format, "0", 1, &empty, &failure));
    assert_int_equal(format.pairs.count, 0);
    assert_ok(read_line(&format, " # note", 7, &empty, &failure));
    assert_true(empty);
    libsvm_format_close(&format);
}

TEST(a_wrong_word_is_named_by_its_place) {
    static const struct {
        const char *line, *text;
    } cases[] = {
        {"a 1:1", "column 1: found \"a\", expected a label"},
        {"1 2", "column 3: found \"2\", expected ID:VALUE"},
        {"1 2: 3:1",
         "column 3: found \"2:\", expected ID:VALUE, with a number"},
        {"1 :2", "column 3: found \":2\""},
        {"1 qid:x 1:2", "column 3: found \"qid:x\""},
        {"1 qid: 1:2", "column 3: found \"qid:\""},
        {"1 quid:3 1:2", "column 3: found \"quid:3\""},
        {"1 1:1 -2:1",
         "column 7: found \"-2:1\", expected ID:VALUE, with an id"},
        {"1 18446744073709551616:1",
         "expected ID:VALUE, with an id below 2^64"},
        {"1 1:nan", "column 3: found \"1:nan\""},
    };
    struct libsvm_format format = {0};
    bool empty;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_error(read_line(&format, cases[i].line, strlen(cases[i].line),
                               &empty, &failure),
                     FAILURE_DATA_DAMAGED);
        assert_contains(failure.text, cases[i].text);
    }
    libsvm_format_close(&format);
}

/* As the files of rankings have it, behind the label. */
TEST(a_group_is_no_pair) {
    static const char *const lines[] = {"1 qid:3 1:2 # 5", "1 1:2",
                                        "1 1:2 qid:18446744073709551615"};
    struct libsvm_format format = {0};
    bool empty;
    for (int i = 0; i < 3; i++) {
        assert_ok(
            read_line(&format, lines[i], strlen(lines[i]), &empty, &failure));
        assert_int_equal(format.has_group, i != 1);
        assert_int_equal(format.pairs.count, 1);
        assert_int_equal(format.pairs.integers[0], 1);
        assert_true(format.pairs.floats[0] == 2);
    }
    libsvm_format_close(&format);
}

TEST(random_lines_come_back) {
    struct libsvm_format format = {0};
    unsigned seed = 4;
    static char text[1 << 16];
    static uint64_t ids[1000];
    static float values[1000];
    for (int i = 0; i < 200; i++) {
        uint32_t count = rand_r(&seed) % 1000;
        size_t at = (size_t)sprintf(text, "%d", i);
        for (uint32_t p = 0; p < count; p++) {
            ids[p] = (uint64_t)rand_r(&seed) << (rand_r(&seed) % 33);
            values[p] = (float)rand_r(&seed) / 1000 - 1000000;
            at += (size_t)sprintf(text + at, " %" PRIu64 ":%.9g", ids[p],
                                  values[p]);
        }
        bool empty;
        assert_ok(read_line(&format, text, at, &empty, &failure));
        assert_true(format.label == (float)i);
        assert_int_equal(format.pairs.count, count);
        for (uint32_t p = 0; p < count; p++) {
            assert_true((uint64_t)format.pairs.integers[p] == ids[p]);
            assert_true(format.pairs.floats[p] == values[p]);
        }
    }
    libsvm_format_close(&format);
}

TEST(no_bytes_do_harm_to_libsvm) {
    static const char letters[] = "019.:#- \te\0q";
    struct libsvm_format format = {0};
    unsigned seed = 6;
    for (int i = 0; i < 100000; i++) {
        char text[40];
        bool empty;
        size_t size = rand_r(&seed) % sizeof text;
        for (size_t b = 0; b < size; b++)
            text[b] = letters[rand_r(&seed) % (sizeof letters - 1)];
        enum status status = read_line(&format, text, size, &empty, &failure);
        assert_true(!status || status == STATUS_CONFIG);
    }
    libsvm_format_close(&format);
}
