/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cli/bench_options.h"

#include "tests/lib/test.h"

#include <string.h>

static struct bench_options set(enum bench_options_key key, const char *text) {
    struct bench_options bench;
    char problem[256];
    bench_options_open(&bench);
    if (!bench_options_set(&bench, key, text, problem, sizeof problem))
        fail_msg("%s", problem);
    return bench;
}

static void refuse(enum bench_options_key key, const char *text,
                   const char *part) {
    struct bench_options bench;
    char problem[256];
    bench_options_open(&bench);
    if (bench_options_set(&bench, key, text, problem, sizeof problem))
        fail_msg("'%s' is taken", text);
    if (!strstr(problem, part) || (*text && !strstr(problem, text)))
        fail_msg("'%s' is not in: %s", part, problem);
}

TEST(default_sizes_are_64_bytes_to_64_megabytes) {
    struct bench_options bench;
    bench_options_open(&bench);
    assert_int_equal(bench.num_sizes, 6);
    assert_int_equal(bench.sizes[0], 64);
    assert_int_equal(bench.sizes[5], 64 << 20);
    assert_int_equal(bench.transport, BENCH_TRANSPORT_AUTO);
    assert_int_equal(bench.requests, 0);
    assert_false(bench.verbose);
}

TEST(given_sizes_replace_the_defaults) {
    struct bench_options bench = set(BENCH_OPTIONS_SIZES, "4,1K,8G");
    assert_int_equal(bench.num_sizes, 3);
    assert_int_equal(bench.sizes[0], 4);
    assert_int_equal(bench.sizes[1], 1024);
    assert_int_equal(bench.sizes[2], UINT64_C(8) << 30);
}

TEST(each_flag_is_parsed) {
    assert_int_equal(set(BENCH_OPTIONS_REPEATS, "101").repeats, 101);
    assert_true(set(BENCH_OPTIONS_SECONDS, "0.25").seconds == 0.25);
    assert_int_equal(set(BENCH_OPTIONS_REQUESTS, "100000000").requests,
                     100000000);
    assert_int_equal(set(BENCH_OPTIONS_LANE, "tcp").transport,
                     BENCH_TRANSPORT_TCP);
    assert_int_equal(set(BENCH_OPTIONS_LANE, "shm").transport,
                     BENCH_TRANSPORT_SHM);
    assert_true(set(BENCH_OPTIONS_VERBOSE, NULL).verbose);
    assert_true(set(BENCH_OPTIONS_BATCHED, NULL).batched);
}

TEST(a_value_out_of_range_is_named) {
    refuse(BENCH_OPTIONS_SIZES, "", "such as 64,4K,1M");
    refuse(BENCH_OPTIONS_SIZES, "5", "multiples of 4");
    refuse(BENCH_OPTIONS_SIZES, "0", "multiples of 4");
    refuse(BENCH_OPTIONS_SIZES, "16G", "up to 8G");
    refuse(BENCH_OPTIONS_SIZES, "many", "such as 64,4K,1M");
    char problem[256];
    struct bench_options bench;
    bench_options_open(&bench);
    assert_false(bench_options_set(&bench, BENCH_OPTIONS_SIZES, "4K,4096",
                                   problem, sizeof problem));
    assert_non_null(strstr(problem, "twice: '4096'"));
    assert_false(
        bench_options_set(&bench, BENCH_OPTIONS_SIZES,
                          "4,8,12,16,20,24,28,32,36,40,44,48,52,56,60,64,68",
                          problem, sizeof problem));
    assert_non_null(strstr(problem, "at most 16 sizes: '68'"));
    refuse(BENCH_OPTIONS_REPEATS, "0", "from 1 to 101");
    refuse(BENCH_OPTIONS_REPEATS, "102", "from 1 to 101");
    refuse(BENCH_OPTIONS_SECONDS, "0", "more than 0");
    refuse(BENCH_OPTIONS_SECONDS, "nan", "more than 0");
    refuse(BENCH_OPTIONS_SECONDS, "1s", "more than 0");
    refuse(BENCH_OPTIONS_REQUESTS, "-1", "a number from 1");
    refuse(BENCH_OPTIONS_LANE, "udp", "tcp, shm or auto");
}
