/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cli/compare_options.h"

#include "tests/lib/test.h"

#include <string.h>

static struct compare_options set(enum compare_options_key key,
                                  const char *text) {
    struct compare_options compare;
    char problem[256];
    compare_options_open(&compare);
    if (!compare_options_set(&compare, key, text, problem, sizeof problem))
        fail_msg("%s", problem);
    return compare;
}

static void refuse(enum compare_options_key key, const char *text,
                   const char *part) {
    struct compare_options compare;
    char problem[256];
    compare_options_open(&compare);
    if (compare_options_set(&compare, key, text, problem, sizeof problem))
        fail_msg("'%s' is taken", text);
    if (!strstr(problem, part) ||
        (!strchr(text, ',') && !strstr(problem, text)))
        fail_msg("'%s' is not in: %s", part, problem);
}

TEST(defaults_are_one_ps_two_workers_and_three_repeats) {
    struct compare_options compare;
    compare_options_open(&compare);
    assert_int_equal(compare.ps.count, 1);
    assert_int_equal(compare.ps.values[0], 1);
    assert_int_equal(compare.workers.values[0], 2);
    assert_int_equal(compare.repeats, 3);
    assert_true(compare.limit == 600 && compare.target == 0.875);
}

TEST(each_flag_is_parsed) {
    struct compare_options compare = set(COMPARE_OPTIONS_WORKERS, "1,2,16");
    assert_int_equal(compare.workers.count, 3);
    assert_int_equal(compare.workers.values[2], 16);
    assert_int_equal(set(COMPARE_OPTIONS_PS, "4").ps.values[0], 4);
    assert_int_equal(set(COMPARE_OPTIONS_STEPS, "300").steps, 300);
    assert_int_equal(set(COMPARE_OPTIONS_REPEATS, "5").repeats, 5);
    assert_true(set(COMPARE_OPTIONS_LIMIT, "2.5").limit == 2.5);
    assert_true(set(COMPARE_OPTIONS_LINK, "10").link_gbits == 10);
    assert_true(set(COMPARE_OPTIONS_LATENCY, "20").latency_us == 20);
    assert_true(set(COMPARE_OPTIONS_COMPUTE, "120").compute_ms == 120);
    assert_true(set(COMPARE_OPTIONS_INPUT, "1").input_ms == 1);
    assert_true(set(COMPARE_OPTIONS_UPDATE, "4").update_gbytes == 4);
    assert_true(set(COMPARE_OPTIONS_OVERLAP, "0.5").overlap == 0.5);
    assert_true(set(COMPARE_OPTIONS_TARGET, "0.9").target == 0.9);
    assert_true(set(COMPARE_OPTIONS_INNER, "2400").inner_gbits == 2400);
    assert_int_equal(set(COMPARE_OPTIONS_PER_HOST, "8").per_host, 8);
    assert_true(set(COMPARE_OPTIONS_WIRE, "BF16").bf16);
    assert_true(set(COMPARE_OPTIONS_CLIP, NULL).clip);
    assert_true(set(COMPARE_OPTIONS_PREDICT, NULL).predict);
    assert_string_equal(set(COMPARE_OPTIONS_VM, "p4d").vm, "p4d");
    assert_string_equal(set(COMPARE_OPTIONS_CSV, "a").csv, "a");
    assert_string_equal(set(COMPARE_OPTIONS_PLOT, "a.SVG").plot, "a.SVG");
}

TEST(parameters_are_given_in_millions) {
    assert_true(set(COMPARE_OPTIONS_PARAMS, "669706").parameters == 669706);
    assert_true(set(COMPARE_OPTIONS_PARAMS, "25.6M").parameters == 25.6e6);
    assert_true(set(COMPARE_OPTIONS_PARAMS, "2k").parameters == 2000);
    assert_true(set(COMPARE_OPTIONS_PARAMS, "175B").parameters == 175e9);
    assert_true(set(COMPARE_OPTIONS_PARAMS, "1t").parameters == 1e12);
}

TEST(a_value_out_of_range_is_named) {
    refuse(COMPARE_OPTIONS_PARAMS, "25.6X", "such as 25.6M");
    refuse(COMPARE_OPTIONS_PARAMS, "25MM", "such as 25.6M");
    refuse(COMPARE_OPTIONS_PARAMS, "0", "such as 25.6M");
    refuse(COMPARE_OPTIONS_PARAMS, "11T", "up to 10T");
    refuse(COMPARE_OPTIONS_PARAMS, "nan", "up to 10T");
    refuse(COMPARE_OPTIONS_PS, "", "--ps takes numbers");
    refuse(COMPARE_OPTIONS_PS, "0", "from 1 to 1024");
    refuse(COMPARE_OPTIONS_PS, "1025", "from 1 to 1024");
    refuse(COMPARE_OPTIONS_WORKERS, "2,2", "'2' is not above");
    refuse(COMPARE_OPTIONS_WORKERS, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17",
           "at most 16");
    refuse(COMPARE_OPTIONS_REPEATS, "0", "from 1 to 101");
    refuse(COMPARE_OPTIONS_LIMIT, "0", "from 1 to");
    refuse(COMPARE_OPTIONS_LINK, "-1", "--link-gbits");
    refuse(COMPARE_OPTIONS_OVERLAP, "1.5", "from 0 to 1");
    refuse(COMPARE_OPTIONS_TARGET, "1", "--target");
    refuse(COMPARE_OPTIONS_WIRE, "int8", "float32 or bf16");
    refuse(COMPARE_OPTIONS_PLOT, "a.pdf", ".svg or .png");
    refuse(COMPARE_OPTIONS_PLOT, "svg", ".svg or .png");
}

static void take(struct compare_options *compare, enum compare_options_key key,
                 const char *text) {
    char problem[256];
    assert_true(
        compare_options_set(compare, key, text, problem, sizeof problem));
}

TEST(flags_of_a_prediction_and_of_runs_do_not_mix) {
    struct compare_options compare = set(COMPARE_OPTIONS_PARAMS, "1M");
    assert_non_null(
        strstr(compare_options_error(&compare, true), "go with --predict"));
    assert_non_null(
        strstr(compare_options_error(&(struct compare_options){0}, false),
               "JOB.json, -- COMMAND, or --predict"));
    take(&compare, COMPARE_OPTIONS_PREDICT, NULL);
    assert_non_null(
        strstr(compare_options_error(&compare, false), "--link-gbits, or"));
    take(&compare, COMPARE_OPTIONS_LINK, "10");
    assert_null(compare_options_error(&compare, false));
    assert_non_null(
        strstr(compare_options_error(&compare, true), "takes no job"));
    take(&compare, COMPARE_OPTIONS_WORKERS, "1,2");
    assert_non_null(
        strstr(compare_options_error(&compare, false), "one number"));
    compare = set(COMPARE_OPTIONS_LINK, "1");
    take(&compare, COMPARE_OPTIONS_STEPS, "5");
    assert_null(compare_options_error(&compare, true));
    take(&compare, COMPARE_OPTIONS_PREDICT, NULL);
    assert_non_null(
        strstr(compare_options_error(&compare, false), "makes none"));
}
