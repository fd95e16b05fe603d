/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/cli/cli_flag.h"

#include "tests/lib/test.h"

static const struct argp_option options[] = {
    {"json", 0x100, NULL, 0, "text", 0},
    {NULL, 0, NULL, 0, "A heading:", 2},
    {"workers", 0x101, "N", 0, "how many", 2},
    {"step", 0x102, "N", 0, "which", 2},
    {"steps", 0x103, "N", 0, "how many", 2},
    {"stop", 0x104, NULL, 0, "at once", 2},
    {"help", 'h', NULL, 0, "this", -1},
    {0}};

static void expect_message(const char *word, const char *expected) {
    char text[256];
    assert_true(cli_flag_error(options, word, text, sizeof text));
    assert_string_equal(text, expected);
}

static void passes(const char *word) {
    char text[256];
    assert_false(cli_flag_error(options, word, text, sizeof text));
}

TEST(a_misspelled_flag_suggests_the_nearest) {
    expect_message("--wokers", "unknown flag --wokers; nearest: --workers");
    expect_message("--wokers=3", "unknown flag --wokers; nearest: --workers");
    expect_message("--jsno", "unknown flag --jsno; nearest: --json");
}

TEST(a_flag_near_none_is_only_unknown) {
    expect_message("--batch_size=3", "unknown flag --batch_size");
    expect_message("--%s%s%n%n%n", "unknown flag --%s%s%n%n%n");
}

TEST(a_missing_or_unexpected_value_is_reported) {
    expect_message("--workers", "--workers takes a value: --workers=N");
    expect_message("--step", "--step takes a value: --step=N");
    expect_message("--json=3", "--json takes no value");
    expect_message("--help=3", "--help takes no value");
}

TEST(an_abbreviated_flag_is_unknown) {
    expect_message("--work", "unknown flag --work; nearest: --workers");
    expect_message("--work=3", "unknown flag --work; nearest: --workers");
    assert_true(cli_flag_is_abbreviated(options, "--work=3"));
    assert_true(cli_flag_is_abbreviated(options, "--"));
    assert_false(cli_flag_is_abbreviated(options, "--workers=3"));
    assert_false(cli_flag_is_abbreviated(options, "-h"));
}

TEST(an_unknown_short_flag_is_named) {
    expect_message("-x", "unknown flag -x");
    expect_message("-hx", "unknown flag -x");
    expect_message("-xh", "unknown flag -x");
}

TEST(valid_flags_and_arguments_are_accepted) {
    static const char *const words[] = {"--json",   "--workers=3", "-h",
                                        "job.json", "-",           ""};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        passes(words[i]);
}

TEST(an_argument_of_any_length_fits) {
    char word[4096], text[64];
    for (size_t i = 0; i < sizeof word - 1; i++)
        word[i] = i < 2 ? '-' : 'a';
    word[sizeof word - 1] = 0;
    assert_true(cli_flag_error(options, word, text, sizeof text));
    assert_memory_equal(text, "unknown flag --aaaa", 19);
}
