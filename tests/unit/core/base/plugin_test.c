/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/plugin.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <limits.h>
#include <unistd.h>

/* Compiles a plugin called NAME beside this test; its check fails with MISSING
 * unless that is "". */
static void make(const char *name, unsigned abi, const char *missing) {
    char path[PATH_MAX];
    skip_unless_installed("gcc", "gcc");
    plugin_path(name, path, sizeof path);
    const char *source = textf("%s.c", path);
    FILE *file = fopen(source, "w");
    assert_non_null(file);
    fprintf(file,
            "#include \"core/base/plugin.h\"\n"
            "#include <stdio.h>\n"
            "static enum status check(struct failure *why) {\n"
            "    snprintf(why->text, sizeof why->text, \"%s\");\n"
            "    return \"%s\"[0] ? STATUS_FAILED : STATUS_OK;\n"
            "}\n"
            "const struct plugin_head test_table = {%u, \"%s\", \"1.2\", "
            "check};\n",
            missing, missing, abi, name);
    fclose(file);
    assert_int_equal(
        system(textf("gcc -shared -fPIC -I. -o %s %s", path, source)), 0);
    unlink(source);
}

static void remove_plugins(const char *name) {
    char path[PATH_MAX];
    plugin_path(name, path, sizeof path);
    unlink(path);
}

TEST(a_matching_plugin_is_found) {
    const void *table;
    make("fitting", 3, "");
    assert_ok(plugin_find(&table, "fitting", "test_table", 3, &failure));
    const struct plugin_head *head = table;
    assert_string_equal(head->name, "fitting");
    assert_string_equal(head->version, "1.2");
    remove_plugins("fitting");
}

static void expect_missing(const char *name, const char *symbol,
                           const char *text) {
    const void *table;
    assert_error(plugin_find(&table, name, symbol, 3, &failure),
                 FAILURE_PLUGIN_MISSING);
    assert_null(table);
    assert_contains(failure.text, text);
}

TEST(a_missing_plugin_is_reported) {
    expect_missing("nowhere", "test_table", "capstan-nowhere.so");
    expect_missing("nowhere", "test_table", "not in this build");
    make("older", 2, "");
    expect_missing("older", "test_table", "version 2, this program 3");
    remove_plugins("older");
    make("lame", 3, "no such device");
    expect_missing("lame", "test_table", "no such device");
    remove_plugins("lame");
    make("another", 3, "");
    expect_missing("another", "other_table", "not a plugin of capstan");
    remove_plugins("another");
}

TEST(a_file_that_is_no_plugin_has_the_linkers_error) {
    char path[PATH_MAX];
    plugin_path("text", path, sizeof path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("not a shared object", file);
    fclose(file);
    expect_missing("text", "test_table", "capstan-text.so");
    remove_plugins("text");
}
