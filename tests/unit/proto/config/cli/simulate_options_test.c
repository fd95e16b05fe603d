/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cli/simulate_options.h"

#include "tests/lib/test.h"

#include <string.h>

static struct simulate_options simulate;
static char problem[256];

static bool set(enum simulate_options_key key, const char *text) {
    return simulate_options_set(&simulate, key, text, problem, sizeof problem);
}

static int setup(void **state) {
    (void)state;
    simulate_options_open(&simulate);
    problem[0] = '\0';
    return 0;
}

FIXTURE(setup, NULL);

TEST(defaults_are_a_gigabit_and_this_machine) {
    assert_false(simulate.on || simulate.given || simulate.sweep);
    assert_true(simulate.link_gbits == 1 && simulate.overhead == 1);
    assert_true(simulate.compute < 0);
    assert_int_equal(simulate.cores, 0);
    assert_int_equal(simulate.colocation, SIMULATE_COLOCATE_NONE);
}

TEST(each_flag_sets_its_value) {
    assert_true(set(SIMULATE_OPTIONS_ON, NULL));
    assert_true(set(SIMULATE_OPTIONS_SWEEP, NULL));
    assert_true(set(SIMULATE_OPTIONS_SHARE_CORES, NULL));
    assert_true(simulate.on && simulate.sweep && simulate.share_cores &&
                simulate.given);
    assert_true(set(SIMULATE_OPTIONS_LINK_GBITS, "2.5"));
    assert_true(set(SIMULATE_OPTIONS_LATENCY, "0"));
    assert_true(set(SIMULATE_OPTIONS_COMPUTE, "0.001"));
    assert_true(set(SIMULATE_OPTIONS_JITTER, "0.1"));
    assert_true(set(SIMULATE_OPTIONS_OVERHEAD, "3"));
    assert_true(simulate.link_gbits == 2.5 && simulate.latency_us == 0 &&
                simulate.compute == 0.001 && simulate.jitter == 0.1 &&
                simulate.overhead == 3);
    assert_true(set(SIMULATE_OPTIONS_CORES, "16"));
    assert_true(set(SIMULATE_OPTIONS_BATCH, "256"));
    assert_true(set(SIMULATE_OPTIONS_ROUNDS, "7"));
    assert_true(set(SIMULATE_OPTIONS_SEED, "0"));
    assert_true(set(SIMULATE_OPTIONS_BYTES, "100M"));
    assert_true(set(SIMULATE_OPTIONS_GROUP, "64K"));
    assert_true(set(SIMULATE_OPTIONS_PLACE, "pairs"));
    assert_int_equal(simulate.cores, 16);
    assert_int_equal(simulate.batch, 256);
    assert_int_equal(simulate.rounds, 7);
    assert_int_equal(simulate.seed, 0);
    assert_int_equal(simulate.bytes, 100 << 20);
    assert_int_equal(simulate.group, 64 << 10);
    assert_int_equal(simulate.colocation, SIMULATE_COLOCATE_PAIRS);
}

TEST(a_bad_value_is_named_with_the_allowed_range) {
    static const struct {
        enum simulate_options_key key;
        const char *text, *problem;
    } cases[] = {
        {SIMULATE_OPTIONS_LINK_GBITS, "0",
         "--link-gbits takes a number from 0.001 to 10000, not '0'"},
        {SIMULATE_OPTIONS_LINK_GBITS, "nan", "not 'nan'"},
        {SIMULATE_OPTIONS_LATENCY, "-1", "not '-1'"},
        {SIMULATE_OPTIONS_COMPUTE, "1s", "not '1s'"},
        {SIMULATE_OPTIONS_JITTER, "", "not ''"},
        {SIMULATE_OPTIONS_CORES, "0",
         "--cores takes a whole number from 1 to 4096, not '0'"},
        {SIMULATE_OPTIONS_ROUNDS, "2.5", "not '2.5'"},
        {SIMULATE_OPTIONS_BYTES, "17G",
         "--bytes takes multiples of 4 bytes from 4 up to 16G"},
        {SIMULATE_OPTIONS_BYTES, "6", "not '6'"},
        {SIMULATE_OPTIONS_GROUP, "2G",
         "--group takes multiples of 4 bytes from 4 up to"},
        {SIMULATE_OPTIONS_PLACE, "here", "not 'here'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        problem[0] = '\0';
        assert_false(set(cases[i].key, cases[i].text));
        if (!strstr(problem, cases[i].problem))
            fail_msg("case %zu: %s", i, problem);
    }
}
