/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/diagnostics.h"

#include "tests/lib/test.h"

TEST(without_problems_the_status_is_ok) {
    struct diagnostics diagnostics = {.where = "job.json"};
    assert_ok(diagnostics_status(&diagnostics, NULL));
}

TEST(one_problem_is_one_line) {
    struct diagnostics diagnostics = {.where = "job.json"};
    json_t *value = json_real(0.1);
    diagnostics_value(&diagnostics, "a.b", value, "an integer");
    json_decref(value);
    assert_error(diagnostics_status(&diagnostics, &failure),
                 FAILURE_JOB_INVALID);
    assert_string_equal(
        failure.text, "job.json: a.b: found 0.1 (a real); allowed: an integer");
}

TEST(ten_are_listed_and_the_others_counted) {
    struct diagnostics diagnostics = {.where = "job.json"};
    for (int i = 0; i < 13; i++)
        diagnostics_add(&diagnostics, "key", "number %d", i);
    assert_error(diagnostics_status(&diagnostics, &failure),
                 FAILURE_JOB_INVALID);
    assert_contains(failure.text, "job.json: 13 errors\n  key: number 0\n");
    assert_contains(failure.text, "key: number 9\n  and 3 more");
    assert_null(strstr(failure.text, "number 10"));
}

TEST(problems_beyond_the_buffer_are_counted) {
    struct diagnostics diagnostics = {.where = "job.json"};
    char text[1000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    for (int i = 0; i < 3; i++)
        diagnostics_add(&diagnostics, "key", "%s", text);
    assert_error(diagnostics_status(&diagnostics, &failure),
                 FAILURE_JOB_INVALID);
    assert_contains(failure.text, "xxx\n  and 2 more");
}

TEST(input_is_shown_shortened_and_without_control_characters) {
    struct diagnostics diagnostics = {.where = "job.json"};
    char key[300];
    memset(key, 'a', sizeof key - 1);
    key[sizeof key - 1] = 0;
    memcpy(key, "\n\x1b[31m", 6);
    for (size_t i = 6; i + 2 < sizeof key; i += 2)
        memcpy(key + i, "\xC3\xA9", 2);
    json_t *value = json_string(key + 6);
    diagnostics_value(&diagnostics, key, value, "a path");
    json_decref(value);
    assert_error(diagnostics_status(&diagnostics, &failure),
                 FAILURE_JOB_INVALID);
    assert_contains(failure.text, "job.json: ??[31m\xC3\xA9");
    assert_contains(failure.text, "\xC3\xA9...: found");
    assert_contains(failure.text, "\xC3\xA9... (a string)");
}
