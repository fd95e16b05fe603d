/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/verbs.h"

#include "core/base/version.h"
#include "core/tensor/rule.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <zlib.h>

static char *print(bool json) {
    static char *text;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    assert_non_null(to);
    size_t count;
    info_command_print(to, json, rule_variants(&count)[0]);
    fclose(to);
    return text;
}

static json_t *info(void) {
    char *text = print(true);
    json_t *object = json_loads(text, 0, NULL);
    assert_true(json_is_object(object));
    assert_int_equal(text[strlen(text) - 1], '\n');
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
    free(text);
    return object;
}

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    if (!text)
        fail_msg("no text \"%s\"", key);
    return text;
}

TEST(info_reports_the_processor_and_its_loops) {
    size_t count;
    json_t *object = info();
    json_t *cpu = json_array_get(json_object_get(object, "devices"), 0);
    assert_string_equal(text_of(cpu, "name"), "cpu");
    assert_string_equal(text_of(cpu, "update_rules"),
                        rule_variant_name(rule_variants(&count)[0]));
    assert_true(json_integer_value(json_object_get(cpu, "cores")) >= 1);
    assert_true(strlen(text_of(cpu, "processor")) > 0);
    json_decref(object);
}

/* There is none beside a test. */
TEST(info_reports_why_a_plugin_is_missing) {
    static const char *const names[] = {"cuda", "gloo", "nccl"};
    json_t *object = info();
    json_t *parts[] = {
        json_array_get(json_object_get(object, "devices"), 1),
        json_array_get(json_object_get(object, "collectives"), 0),
        json_array_get(json_object_get(object, "collectives"), 1),
    };
    for (int i = 0; i < 3; i++) {
        const char *file = textf("tests/capstan-%s.so", names[i]);
        assert_string_equal(text_of(parts[i], "name"), names[i]);
        assert_true(json_is_false(json_object_get(parts[i], "available")));
        assert_contains(text_of(parts[i], "reason"), "not in this build");
        assert_contains(text_of(parts[i], "reason"), file);
    }
    json_decref(object);
}

TEST(info_reports_the_loaded_library_versions) {
    static const char *const names[] = {"libzmq",  "protobuf-c", "lmdb",
                                        "jansson", "onednn",     "zlib",
                                        "xxhash",  "libarchive", "isa-l"};
    json_t *object = info();
    json_t *libraries = json_object_get(object, "libraries");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *version = text_of(libraries, names[i]);
        assert_true(strspn(version, "0123456789") > 0);
        assert_non_null(strchr(version, '.'));
    }
    assert_string_equal(text_of(libraries, "zlib"), zlibVersion());
    json_decref(object);
}

TEST(text_and_json_report_the_same) {
    json_t *object = info();
    char *text = print(false);
    const char *name;
    json_t *library;
    assert_memory_equal(text, "capstan " VERSION_TEXT " (commit ",
                        sizeof "capstan " VERSION_TEXT " (commit");
    assert_contains(text, text_of(object, "version"));
    assert_contains(text, text_of(object, "commit"));
    json_object_foreach(json_object_get(object, "libraries"), name, library)
        assert_contains(text, json_string_value(library));
    assert_contains(text, "nccl");
    free(text);
    json_decref(object);
}
