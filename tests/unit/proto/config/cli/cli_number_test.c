/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cli/cli_number.h"

#include "tests/lib/test.h"

#include <stdio.h>

struct chosen {
    double before, share;
    uint64_t turns, after;
};

static const struct cli_number share =
    CLI_NUMBER(struct chosen, "share", share, 0.25, 2);
static const struct cli_number turns =
    CLI_NUMBER(struct chosen, "turns", turns, 1, 9);

static char problem[128];

TEST(a_number_within_bounds_sets_only_its_field) {
    struct chosen chosen = {.before = 7, .after = 7};
    assert_true(cli_number_set_real(&share, &chosen, "0.25", problem, 128));
    assert_true(chosen.share == 0.25);
    assert_true(cli_number_set_real(&share, &chosen, "2", problem, 128));
    assert_true(chosen.share == 2);
    assert_true(cli_number_set_count(&turns, &chosen, "1", problem, 128));
    assert_int_equal(chosen.turns, 1);
    assert_true(cli_number_set_count(&turns, &chosen, "9", problem, 128));
    assert_int_equal(chosen.turns, 9);
    assert_true(chosen.before == 7 && chosen.after == 7);
}

TEST(an_error_names_the_value_and_the_allowed_range) {
    static const char *const no_reals[] = {"",    "x",   "1x",  "0.2",
                                           "2.1", "nan", "inf", "-1"};
    static const char *const no_counts[] = {"",   "x",   "0", "10",
                                            "-1", "1.5", "1 "};
    struct chosen chosen = {.share = 7, .turns = 7};
    for (unsigned i = 0; i < sizeof no_reals / sizeof *no_reals; i++) {
        char expected[128];
        snprintf(expected, sizeof expected,
                 "--share takes a number from 0.25 to 2, not '%s'",
                 no_reals[i]);
        assert_false(
            cli_number_set_real(&share, &chosen, no_reals[i], problem, 128));
        assert_string_equal(problem, expected);
    }
    for (unsigned i = 0; i < sizeof no_counts / sizeof *no_counts; i++) {
        char expected[128];
        snprintf(expected, sizeof expected,
                 "--turns takes a whole number from 1 to 9, not '%s'",
                 no_counts[i]);
        assert_false(
            cli_number_set_count(&turns, &chosen, no_counts[i], problem, 128));
        assert_string_equal(problem, expected);
    }
    assert_true(chosen.share == 7 && chosen.turns == 7);
}
