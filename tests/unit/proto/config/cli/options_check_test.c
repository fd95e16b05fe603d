/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cli/options_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

/* As options_read leaves it when no flag is given. */
static struct options no_flags(enum options_verb verb) {
    struct options options = {.verb = verb, .num_ps = 1, .num_workers = 1};
    bench_options_open(&options.bench);
    simulate_options_open(&options.simulate);
    compare_options_open(&options.compare);
    return options;
}

static void passes(const struct options *options) {
    struct failure why;
    if (options_check(options, &why))
        fail_msg("%s", why.text);
}

static void says(const struct options *options, const char *expected) {
    struct failure why;
    assert_int_equal(options_check(options, &why), STATUS_CONFIG);
    if (!strstr(why.text, expected))
        fail_msg("no \"%s\" in: %s", expected, why.text);
}

static void a_job_of_a_bench_is_one_to_simulate(void **state) {
    (void)state;
    struct options options = no_flags(OPTIONS_BENCH);
    passes(&options);
    options.job = "job.json";
    says(&options, "go with --simulate; `capstan bench --help`");
    options.simulate.on = true;
    passes(&options);
    options.simulate.bytes = 100;
    says(&options, "either JOB.json or --bytes N");
    options.job = NULL;
    passes(&options);
}

static void a_bench_has_a_ps_and_a_worker(void **state) {
    (void)state;
    struct options options = no_flags(OPTIONS_BENCH);
    options.num_ps = 0;
    says(&options, "at least 1; `capstan bench --help`");
    options.num_ps = 1;
    options.num_workers = 0;
    says(&options, "at least 1");
}

static void a_distribution_says_how_many_processes_there_are(void **state) {
    (void)state;
    struct options options = no_flags(OPTIONS_LOCAL);
    passes(&options);
    options.instances = "2";
    says(&options, "go with --distribution; `capstan local --help`");
    options.distribution = "{}";
    passes(&options);
    options.ps_given = true;
    says(&options, "leave --ps and --workers out");
}

static void a_prediction_has_no_job_to_change(void **state) {
    (void)state;
    struct options options = no_flags(OPTIONS_COMPARE);
    options.job = "job.json";
    options.num_sets = 1;
    passes(&options);
    options.job = NULL;
    options.compare.predict = options.compare.of_prediction = true;
    options.compare.parameters = 1e6;
    options.compare.link_gbits = 10;
    says(&options, "--predict has none; `capstan compare --help`");
    options.num_sets = 0;
    passes(&options);
}

static void other_verbs_take_what_these_do_not(void **state) {
    (void)state;
    for (int v = 0; v < OPTIONS_VERBS; v++) {
        if (v == OPTIONS_BENCH || v == OPTIONS_LOCAL || v == OPTIONS_COMPARE)
            continue;
        struct options options = no_flags((enum options_verb)v);
        options.num_ps = 0;
        options.flags.num_ps = "1";
        options.num_sets = 1;
        options.simulate.given = true;
        passes(&options);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_of_a_bench_is_one_to_simulate),
        cmocka_unit_test(a_bench_has_a_ps_and_a_worker),
        cmocka_unit_test(a_distribution_says_how_many_processes_there_are),
        cmocka_unit_test(a_prediction_has_no_job_to_change),
        cmocka_unit_test(other_verbs_take_what_these_do_not),
    };
    return cmocka_run_group_tests_name("options_check", tests, NULL, NULL);
}
