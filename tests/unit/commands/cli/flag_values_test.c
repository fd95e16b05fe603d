/* SPDX-License-Identifier: Apache-2.0 */
/* What the rows of the table accept, verb by verb. */
#include "commands/cli/cli_flag.h"

#include "tests/lib/test.h"

static struct options options;
static char problem[256];

/* Sets the flag NAME of VERB, whose other flags have their defaults. */
static bool try(enum cli_command_id verb, const char *name, const char *text) {
    struct argp_option flags[CLI_FLAG_MAX], *flag = flags;
    options_open(&options, verb);
    cli_flag_options(verb, flags);
    while (!flag->name || strcmp(flag->name, name))
        flag++;
    return cli_flag_set(&options, cli_flag_of(flag->key), text, problem,
                        sizeof problem);
}

static const struct options *set(enum cli_command_id verb, const char *name,
                                 const char *text) {
    if (!try(verb, name, text))
        fail_msg("%s", problem);
    return &options;
}

static void refuse(enum cli_command_id verb, const char *name, const char *text,
                   const char *part) {
    if (try(verb, name, text))
        fail_msg("'%s' is taken", text);
    if (!strstr(problem, part) ||
        (*text && !strchr(text, ',') && !strstr(problem, text)))
        fail_msg("'%s' is not in: %s", part, problem);
}

TEST(default_sizes_are_64_bytes_to_64_megabytes) {
    options_open(&options, CLI_COMMAND_BENCH);
    assert_int_equal(options.sizes.count, 6);
    assert_int_equal(options.sizes.values[0], 64);
    assert_int_equal(options.sizes.values[5], 64 << 20);
    assert_int_equal(options.transport, 0);
    assert_int_equal(options.requests, 0);
    assert_false(options.verbose);
}

TEST(given_sizes_replace_the_defaults) {
    set(CLI_COMMAND_BENCH, "sizes", "4,1K,8G");
    assert_int_equal(options.sizes.count, 3);
    assert_int_equal(options.sizes.values[0], 4);
    assert_int_equal(options.sizes.values[1], 1024);
    assert_int_equal(options.sizes.values[2], UINT64_C(8) << 30);
}

TEST(each_flag_of_bench_is_parsed) {
    assert_int_equal(set(CLI_COMMAND_BENCH, "repeats", "101")->repeats, 101);
    assert_true(set(CLI_COMMAND_BENCH, "seconds", "0.25")->seconds == 0.25);
    assert_int_equal(set(CLI_COMMAND_BENCH, "requests", "100000000")->requests,
                     100000000);
    assert_int_equal(set(CLI_COMMAND_BENCH, "lane", "tcp")->transport,
                     OPTIONS_TRANSPORT_TCP);
    assert_int_equal(set(CLI_COMMAND_BENCH, "lane", "shm")->transport,
                     OPTIONS_TRANSPORT_SHM);
    assert_true(set(CLI_COMMAND_BENCH, "verbose", NULL)->verbose);
    assert_true(set(CLI_COMMAND_BENCH, "batched", NULL)->batched);
}

TEST(a_value_of_bench_out_of_range_is_named) {
    refuse(CLI_COMMAND_BENCH, "sizes", "", "such as 64,4K,1M");
    refuse(CLI_COMMAND_BENCH, "sizes", "5", "multiples of 4");
    refuse(CLI_COMMAND_BENCH, "sizes", "0", "multiples of 4");
    refuse(CLI_COMMAND_BENCH, "sizes", "16G", "up to 8G");
    refuse(CLI_COMMAND_BENCH, "sizes", "many", "such as 64,4K,1M");
    refuse(CLI_COMMAND_BENCH, "sizes", "4K,4096", "twice: '4096'");
    refuse(CLI_COMMAND_BENCH, "sizes",
           "4,8,12,16,20,24,28,32,36,40,44,48,52,56,60,64,68",
           "at most 16 sizes: '68'");
    refuse(CLI_COMMAND_BENCH, "repeats", "0", "from 1 to 101");
    refuse(CLI_COMMAND_BENCH, "repeats", "102", "from 1 to 101");
    refuse(CLI_COMMAND_BENCH, "seconds", "0", "more than 0");
    refuse(CLI_COMMAND_BENCH, "seconds", "nan", "more than 0");
    refuse(CLI_COMMAND_BENCH, "seconds", "1s", "more than 0");
    refuse(CLI_COMMAND_BENCH, "requests", "-1", "a number from 1");
    refuse(CLI_COMMAND_BENCH, "lane", "udp", "tcp, shm or auto");
}

