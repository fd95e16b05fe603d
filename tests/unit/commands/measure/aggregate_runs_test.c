/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/aggregate_runs.h"

#include "chief/plan/network_bound.h"
#include "tests/lib/test.h"

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

static struct aggregate_runs_case case_of(enum cost_model_mode mode,
                                          unsigned workers, unsigned ps) {
    return (struct aggregate_runs_case){
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

static struct aggregate judge(struct aggregate_runs_case spec, json_t *runs) {
    struct aggregate aggregate = aggregate_runs(&spec, runs);
    json_decref(runs);
    return aggregate;
}

static void expect_limit(struct aggregate_runs_case spec, json_t *one,
                         const char *limit) {
    json_t *runs = json_array();
    json_array_append_new(runs, one);
    struct aggregate aggregate = judge(spec, runs);
    assert_string_equal(
        json_string_value(json_object_get(aggregate.object, "limit")), limit);
    json_decref(aggregate.object);
}

TEST(the_mean_counts_and_its_interval_is_reported) {
    json_t *runs = json_array();
    json_array_append_new(runs, run(900, 0, 0.01, 0.001, 0));
    json_array_append_new(runs, run(300, 0, 0.03, 0.001, 0));
    json_array_append_new(runs, run(360, 0, 0.02, 0.001, 0));
    struct aggregate aggregate = judge(case_of(COST_MODEL_PS, 2, 2), runs);
    near(aggregate.rate, 520);
    near(number(aggregate.object, NULL, "reached"),
         520 / number(aggregate.object, NULL, "bound_examples_per_second"));
    near(number(aggregate.object, "examples_per_second", "min"), 300);
    near(number(aggregate.object, "examples_per_second", "max"), 900);
    near(number(aggregate.object, "examples_per_second", "median"), 360);
    near(number(aggregate.object, "examples_per_second", "mean"), 520);
    near(number(aggregate.object, "examples_per_second", "spread"),
         4.303 * sqrt((380. * 380 + 220 * 220 + 160 * 160) / 2 / 3));
    near(number(aggregate.object, "seconds_per_step", "compute"), 0.02);
    json_decref(aggregate.object);
}

/* Both are counted one way. */
TEST(rows_travel_with_the_weights) {
    json_t *one = run(900, 0, 0.01, 0.001, 0), *runs = json_array();
    json_object_set_new(one, "row_bytes_per_step", json_real(2e6));
    json_array_append_new(runs, one);
    struct aggregate aggregate = judge(case_of(COST_MODEL_PS, 2, 2), runs);
    near(aggregate.given.element_bytes, 6);
    json_decref(aggregate.object);
}

TEST(reading_of_an_unknown_time_is_no_limit) {
    json_t *one = run(900, 0, 0.01, 0.001, 0), *runs = json_array();
    json_object_set_new(json_object_get(one, "seconds_per_step"), "input",
                        json_null());
    json_array_append_new(runs, one);
    struct aggregate aggregate = judge(case_of(COST_MODEL_PS, 2, 2), runs);
    assert_true(isnan(number(aggregate.object, "seconds_per_step", "input")));
    near(number(aggregate.object, NULL, "bound_examples_per_second"), 6400);
    assert_string_equal(
        json_string_value(json_object_get(aggregate.object, "limit")),
        "compute");
    json_decref(aggregate.object);
}

TEST(the_mean_of_two_runs_counts) {
    json_t *runs = json_array();
    json_array_append_new(runs, run(900, 0, 0.01, 0.001, 0));
    json_array_append_new(runs, run(300, 0, 0.03, 0.001, 0));
    struct aggregate aggregate = judge(case_of(COST_MODEL_PS, 2, 2), runs);
    near(aggregate.rate, 600);
    near(number(aggregate.object, "examples_per_second", "median"), 600);
    json_decref(aggregate.object);
}

/* As all runs of as many workers with every number of ps give a link's rate:
 * up to 16 times 101. */
TEST(every_run_of_many_counts) {
    enum { RUNS = 1617 };
    json_t *runs = json_array();
    for (int i = 0; i < RUNS; i++)
        json_array_append_new(runs, run(RUNS - i, 0, 0.01, 0.001, 0));
    near(aggregate_runs_median(runs, "examples_per_second"), (RUNS + 1) / 2);
    struct aggregate aggregate = judge(case_of(COST_MODEL_PS, 2, 2), runs);
    near(aggregate.rate, (RUNS + 1) / 2);
    near(number(aggregate.object, "examples_per_second", "min"), 1);
    json_decref(aggregate.object);
}

static double predicted(struct aggregate_runs_case spec, json_t *one) {
    json_t *runs = json_array();
    json_array_append_new(runs, one);
    struct aggregate aggregate = judge(spec, runs);
    double found =
        number(aggregate.object, NULL, "predicted_examples_per_second");
    json_decref(aggregate.object);
    return found;
}

/* 62 blocks of 64 KiB for 4 MB: 31 on each of 2 ps, and a block a message. */
static const double block = 65536, max_ps_share = 31 * 65536 / 4e6;

/* 4 workers of 32 samples, 2 ps; 2/3 of the computing hides what it can. */
TEST(a_prediction_includes_the_rule_the_input_and_clipping) {
    struct aggregate_runs_case spec = case_of(COST_MODEL_PS, 4, 2);
    spec.latency = 1; /* of no link */
    near(predicted(spec, run(100, 0, 0.01, 0.03, 0.02)),
         128 / (0.01 + 0.02 - 0.02 / 3));
    near(predicted(spec, run(100, 0.05, 0.02, 0.01, 0)), 128 / 0.08);
    near(predicted(spec, run(100, 0.01, 0.02, 0.02, 0)), 128 / 0.02);
    spec.latency = 0;
    spec.link_gbits = 1;
    spec.clip = true;
    near(predicted(spec, run(100, 0, 0, 0.06, 0)),
         128 / (2 * 4 * max_ps_share * 4e6 / network_bound_payload(1)));
}

/* 2 workers with 3 and 1 devices; 32 samples of each. */
TEST(samples_of_all_replicas_count) {
    json_t *runs = json_array(), *one = run(100, 0, 0.01, 0, 0);
    json_object_set_new(one, "replicas", json_integer(4));
    json_object_set_new(one, "devices", json_integer(3));
    json_array_append_new(runs, one);
    struct aggregate aggregate = judge(case_of(COST_MODEL_PS, 2, 1), runs);
    near(number(aggregate.object, NULL, "replicas"), 4);
    near(number(aggregate.object, NULL, "devices"), 3);
    near(number(aggregate.object, NULL, "bound_examples_per_second"),
         128 / 0.01);
    json_decref(aggregate.object);
}

/* 4 MB at 1 Gbit/s take 33.5 ms; 2 workers of 32 samples. */
TEST(the_bound_follows_from_the_links) {
    struct aggregate_runs_case spec = case_of(COST_MODEL_PS, 2, 2);
    double once = 4e6 / network_bound_payload(1);
    json_t *runs = json_array();
    spec.link_gbits = 1;
    json_array_append_new(runs, run(32 / once, 0, 0.01, 0.02, 0));
    struct aggregate aggregate = judge(spec, runs);
    near(number(aggregate.object, NULL, "bound_examples_per_second"),
         64 / once);
    near(number(aggregate.object, NULL, "reached"), 0.5);
    double exchange =
        2 * max_ps_share * once + 2 * block / network_bound_payload(1);
    near(number(aggregate.object, NULL, "predicted_examples_per_second"),
         64 / (0.01 + exchange - 0.02 / 3));
    assert_true(aggregate.linked);
    json_decref(aggregate.object);
}

TEST(without_a_link_compute_is_the_bound) {
    json_t *runs = json_array();
    json_array_append_new(runs, run(3200, 0, 0.016, 0.004, 0.001));
    struct aggregate aggregate = judge(case_of(COST_MODEL_PS, 2, 1), runs);
    near(number(aggregate.object, NULL, "bound_examples_per_second"), 4000);
    near(number(aggregate.object, NULL, "reached"), 0.8);
    assert_false(aggregate.linked);
    assert_true(json_is_null(json_object_get(aggregate.object, "link_gbits")));
    json_decref(aggregate.object);
}

/* 4 MB at 0.1 Gbit/s would take 0.3 s; the run took 20 ms of 16. */
TEST(without_a_link_between_processes_no_link_bounds_the_run) {
    struct aggregate_runs_case spec = case_of(COST_MODEL_PS, 2, 1);
    json_t *runs = json_array();
    spec.local = true;
    spec.link_gbits = 0.1;
    json_array_append_new(runs, run(3200, 0, 0.016, 0.004, 0.001));
    struct aggregate aggregate = judge(spec, runs);
    near(number(aggregate.object, NULL, "bound_examples_per_second"), 4000);
    near(number(aggregate.object, NULL, "reached"), 0.8);
    assert_string_equal(
        json_string_value(json_object_get(aggregate.object, "limit")),
        "compute");
    assert_true(json_is_null(json_object_get(aggregate.object, "link_gbits")));
    assert_true(aggregate.linked);
    assert_true(
        number(aggregate.object, NULL, "predicted_examples_per_second") < 200);
    near(number(aggregate.object, NULL, "processes"), 3);
    json_decref(aggregate.object);
}

TEST(each_limit_is_named) {
    struct aggregate_runs_case spec = case_of(COST_MODEL_PS, 2, 1);
    expect_limit(spec, run(100, 0, 0.02, 0.01, 0.001), "compute");
    expect_limit(spec, run(100, 0.05, 0.02, 0.01, 0.001), "input");
    expect_limit(spec, run(100, 0, 0.01, 0.04, 0.03), "ps arithmetic");
    expect_limit(spec, run(100, 0, 0.01, 0.04, 0.001), "messages");
    expect_limit(spec, run(100, 0.015, 0.01, 0.04, 0.001), "messages");
    expect_limit(spec, run(100, 0, 0.02, 0.03, 0.018), "ps arithmetic");
    spec.link_gbits = 100;
    expect_limit(spec, run(100, 0, 0.01, 0.04, 0.0), "ps link");
    spec.link_gbits = 1;
    expect_limit(spec, run(100, 0, 0.01, 0.06, 0.001), "ps link");
    spec.ps = 4;
    expect_limit(spec, run(100, 0, 0.01, 0.06, 0.001), "worker link");
    expect_limit(spec, run(100, 0, 0.2, 0.01, 0.001), "compute");
    spec.mode = COST_MODEL_RING;
    expect_limit(spec, run(100, 0, 0.001, 0.06, 0.001), "worker link");
    spec.link_gbits = 0;
    expect_limit(spec, run(100, 0, 0.02, 0.03, 0.018), "messages");
}

/* Rates between two workers, a worker and a ps, all workers and a ps. */
static struct aggregate_runs_case linked(struct aggregate_runs_case spec,
                                         double workers, double pair,
                                         double all) {
    spec.worker_gbits = workers;
    spec.pair_gbits = pair;
    spec.all_gbits = all;
    return spec;
}

TEST(the_slower_link_is_named) {
    struct aggregate_runs_case spec = case_of(COST_MODEL_PS, 2, 2);
    json_t *runs[5];
    for (int i = 0; i < 5; i++)
        runs[i] = run(100, 0, 0.001, 0.3, 0.001);
    expect_limit(linked(spec, 1, 1, 1), runs[0], "worker link");
    expect_limit(linked(spec, 1, 0.1, 0.1), runs[1], "ps link");
    expect_limit(linked(spec, 0.1, 0.1, 0.19), runs[2], "worker link");
    spec.ps = 1;
    expect_limit(linked(spec, 0.1, 0.1, 0.19), runs[3], "worker link");
    expect_limit(linked(spec, 0.1, 0.1, 0.1), runs[4], "ps link");
}

TEST(the_slower_link_gives_the_bound) {
    struct aggregate_runs_case spec =
        linked(case_of(COST_MODEL_PS, 4, 1), 0.2, 0.2, 0.4);
    json_t *runs = json_array();
    json_array_append_new(runs, run(100, 0, 0.001, 0.3, 0));
    struct aggregate aggregate = judge(spec, runs);
    near(number(aggregate.object, NULL, "worker_link_gbits"), 0.2);
    near(number(aggregate.object, NULL, "ps_link_gbits"), 0.4);
    near(number(aggregate.object, NULL, "bound_examples_per_second"),
         4 * 32 / (4 * 4e6 / network_bound_payload(0.4)));
    json_decref(aggregate.object);
    /* One worker alone cannot saturate a ps that is faster than it. */
    runs = json_array();
    json_array_append_new(runs, run(100, 0, 0.001, 0.3, 0));
    aggregate =
        judge(linked(case_of(COST_MODEL_PS, 1, 1), 0.2, 0.2, 0.2), runs);
    near(number(aggregate.object, NULL, "ps_link_gbits"), 0.2);
    json_decref(aggregate.object);
}

/* A rate that was given is every link's. */
TEST(a_given_rate_applies_to_all_links) {
    struct aggregate_runs_case spec =
        linked(case_of(COST_MODEL_PS, 2, 2), 5, 0.1, 0.1);
    spec.link_gbits = 1;
    expect_limit(spec, run(100, 0, 0.001, 0.3, 0.001), "worker link");
}

TEST(two_runs_have_no_spread_and_are_not_faster) {
    json_t *runs = json_array();
    json_array_append_new(runs, run(900, 0, 0.01, 0.001, 0));
    json_array_append_new(runs, run(900, 0, 0.01, 0.001, 0));
    struct aggregate two = judge(case_of(COST_MODEL_PS, 2, 2), runs),
                     slow = two;
    const json_t *speed = json_object_get(two.object, "examples_per_second");
    assert_true(json_is_null(json_object_get(speed, "spread")));
    near(number(speed, NULL, "mean"), 900);
    slow.rate = 1;
    slow.half_width = 0.5;
    assert_false(aggregate_runs_is_faster(&two, &slow) ||
                 aggregate_runs_is_faster(&slow, &two));
    json_decref(two.object);
}

TEST(without_measurements_there_is_no_figure) {
    struct aggregate aggregate =
        judge(case_of(COST_MODEL_RING, 2, 0), json_array());
    assert_true(isnan(aggregate.rate));
    assert_string_equal(
        json_string_value(json_object_get(aggregate.object, "mode")),
        "allreduce");
    near(number(aggregate.object, NULL, "runs"), 0);
    json_decref(aggregate.object);
}

enum { MAXIMUM = 5 };
struct lot {
    struct aggregate aggregates[MAXIMUM];
    unsigned count;
};

static void add(struct lot *lot, enum cost_model_mode mode, unsigned workers,
                unsigned ps, double rate) {
    struct aggregate_runs_case spec = case_of(mode, workers, ps);
    json_t *runs = json_array();
    spec.link_gbits = 1;
    if (rate > 0)
        json_array_append_new(runs, run(rate, 0, 0.0, 0.06, 0));
    lot->aggregates[lot->count++] = judge(spec, runs);
}

static void forget(struct lot *lot) {
    while (lot->count)
        json_decref(lot->aggregates[--lot->count].object);
}

TEST(speedup_is_relative_to_the_fewest_workers) {
    struct lot lot = {0};
    add(&lot, COST_MODEL_PS, 4, 1, 1500);
    add(&lot, COST_MODEL_PS, 2, 1, 1000);
    add(&lot, COST_MODEL_PS, 4, 2, 9999);
    add(&lot, COST_MODEL_RING, 4, 0, 0);
    add(&lot, COST_MODEL_PS_ASYNC, 8, 1, 9999);
    aggregate_runs_add_scaling(lot.aggregates, lot.count);
    near(number(lot.aggregates[0].object, NULL, "speed_up"), 3);
    near(number(lot.aggregates[0].object, NULL, "ideal_speed_up"), 4);
    near(number(lot.aggregates[0].object, NULL, "efficiency"), 0.75);
    near(number(lot.aggregates[1].object, NULL, "speed_up"), 2);
    assert_true(
        json_is_null(json_object_get(lot.aggregates[2].object, "speed_up")));
    assert_true(
        json_is_null(json_object_get(lot.aggregates[3].object, "efficiency")));
    assert_true(
        json_is_null(json_object_get(lot.aggregates[4].object, "speed_up")));
    forget(&lot);
}
