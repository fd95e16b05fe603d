/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/compare/verdict.h"

#include "chief/plan/bound.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* One run's object: EXAMPLES a second of a million parameters. */
static json_t *run(double examples, double input, double compute,
                   double weights, double update) {
    return json_pack("{s:f,s:f,s:i,s:f,s:f,s:{s:f,s:f,s:f,s:f,s:f}}",
                     "examples_per_second", examples, "steps_per_second",
                     examples / 64, "parameters", 1000000, "wire_bytes", 4e6,
                     "bytes_per_step", 16e6, "seconds_per_step", "input", input,
                     "compute", compute, "waiting_for_weights", weights,
                     "waiting_for_gradients", 0.0, "update", update);
}

static struct verdict_case case_of(enum predict_mode mode, unsigned workers,
                                   unsigned ps) {
    return (struct verdict_case){
        .mode = mode, .workers = workers, .ps = ps, .samples = 32};
}

static double number(const json_t *object, const char *inside,
                     const char *key) {
    const json_t *value =
        json_object_get(inside ? json_object_get(object, inside) : object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void near(double found, double wanted) {
    if (!(fabs(found - wanted) <= 1e-9 * fmax(1, fabs(wanted))))
        fail_msg("%.9g, not %.9g", found, wanted);
}

static struct verdict judge(struct verdict_case of, json_t *runs) {
    struct verdict verdict = verdict_of(&of, runs);
    json_decref(runs);
    return verdict;
}

static void expect_limit(struct verdict_case of, json_t *one,
                         const char *limit) {
    json_t *runs = json_array();
    json_array_append_new(runs, one);
    struct verdict verdict = judge(of, runs);
    assert_string_equal(
        json_string_value(json_object_get(verdict.object, "limit")), limit);
    json_decref(verdict.object);
}

static void the_median_counts_and_the_spread_is_told(void **state) {
    (void)state;
    json_t *runs = json_array();
    json_array_append_new(runs, run(900, 0, 0.01, 0.001, 0));
    json_array_append_new(runs, run(300, 0, 0.03, 0.001, 0));
    json_array_append_new(runs, run(600, 0, 0.02, 0.001, 0));
    struct verdict verdict = judge(case_of(PREDICT_PS, 2, 2), runs);
    near(verdict.rate, 600);
    near(number(verdict.object, "examples_per_second", "min"), 300);
    near(number(verdict.object, "examples_per_second", "max"), 900);
    near(number(verdict.object, "examples_per_second", "mean"), 600);
    near(number(verdict.object, "examples_per_second", "spread"),
         4.303 * 300 / sqrt(3));
    near(number(verdict.object, "seconds_per_step", "compute"), 0.02);
    json_decref(verdict.object);
}

static void of_two_runs_the_mean_counts(void **state) {
    (void)state;
    json_t *runs = json_array();
    json_array_append_new(runs, run(900, 0, 0.01, 0.001, 0));
    json_array_append_new(runs, run(300, 0, 0.03, 0.001, 0));
    struct verdict verdict = judge(case_of(PREDICT_PS, 2, 2), runs);
    near(verdict.rate, 600);
    json_decref(verdict.object);
}

/* As all runs of as many workers with every number of ps give a link's rate:
 * up to 16 times 101. */
static void of_many_runs_each_one_counts(void **state) {
    enum { RUNS = 1617 };
    (void)state;
    json_t *runs = json_array();
    for (int i = 0; i < RUNS; i++)
        json_array_append_new(runs, run(RUNS - i, 0, 0.01, 0.001, 0));
    near(verdict_median(runs, "examples_per_second"), (RUNS + 1) / 2);
    struct verdict verdict = judge(case_of(PREDICT_PS, 2, 2), runs);
    near(verdict.rate, (RUNS + 1) / 2);
    near(number(verdict.object, "examples_per_second", "min"), 1);
    json_decref(verdict.object);
}

static double predicted(struct verdict_case of, json_t *one) {
    json_t *runs = json_array();
    json_array_append_new(runs, one);
    struct verdict verdict = judge(of, runs);
    double found =
        number(verdict.object, NULL, "predicted_examples_per_second");
    json_decref(verdict.object);
    return found;
}

/* 62 blocks of 64 KiB for 4 MB: 31 on each of 2 ps, and a block a message. */
static const double block = 65536, fullest = 31 * 65536 / 4e6;

/* 4 workers of 32 samples, 2 ps; 2/3 of the computing hides what it can. */
static void what_is_predicted_has_the_rule_the_reader_and_clipping(
    void **state) {
    (void)state;
    struct verdict_case of = case_of(PREDICT_PS, 4, 2);
    of.latency = 1; /* of no link */
    near(predicted(of, run(100, 0, 0.01, 0.03, 0.02)),
         128 / (0.01 + 0.02 - 0.02 / 3));
    near(predicted(of, run(100, 0.05, 0.02, 0.01, 0)), 128 / 0.08);
    near(predicted(of, run(100, 0.01, 0.02, 0.02, 0)), 128 / 0.02);
    of.latency = 0;
    of.link_gbits = 1;
    of.clip = true;
    near(predicted(of, run(100, 0, 0, 0.06, 0)),
         128 / (2 * 4 * fullest * 4e6 / bound_payload(1)));
}

/* 2 workers with 3 and 1 devices; 32 samples of each. */
static void samples_are_those_of_all_replicas(void **state) {
    (void)state;
    json_t *runs = json_array(), *one = run(100, 0, 0.01, 0, 0);
    json_object_set_new(one, "replicas", json_integer(4));
    json_array_append_new(runs, one);
    struct verdict verdict = judge(case_of(PREDICT_PS, 2, 1), runs);
    near(number(verdict.object, NULL, "replicas"), 4);
    near(number(verdict.object, NULL, "bound_examples_per_second"), 128 / 0.01);
    json_decref(verdict.object);
}

/* 4 MB at 1 Gbit/s take 33.5 ms; 2 workers of 32 samples. */
static void the_bound_is_that_of_the_links(void **state) {
    (void)state;
    struct verdict_case of = case_of(PREDICT_PS, 2, 2);
    double once = 4e6 / bound_payload(1);
    json_t *runs = json_array();
    of.link_gbits = 1;
    json_array_append_new(runs, run(32 / once, 0, 0.01, 0.02, 0));
    struct verdict verdict = judge(of, runs);
    near(number(verdict.object, NULL, "bound_examples_per_second"), 64 / once);
    near(number(verdict.object, NULL, "reached"), 0.5);
    double exchange = 2 * fullest * once + 2 * block / bound_payload(1);
    near(number(verdict.object, NULL, "predicted_examples_per_second"),
         64 / (0.01 + exchange - 0.02 / 3));
    assert_true(verdict.linked);
    json_decref(verdict.object);
}

static void without_a_link_computing_is_the_bound(void **state) {
    (void)state;
    json_t *runs = json_array();
    json_array_append_new(runs, run(3200, 0, 0.016, 0.004, 0.001));
    struct verdict verdict = judge(case_of(PREDICT_PS, 2, 1), runs);
    near(number(verdict.object, NULL, "bound_examples_per_second"), 4000);
    near(number(verdict.object, NULL, "reached"), 0.8);
    assert_false(verdict.linked);
    assert_true(json_is_null(json_object_get(verdict.object, "link_gbits")));
    json_decref(verdict.object);
}

/* 4 MB at 0.1 Gbit/s would take 0.3 s; the run took 20 ms of 16. */
static void a_link_that_processes_of_one_machine_lack_bounds_no_run(
    void **state) {
    (void)state;
    struct verdict_case of = case_of(PREDICT_PS, 2, 1);
    json_t *runs = json_array();
    of.here = true;
    of.link_gbits = 0.1;
    json_array_append_new(runs, run(3200, 0, 0.016, 0.004, 0.001));
    struct verdict verdict = judge(of, runs);
    near(number(verdict.object, NULL, "bound_examples_per_second"), 4000);
    near(number(verdict.object, NULL, "reached"), 0.8);
    assert_string_equal(
        json_string_value(json_object_get(verdict.object, "limit")), "compute");
    assert_true(json_is_null(json_object_get(verdict.object, "link_gbits")));
    assert_true(verdict.linked);
    assert_true(number(verdict.object, NULL, "predicted_examples_per_second") <
                200);
    near(number(verdict.object, NULL, "processes"), 3);
    json_decref(verdict.object);
}

static void each_limit_is_named(void **state) {
    (void)state;
    struct verdict_case of = case_of(PREDICT_PS, 2, 1);
    expect_limit(of, run(100, 0, 0.02, 0.01, 0.001), "compute");
    expect_limit(of, run(100, 0.05, 0.02, 0.01, 0.001), "input");
    expect_limit(of, run(100, 0, 0.01, 0.04, 0.03), "ps arithmetic");
    expect_limit(of, run(100, 0, 0.01, 0.04, 0.001), "messages");
    expect_limit(of, run(100, 0.015, 0.01, 0.04, 0.001), "messages");
    expect_limit(of, run(100, 0, 0.02, 0.03, 0.018), "ps arithmetic");
    of.link_gbits = 100;
    expect_limit(of, run(100, 0, 0.01, 0.04, 0.0), "ps link");
    of.link_gbits = 1;
    expect_limit(of, run(100, 0, 0.01, 0.06, 0.001), "ps link");
    of.ps = 4;
    expect_limit(of, run(100, 0, 0.01, 0.06, 0.001), "worker link");
    expect_limit(of, run(100, 0, 0.2, 0.01, 0.001), "compute");
    of.mode = PREDICT_RING;
    expect_limit(of, run(100, 0, 0.001, 0.06, 0.001), "worker link");
}

/* Rates between two workers, a worker and a ps, all workers and a ps. */
static struct verdict_case linked(struct verdict_case of, double workers,
                                  double pair, double all) {
    of.worker_gbits = workers;
    of.pair_gbits = pair;
    of.all_gbits = all;
    return of;
}

static void the_slower_link_is_named(void **state) {
    (void)state;
    struct verdict_case of = case_of(PREDICT_PS, 2, 2);
    json_t *runs[5];
    for (int i = 0; i < 5; i++)
        runs[i] = run(100, 0, 0.001, 0.3, 0.001);
    expect_limit(linked(of, 1, 1, 1), runs[0], "worker link");
    expect_limit(linked(of, 1, 0.1, 0.1), runs[1], "ps link");
    expect_limit(linked(of, 0.1, 0.1, 0.19), runs[2], "worker link");
    of.ps = 1;
    expect_limit(linked(of, 0.1, 0.1, 0.19), runs[3], "worker link");
    expect_limit(linked(of, 0.1, 0.1, 0.1), runs[4], "ps link");
}

static void the_bound_is_that_of_the_slower_link(void **state) {
    (void)state;
    struct verdict_case of = linked(case_of(PREDICT_PS, 4, 1), 0.2, 0.2, 0.4);
    json_t *runs = json_array();
    json_array_append_new(runs, run(100, 0, 0.001, 0.3, 0));
    struct verdict verdict = judge(of, runs);
    near(number(verdict.object, NULL, "worker_link_gbits"), 0.2);
    near(number(verdict.object, NULL, "ps_link_gbits"), 0.4);
    near(number(verdict.object, NULL, "bound_examples_per_second"),
         4 * 32 / (4 * 4e6 / bound_payload(0.4)));
    json_decref(verdict.object);
}

/* A rate that was given is every link's. */
static void a_given_rate_is_of_all_links(void **state) {
    (void)state;
    struct verdict_case of = linked(case_of(PREDICT_PS, 2, 2), 5, 0.1, 0.1);
    of.link_gbits = 1;
    expect_limit(of, run(100, 0, 0.001, 0.3, 0.001), "worker link");
}

static void two_runs_have_no_spread_and_are_not_faster(void **state) {
    (void)state;
    json_t *runs = json_array();
    json_array_append_new(runs, run(900, 0, 0.01, 0.001, 0));
    json_array_append_new(runs, run(900, 0, 0.01, 0.001, 0));
    struct verdict two = judge(case_of(PREDICT_PS, 2, 2), runs), slow = two;
    const json_t *speed = json_object_get(two.object, "examples_per_second");
    assert_true(json_is_null(json_object_get(speed, "spread")));
    near(number(speed, NULL, "mean"), 900);
    slow.mean = 1;
    slow.half = 0.5;
    assert_false(verdict_faster(&two, &slow) || verdict_faster(&slow, &two));
    json_decref(two.object);
}

static void nothing_measured_is_no_figure(void **state) {
    (void)state;
    struct verdict verdict = judge(case_of(PREDICT_RING, 2, 0), json_array());
    assert_true(isnan(verdict.rate));
    assert_string_equal(
        json_string_value(json_object_get(verdict.object, "mode")),
        "allreduce");
    near(number(verdict.object, NULL, "runs"), 0);
    json_decref(verdict.object);
}

enum { MOST = 5 };
struct lot {
    struct verdict verdicts[MOST];
    unsigned count;
};

static void add(struct lot *lot, enum predict_mode mode, unsigned workers,
                unsigned ps, double rate) {
    struct verdict_case of = case_of(mode, workers, ps);
    json_t *runs = json_array();
    of.link_gbits = 1;
    if (rate > 0)
        json_array_append_new(runs, run(rate, 0, 0.0, 0.06, 0));
    lot->verdicts[lot->count++] = judge(of, runs);
}

static void forget(struct lot *lot) {
    while (lot->count)
        json_decref(lot->verdicts[--lot->count].object);
}

static void speed_up_is_against_the_fewest_workers(void **state) {
    (void)state;
    struct lot lot = {0};
    add(&lot, PREDICT_PS, 4, 1, 1500);
    add(&lot, PREDICT_PS, 2, 1, 1000);
    add(&lot, PREDICT_PS, 4, 2, 9999);
    add(&lot, PREDICT_RING, 4, 0, 0);
    add(&lot, PREDICT_PS_FREE, 8, 1, 9999);
    verdict_scale(lot.verdicts, lot.count);
    near(number(lot.verdicts[0].object, NULL, "speed_up"), 3);
    near(number(lot.verdicts[0].object, NULL, "ideal_speed_up"), 4);
    near(number(lot.verdicts[0].object, NULL, "efficiency"), 0.75);
    near(number(lot.verdicts[1].object, NULL, "speed_up"), 2);
    assert_true(
        json_is_null(json_object_get(lot.verdicts[2].object, "speed_up")));
    assert_true(
        json_is_null(json_object_get(lot.verdicts[3].object, "efficiency")));
    assert_true(
        json_is_null(json_object_get(lot.verdicts[4].object, "speed_up")));
    forget(&lot);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_median_counts_and_the_spread_is_told),
        cmocka_unit_test(of_two_runs_the_mean_counts),
        cmocka_unit_test(of_many_runs_each_one_counts),
        cmocka_unit_test(
            what_is_predicted_has_the_rule_the_reader_and_clipping),
        cmocka_unit_test(samples_are_those_of_all_replicas),
        cmocka_unit_test(the_bound_is_that_of_the_links),
        cmocka_unit_test(without_a_link_computing_is_the_bound),
        cmocka_unit_test(
            a_link_that_processes_of_one_machine_lack_bounds_no_run),
        cmocka_unit_test(each_limit_is_named),
        cmocka_unit_test(the_slower_link_is_named),
        cmocka_unit_test(the_bound_is_that_of_the_slower_link),
        cmocka_unit_test(a_given_rate_is_of_all_links),
        cmocka_unit_test(two_runs_have_no_spread_and_are_not_faster),
        cmocka_unit_test(nothing_measured_is_no_figure),
        cmocka_unit_test(speed_up_is_against_the_fewest_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