TEST(defaults_are_a_gigabit_and_this_machine) {
    options_open(&options, CLI_COMMAND_BENCH);
    assert_false(options.simulate || options.given.compute || options.sweep);
    assert_true(options.simulated_gbits == 1 && options.link_gbits == 0 &&
                options.overhead == 1);
    assert_int_equal(options.cores, 0);
    assert_int_equal(options.colocation, OPTIONS_PLACE_APART);
}

TEST(each_flag_of_a_simulation_sets_its_value) {
    assert_true(set(CLI_COMMAND_BENCH, "simulate", NULL)->simulate);
    assert_true(set(CLI_COMMAND_BENCH, "sweep", NULL)->sweep);
    assert_true(set(CLI_COMMAND_BENCH, "share-cores", NULL)->share_cores);
    assert_true(cli_flag_group_given(&options, 2));
    assert_true(set(CLI_COMMAND_BENCH, "link-gbits", "2.5")->simulated_gbits ==
                2.5);
    assert_true(set(CLI_COMMAND_BENCH, "latency-us", "0")->latency_us == 0);
    assert_true(set(CLI_COMMAND_BENCH, "compute", "0.001")->compute == 0.001);
    assert_true(set(CLI_COMMAND_BENCH, "compute", "0")->given.compute);
    assert_true(set(CLI_COMMAND_BENCH, "jitter", "0.1")->jitter == 0.1);
    assert_true(set(CLI_COMMAND_BENCH, "overhead", "3")->overhead == 3);
    assert_int_equal(set(CLI_COMMAND_BENCH, "cores", "16")->cores, 16);
    assert_int_equal(set(CLI_COMMAND_BENCH, "batch", "256")->batch, 256);
    assert_int_equal(set(CLI_COMMAND_BENCH, "rounds", "7")->rounds, 7);
    assert_int_equal(set(CLI_COMMAND_BENCH, "seed", "0")->seed, 0);
    assert_int_equal(set(CLI_COMMAND_BENCH, "bytes", "100M")->bytes, 100 << 20);
    assert_int_equal(set(CLI_COMMAND_BENCH, "group", "64K")->group, 64 << 10);
    assert_int_equal(set(CLI_COMMAND_BENCH, "place", "pairs")->colocation,
                     OPTIONS_PLACE_PAIRS);
}

TEST(a_bad_value_is_named_with_the_allowed_range) {
    refuse(CLI_COMMAND_BENCH, "link-gbits", "0",
           "--link-gbits takes a number from 0.001 to 10000, not '0'");
    refuse(CLI_COMMAND_BENCH, "link-gbits", "nan", "not 'nan'");
    refuse(CLI_COMMAND_BENCH, "latency-us", "-1", "not '-1'");
    refuse(CLI_COMMAND_BENCH, "compute", "1s", "not '1s'");
    refuse(CLI_COMMAND_BENCH, "jitter", "", "not ''");
    refuse(CLI_COMMAND_BENCH, "cores", "0",
           "--cores takes a whole number from 1 to 4096, not '0'");
    refuse(CLI_COMMAND_BENCH, "rounds", "2.5", "not '2.5'");
    refuse(CLI_COMMAND_BENCH, "bytes", "17G",
           "--bytes takes multiples of 4 bytes from 4 up to 16G");
    refuse(CLI_COMMAND_BENCH, "bytes", "6", "not '6'");
    refuse(CLI_COMMAND_BENCH, "group", "2G",
           "--group takes multiples of 4 bytes from 4 up to");
    refuse(CLI_COMMAND_BENCH, "place", "here", "not 'here'");
}

