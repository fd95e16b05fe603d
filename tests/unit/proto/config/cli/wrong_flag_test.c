/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cli/wrong_flag.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const struct argp_option options[] = {
    {"json", 0x100, NULL, 0, "text", 0},
    {NULL, 0, NULL, 0, "A heading:", 2},
    {"workers", 0x101, "N", 0, "how many", 2},
    {"step", 0x102, "N", 0, "which", 2},
    {"steps", 0x103, "N", 0, "how many", 2},
    {"stop", 0x104, NULL, 0, "at once", 2},
    {"help", 'h', NULL, 0, "this", -1},
    {0}};

static void says(const char *word, const char *expected) {
    char text[256];
    assert_true(wrong_flag(options, word, text, sizeof text));
    assert_string_equal(text, expected);
}

static void passes(const char *word) {
    char text[256];
    assert_false(wrong_flag(options, word, text, sizeof text));
}

static void a_slip_is_told_the_flag_it_is_most_like(void **state) {
    (void)state;
    says("--wokers", "unknown flag --wokers; nearest: --workers");
    says("--wokers=3", "unknown flag --wokers; nearest: --workers");
    says("--jsno", "unknown flag --jsno; nearest: --json");
}

static void what_is_like_none_is_only_unknown(void **state) {
    (void)state;
    says("--batch_size=3", "unknown flag --batch_size");
    says("--%s%s%n%n%n", "unknown flag --%s%s%n%n%n");
}

static void a_value_that_is_missing_or_not_taken_is_said(void **state) {
    (void)state;
    says("--workers", "--workers takes a value: --workers=N");
    says("--step", "--step takes a value: --step=N");
    says("--json=3", "--json takes no value");
    says("--help=3", "--help takes no value");
}

static void the_beginning_of_a_flag_is_no_flag(void **state) {
    (void)state;
    says("--work", "unknown flag --work; nearest: --workers");
    says("--work=3", "unknown flag --work; nearest: --workers");
    assert_true(wrong_flag_cut(options, "--work=3"));
    assert_true(wrong_flag_cut(options, "--"));
    assert_false(wrong_flag_cut(options, "--workers=3"));
    assert_false(wrong_flag_cut(options, "-h"));
}

static void the_letter_that_is_unknown_is_named(void **state) {
    (void)state;
    says("-x", "unknown flag -x");
    says("-hx", "unknown flag -x");
    says("-xh", "unknown flag -x");
}

static void what_is_a_flag_or_none_at_all_is_not_wrong(void **state) {
    (void)state;
    static const char *const words[] = {"--json",   "--workers=3", "-h",
                                        "job.json", "-",           ""};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        passes(words[i]);
}

static void a_word_of_any_length_fits(void **state) {
    (void)state;
    char word[4096], text[64];
    for (size_t i = 0; i < sizeof word - 1; i++)
        word[i] = i < 2 ? '-' : 'a';
    word[sizeof word - 1] = 0;
    assert_true(wrong_flag(options, word, text, sizeof text));
    assert_memory_equal(text, "unknown flag --aaaa", 19);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slip_is_told_the_flag_it_is_most_like),
        cmocka_unit_test(what_is_like_none_is_only_unknown),
        cmocka_unit_test(a_value_that_is_missing_or_not_taken_is_said),
        cmocka_unit_test(the_beginning_of_a_flag_is_no_flag),
        cmocka_unit_test(the_letter_that_is_unknown_is_named),
        cmocka_unit_test(what_is_a_flag_or_none_at_all_is_not_wrong),
        cmocka_unit_test(a_word_of_any_length_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
