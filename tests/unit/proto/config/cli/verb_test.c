/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cli/verb.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[OPTIONS_VERBS] = {
    [OPTIONS_RUN] = "run",       [OPTIONS_LOCAL] = "local",
    [OPTIONS_LAUNCH] = "launch", [OPTIONS_CLUSTER] = "cluster",
    [OPTIONS_CKPT] = "ckpt",     [OPTIONS_INFO] = "info",
    [OPTIONS_BENCH] = "bench",   [OPTIONS_COMPARE] = "compare",
};

static const struct verb *found(int v) {
    enum options_verb number;
    const struct verb *verb = verb_find(names[v], &number);
    assert_non_null(verb);
    assert_int_equal(number, v);
    return verb;
}

static bool ends(const struct argp_option *option) {
    return !option->name && !option->key && !option->doc;
}

static void every_verb_is_found_by_its_name(void **state) {
    (void)state;
    for (int v = 0; v < OPTIONS_VERBS; v++)
        assert_string_equal(found(v)->name, names[v]);
}

static void what_is_no_verb_is_not_found(void **state) {
    (void)state;
    const char *const others[] = {"", "ru", "runs", "RUN", "--help"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        enum options_verb number = OPTIONS_BENCH;
        assert_null(verb_find(others[i], &number));
        assert_int_equal(number, OPTIONS_BENCH);
    }
}

static void a_part_is_found_by_the_word_behind_its_verb(void **state) {
    (void)state;
    const struct verb *ckpt = found(OPTIONS_CKPT);
    assert_string_equal(verb_part(ckpt, "verify")->name, "ckpt verify");
    assert_null(verb_part(ckpt, "ckpt"));
    assert_null(verb_part(ckpt, ""));
    assert_null(verb_part(found(OPTIONS_RUN), "ls"));
}

static void every_verb_has_help_and_version(void **state) {
    (void)state;
    for (int v = 0; v < OPTIONS_VERBS; v++) {
        int help = 0, version = 0;
        for (const struct argp_option *o = found(v)->options; !ends(o); o++) {
            help += o->key == VERB_KEY_HELP;
            version += o->key == VERB_KEY_VERSION;
        }
        assert_int_equal(help, 1);
        assert_int_equal(version, 1);
    }
}

static void no_verb_has_a_flag_twice(void **state) {
    (void)state;
    for (int v = 0; v < OPTIONS_VERBS; v++)
        for (const struct argp_option *o = found(v)->options; !ends(o); o++)
            for (const struct argp_option *other = o + 1; !ends(other);
                 other++) {
                if (o->name && other->name && !strcmp(o->name, other->name))
                    fail_msg("%s has two flags --%s", names[v], o->name);
                if (o->key && o->key == other->key)
                    fail_msg("%s: --%s and --%s have one key", names[v],
                             o->name, other->name);
            }
}

static void every_flag_says_what_it_is_for(void **state) {
    (void)state;
    for (int v = 0; v < OPTIONS_VERBS; v++)
        for (const struct argp_option *o = found(v)->options; !ends(o); o++)
            if (!o->doc && !(o->flags & OPTION_ALIAS))
                fail_msg("%s: --%s has no text", names[v], o->name);
}

static void who_ends_with_a_run_tells_the_exit_codes(void **state) {
    (void)state;
    for (int v = OPTIONS_RUN; v <= OPTIONS_LOCAL; v++)
        assert_non_null(strstr(found(v)->after, "Exit codes: 0 done; 1 "));
}

static void all_are_shown_in_lines_of_80_columns(void **state) {
    (void)state;
    char *text = NULL, *rest = NULL, expected[64];
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    verb_show_all(out);
    fclose(out);
    for (int v = 0; v < OPTIONS_VERBS; v++) {
        snprintf(expected, sizeof expected, "\n  capstan %s", names[v]);
        assert_non_null(strstr(text, expected));
    }
    for (char *line = strtok_r(text, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest))
        if (strlen(line) > 80)
            fail_msg("%zu columns: %s", strlen(line), line);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_verb_is_found_by_its_name),
        cmocka_unit_test(what_is_no_verb_is_not_found),
        cmocka_unit_test(a_part_is_found_by_the_word_behind_its_verb),
        cmocka_unit_test(every_verb_has_help_and_version),
        cmocka_unit_test(no_verb_has_a_flag_twice),
        cmocka_unit_test(every_flag_says_what_it_is_for),
        cmocka_unit_test(who_ends_with_a_run_tells_the_exit_codes),
        cmocka_unit_test(all_are_shown_in_lines_of_80_columns),
    };
    return cmocka_run_group_tests_name("verb", tests, NULL, NULL);
}
