/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/strict_json.h"

#include "tests/lib/test.h"

static json_t *value_of_a(const char *text, bool *duplicate) {
    json_t *root;
    struct failure why = {0};
    if (strict_json_object(&root, text, "X", duplicate, &why) != STATUS_OK)
        fail_msg("%s", why.text);
    json_t *value = json_incref(json_object_get(root, "a"));
    json_decref(root);
    return value;
}

TEST(a_number_too_large_becomes_the_largest) {
    static const char *const texts[] = {
        "{\"a\": 9223372036854775808}",
        "{\"a\":99999999999999999999999999999999999999}",
        "{\"z\": [1e999, -1e999, 9e308, -99999999999999999999], \"a\": "
        "9223372036854775809, \"b\": 9223372036854775807}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        bool duplicate = false;
        json_t *value = value_of_a(texts[i], &duplicate);
        assert_true(json_is_integer(value));
        assert_int_equal(json_integer_value(value), INT64_MAX);
        assert_false(duplicate);
        json_decref(value);
    }
}

TEST(a_real_too_large_stays_a_real) {
    bool duplicate = false;
    json_t *value = value_of_a("{\"b\": 1, \"b\": 2, \"a\":1e999}", &duplicate);
    assert_true(json_is_real(value));
    assert_true(duplicate);
    json_decref(value);
}

TEST(too_many_such_numbers_are_refused) {
    enum { NUMBERS = 1000 };
    char *text = malloc(NUMBERS * 8 + 64);
    assert_non_null(text);
    char *end = text + sprintf(text, "{\"a\": [1");
    for (int i = 0; i < NUMBERS; i++)
        end += sprintf(end, ",1e999");
    sprintf(end, "]}");
    json_t *root;
    bool duplicate = false;
    struct failure why = {0};
    assert_fails(strict_json_object(&root, text, "X", &duplicate, &why), &why,
                 FAILURE_CLUSTER_INVALID);
    assert_memory_equal(why.text, "bad_json: X is not JSON", 23);
    free(text);
}

TEST(a_common_mistake_is_named) {
    static const char *const errors[][2] = {
        {"{ 'a': 1}", "json.dumps"},
        {"[ 'a']", "double quotes"},
        {"'{\"a\": 1}'", "shell's quotes"},
        {"{\\\"a\\\": 1}", "once too often"},
        {"\xef\xbb\xbf{}", "byte order mark"},
        {"{\"a\": 1, }", "comma before }"},
        {"{\"a\": [1, ]}", "comma before ]"},
        {"{\"a\": None}", "null in JSON"},
        {"{\"a\": True}", "true in JSON"},
        {"{\"a\": False}", "false in JSON"},
        {"{\"a\\u0000\": 1}", "\\u0000"},
        {"nonsense", "json.tool"},
        {"\"{\\\"a\\\": 1}\"", "once only"},
    };
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        json_t *root;
        bool duplicate = false;
        struct failure why = {0};
        assert_fails(
            strict_json_object(&root, errors[i][0], "X", &duplicate, &why),
            &why, FAILURE_CLUSTER_INVALID);
        assert_contains(why.text, errors[i][1]);
    }
}