TEST(defaults_are_one_ps_two_workers_and_three_repeats) {
    options_open(&options, CLI_COMMAND_COMPARE);
    assert_int_equal(options.ps.count, 1);
    assert_int_equal(options.ps.values[0], 1);
    assert_int_equal(options.workers.values[0], 2);
    assert_int_equal(options.repeats, 3);
    assert_true(options.limit == 600 && options.target == 0.875);
}

TEST(each_flag_of_compare_is_parsed) {
    set(CLI_COMMAND_COMPARE, "workers", "1,2,16");
    assert_int_equal(options.workers.count, 3);
    assert_int_equal(options.workers.values[2], 16);
    assert_int_equal(set(CLI_COMMAND_COMPARE, "ps", "4")->ps.values[0], 4);
    assert_int_equal(set(CLI_COMMAND_COMPARE, "steps", "300")->steps, 300);
    assert_int_equal(set(CLI_COMMAND_COMPARE, "repeats", "5")->repeats, 5);
    assert_true(set(CLI_COMMAND_COMPARE, "limit", "2.5")->limit == 2.5);
    assert_true(set(CLI_COMMAND_COMPARE, "link-gbits", "10")->link_gbits == 10);
    assert_true(set(CLI_COMMAND_COMPARE, "latency-us", "20")->latency_us == 20);
    assert_true(set(CLI_COMMAND_COMPARE, "compute-ms", "120")->compute_ms ==
                120);
    assert_true(set(CLI_COMMAND_COMPARE, "input-ms", "1")->input_ms == 1);
    assert_true(set(CLI_COMMAND_COMPARE, "update-gbytes", "4")->update_gbytes ==
                4);
    assert_true(set(CLI_COMMAND_COMPARE, "overlap", "0.5")->overlap == 0.5);
    assert_true(set(CLI_COMMAND_COMPARE, "target", "0.9")->target == 0.9);
    assert_true(set(CLI_COMMAND_COMPARE, "inner-gbits", "2400")->inner_gbits ==
                2400);
    assert_int_equal(set(CLI_COMMAND_COMPARE, "gpus-per-host", "8")->per_host,
                     8);
    assert_true(set(CLI_COMMAND_COMPARE, "wire", "BF16")->bf16);
    assert_true(set(CLI_COMMAND_COMPARE, "clip", NULL)->clip);
    assert_true(set(CLI_COMMAND_COMPARE, "predict", NULL)->predict);
    assert_string_equal(set(CLI_COMMAND_COMPARE, "vm", "p4d")->vm, "p4d");
    assert_string_equal(set(CLI_COMMAND_COMPARE, "csv", "a")->csv, "a");
    assert_string_equal(set(CLI_COMMAND_COMPARE, "plot", "a.SVG")->plot,
                        "a.SVG");
}

TEST(parameters_are_given_in_millions) {
    assert_true(set(CLI_COMMAND_COMPARE, "params", "669706")->parameters ==
                669706);
    assert_true(set(CLI_COMMAND_COMPARE, "params", "25.6M")->parameters ==
                25.6e6);
    assert_true(set(CLI_COMMAND_COMPARE, "params", "2k")->parameters == 2000);
    assert_true(set(CLI_COMMAND_COMPARE, "params", "175B")->parameters ==
                175e9);
    assert_true(set(CLI_COMMAND_COMPARE, "params", "1t")->parameters == 1e12);
}

TEST(a_value_of_compare_out_of_range_is_named) {
    refuse(CLI_COMMAND_COMPARE, "params", "25.6X", "such as 25.6M");
    refuse(CLI_COMMAND_COMPARE, "params", "25MM", "such as 25.6M");
    refuse(CLI_COMMAND_COMPARE, "params", "0", "such as 25.6M");
    refuse(CLI_COMMAND_COMPARE, "params", "11T", "up to 10T");
    refuse(CLI_COMMAND_COMPARE, "params", "nan", "up to 10T");
    refuse(CLI_COMMAND_COMPARE, "ps", "", "--ps takes numbers");
    refuse(CLI_COMMAND_COMPARE, "ps", "0", "from 1 to 1024");
    refuse(CLI_COMMAND_COMPARE, "ps", "1025", "from 1 to 1024");
    refuse(CLI_COMMAND_COMPARE, "workers", "2,2", "'2' is not above");
    refuse(CLI_COMMAND_COMPARE, "workers",
           "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17", "at most 16");
    refuse(CLI_COMMAND_COMPARE, "repeats", "0", "from 1 to 101");
    refuse(CLI_COMMAND_COMPARE, "limit", "0", "from 1 to");
    refuse(CLI_COMMAND_COMPARE, "link-gbits", "-1", "--link-gbits");
    refuse(CLI_COMMAND_COMPARE, "overlap", "1.5", "from 0 to 1");
    refuse(CLI_COMMAND_COMPARE, "target", "1", "--target");
    refuse(CLI_COMMAND_COMPARE, "wire", "int8", "float32 or bf16");
    refuse(CLI_COMMAND_COMPARE, "plot", "a.pdf", ".svg or .png");
    refuse(CLI_COMMAND_COMPARE, "plot", "svg", ".svg or .png");
}

TEST(an_error_names_the_value_and_the_allowed_range) {
    static const char *const no_reals[] = {"",    "x",   "1x",  "-0.1",
                                           "1.1", "nan", "inf", "-1"};
    static const char *const no_counts[] = {"",   "x",   "0", "65",
                                            "-1", "1.5", "1 "};
    char expected[128];
    for (unsigned i = 0; i < sizeof no_reals / sizeof *no_reals; i++) {
        snprintf(expected, sizeof expected,
                 "--overlap takes a number from 0 to 1, not '%s'", no_reals[i]);
        assert_false(try(CLI_COMMAND_COMPARE, "overlap", no_reals[i]));
        assert_string_equal(problem, expected);
    }
    for (unsigned i = 0; i < sizeof no_counts / sizeof *no_counts; i++) {
        snprintf(expected, sizeof expected,
                 "--gpus-per-host takes a whole number from 1 to 64, not '%s'",
                 no_counts[i]);
        assert_false(try(CLI_COMMAND_COMPARE, "gpus-per-host", no_counts[i]));
        assert_string_equal(problem, expected);
    }
    refuse(CLI_COMMAND_EVAL, "step", "99999999999999999999", "a number, not");
}

TEST(a_number_within_bounds_sets_only_its_field) {
    assert_true(set(CLI_COMMAND_COMPARE, "target", "0.01")->target == 0.01);
    assert_true(set(CLI_COMMAND_COMPARE, "target", "0.999")->target == 0.999);
    assert_int_equal(set(CLI_COMMAND_COMPARE, "repeats", "1")->repeats, 1);
    assert_int_equal(set(CLI_COMMAND_COMPARE, "repeats", "101")->repeats, 101);
    assert_true(options.target == 0.875 && options.limit == 600);
}

/* Runs take over values of the job's block, and so need compare's defaults. */
TEST(a_default_is_that_of_the_verb_else_of_the_row) {
    options_open(&options, CLI_COMMAND_BENCH);
    assert_true(options.repeats == 5 && options.simulated_gbits == 1);
    options_open(&options, CLI_COMMAND_RUN);
    assert_true(options.repeats == 3 && options.link_gbits == 0);
    assert_int_equal(options.workers.values[0], 2);
    assert_false(options.given.repeats);
}
