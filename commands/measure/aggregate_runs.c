/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/aggregate_runs.h"

#include "chief/plan/network_bound.h"
#include "core/tensor/layout.h"
#include "proto/messages/message.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double MIN_INPUT_SHARE =
    0.25; /* of a step: in a short run the first samples are late too */
/* Two runs that happen to be close have a narrow interval that says nothing
 * about further runs. */
enum { MIN_RUNS = 3 };
static const double FASTER_LINK_RATIO = 1.6,
                    FULL_LINK_SHARE =
                        0.85; /* bandwidths measured in short bursts */

/* Medians of the runs, seconds per step. */
struct times {
    double input; /* NAN: unknown */
    double compute, weights, gradients, update;
};

static double aggregate_runs_number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static int aggregate_runs_ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* The values of several runs at one key; NAN: none has it. HALF: of the
 * interval around the mean; NAN: fewer than MIN_RUNS have it. */
struct range {
    double median, least, most, mean, half_width;
};

/* Fills the mean and half of Student's 95 % interval, t s / sqrt(n) with the
 * sample's standard deviation s. The quantiles of t at 0.975 start at 1 degree
 * of freedom; beyond the last one the interval is at most a twentieth too wide
 * (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.5.2, 1.3.6.7.2). */
static void find_interval(struct range *range, const double *values,
                          size_t count) {
    static const double quantiles[] = {
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
        2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
        2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
    enum { QUANTILES = sizeof quantiles / sizeof *quantiles };
    double squares = 0;
    range->mean = 0;
    for (size_t i = 0; i < count; i++)
        range->mean += values[i] / (double)count;
    for (size_t i = 0; i < count; i++)
        squares += pow(values[i] - range->mean, 2);
    size_t freedom = count - 1 < QUANTILES ? count - 1 : QUANTILES;
    if (count >= MIN_RUNS)
        range->half_width = quantiles[freedom - 1] *
                            sqrt(squares / (double)(count - 1) / (double)count);
}

/* Writes the values at KEY in RUNS, or at KEY in their member INSIDE if not
 * NULL, in ascending order; returns their number. */
static size_t collect(const json_t *runs, const char *inside, const char *key,
                      double *values) {
    size_t i, count = 0;
    const json_t *run;
    json_array_foreach(runs, i, run) {
        double value = aggregate_runs_number(
            inside ? json_object_get(run, inside) : run, key);
        if (isfinite(value))
            values[count++] = value;
    }
    qsort(values, count, sizeof *values, aggregate_runs_ascending);
    return count;
}

/* Without memory the values count as missing. */
static struct range range_of(const json_t *runs, const char *inside,
                             const char *key) {
    struct range range = {NAN, NAN, NAN, NAN, NAN};
    double *values = calloc(json_array_size(runs) + 1, sizeof *values);
    size_t count = values ? collect(runs, inside, key, values) : 0;
    if (count) {
        range.median = (values[(count - 1) / 2] + values[count / 2]) / 2;
        range.least = values[0];
        range.most = values[count - 1];
        find_interval(&range, values, count);
    }
    free(values);
    return range;
}

static double median(const json_t *runs, const char *inside, const char *key) {
    return range_of(runs, inside, key).median;
}

double aggregate_runs_median(const json_t *runs, const char *key) {
    return median(runs, NULL, key);
}

static void aggregate_runs_set_real(json_t *object, const char *key,
                                    double value) {
    json_object_set_new(object, key,
                        isfinite(value) ? json_real(value) : json_null());
}

static json_t *range_object(const struct range *range) {
    json_t *object = json_object();
    aggregate_runs_set_real(object, "median", range->median);
    aggregate_runs_set_real(object, "min", range->least);
    aggregate_runs_set_real(object, "max", range->most);
    aggregate_runs_set_real(object, "mean", range->mean);
    aggregate_runs_set_real(object, "spread", range->half_width);
    return object;
}

static double or_zero(double value) {
    return isfinite(value) ? value : 0;
}

static struct times times_of(const json_t *runs) {
    static const char within[] = "seconds_per_step";
    return (struct times){
        .input = median(runs, within, "input"),
        .compute = or_zero(median(runs, within, "compute")),
        .weights = or_zero(median(runs, within, "waiting_for_weights")),
        .gradients = or_zero(median(runs, within, "waiting_for_gradients")),
        .update = or_zero(median(runs, within, "update"))};
}

/* The reader runs in parallel: if a step waits for it, reading takes as long as
 * the step. */
static double input_seconds(const struct times *times) {
    double step =
        times->input + times->compute + times->weights + times->gradients;
    return times->input > MIN_INPUT_SHARE * step ? step : 0;
}

/* Gbit/s of a worker's host and of a ps's host; 0: unknown. */
struct links {
    double worker, ps;
};

/* A worker and a ps transfer at the rate of the slower of their links. If the
 * ps's link is the slower one, two workers transfer faster with each other. If
 * the workers' links are slower, all workers together transfer faster; if they
 * do so by their full number, the ps's link has never been saturated. */
static struct links links_of(const struct aggregate_runs_case *spec,
                             double pair) {
    struct links links = {pair, pair};
    double all = spec->all_gbits;
    if (spec->mode == COST_MODEL_RING || spec->link_gbits > 0 || !(pair > 0))
        return links;
    if (spec->worker_gbits > FASTER_LINK_RATIO * pair)
        links.worker = spec->worker_gbits;
    if (spec->workers > 1 && all >= FULL_LINK_SHARE * spec->workers * pair)
        links.ps = INFINITY;
    else if (all > FASTER_LINK_RATIO * pair)
        links.ps = all;
    return links;
}

/* Blocks as layout_build cuts them and placement_greedy distributes them,
 * ignoring the ends of parameters. */
static void add_blocks(struct cost_model_case *given, double gbits) {
    double bytes = sizeof(float) * given->parameters;
    double block = layout_block_bytes((uint64_t)bytes);
    double most = ceil(ceil(bytes / block) / given->ps) * block;
    if (!(bytes > 0))
        return;
    double wire = given->element_bytes / sizeof(float);
    given->max_ps_share = fmin(1, most / bytes);
    given->reply_bytes =
        fmin(fmax(message_group_bytes(gbits), wire * block), wire * most);
}

static struct cost_model_case measured(const struct aggregate_runs_case *spec,
                                       const json_t *runs,
                                       const struct times *times,
                                       const struct links *links) {
    double gbits = links->worker;
    double elements = median(runs, NULL, "parameters");
    /* A ps applies the gradients of all workers to its part of the weights; in
     * all-reduce a worker applies one sum to all of them. */
    double share =
        spec->mode == COST_MODEL_RING ? 1 : (double)spec->workers / spec->ps;
    double rows = or_zero(median(runs, NULL, "row_bytes_per_step"));
    if (spec->mode == COST_MODEL_RING) /* as of a ring that sends as many */
        rows *= spec->workers / fmax(1, 2.0 * (spec->workers - 1));
    double bytes = median(runs, NULL, "wire_bytes") + rows;
    struct cost_model_case given = {
        .parameters = or_zero(elements),
        .element_bytes = or_zero(bytes / elements),
        .link = gbits > 0 ? network_bound_payload(gbits) : INFINITY,
        .ps_link = gbits > 0 ? network_bound_payload(links->ps) : 0,
        .intra_host = INFINITY,
        .latency = gbits > 0 ? spec->latency : 0,
        .compute = times->compute,
        .input = input_seconds(times),
        .overlap = 2.0 / 3, /* the backward pass: docs/compare.md */
        .update = or_zero(times->update / (share * elements)),
        .workers = spec->workers,
        .per_host = 1,
        .ps = spec->ps ? spec->ps : 1,
        .clip = spec->clip,
    };
    if (gbits > 0 && spec->mode != COST_MODEL_RING)
        add_blocks(&given, fmin(gbits, links->ps));
    return given;
}

/* The resource with the longest use other than compute. */
static enum cost_model_limit busiest_other(const struct cost_model_step *step) {
    enum cost_model_limit best = COST_MODEL_WORKER_LINK;
    for (int i = 0; i < COST_MODEL_LIMITS; i++)
        if (i != COST_MODEL_COMPUTE && step->busy[i] > step->busy[best])
            best = (enum cost_model_limit)i;
    return best;
}

/* The cost model's limit, unless the measured times contradict it. A ps is
 * waited for while it updates; in a ring each worker updates by itself. */
static const char *limit_of(const struct cost_model_step *step,
                            const struct times *times,
                            enum cost_model_mode mode, bool linked) {
    double waiting = times->weights + times->gradients;
    bool updates = mode != COST_MODEL_RING && times->update > waiting / 2;
    if (times->input > times->compute && times->input > waiting)
        return cost_model_limit_name(COST_MODEL_INPUT);
    if (waiting <= times->compute || step->limit != COST_MODEL_COMPUTE)
        return cost_model_limit_name(step->limit);
    if (linked || updates)
        return cost_model_limit_name(busiest_other(step));
    return "messages";
}

static json_t *times_object(const struct times *times) {
    json_t *object = json_object();
    aggregate_runs_set_real(object, "input", times->input);
    aggregate_runs_set_real(object, "compute", times->compute);
    aggregate_runs_set_real(object, "waiting_for_weights", times->weights);
    aggregate_runs_set_real(object, "waiting_for_gradients", times->gradients);
    aggregate_runs_set_real(object, "update", times->update);
    return object;
}

static const char *mode_name(enum cost_model_mode mode) {
    return mode == COST_MODEL_RING ? "allreduce" : cost_model_mode_name(mode);
}

static json_t *aggregate_runs_describe(const struct aggregate_runs_case *spec,
                                       size_t runs) {
    json_t *object = json_object();
    json_object_set_new(object, "mode", json_string(mode_name(spec->mode)));
    json_object_set_new(object, "workers", json_integer(spec->workers));
    json_object_set_new(object, "ps", json_integer(spec->ps));
    json_object_set_new(object, "processes",
                        spec->local ? json_integer(spec->workers + spec->ps)
                                    : json_null());
    json_object_set_new(object, "runs", json_integer((json_int_t)runs));
    return object;
}

/* Gbit/s between the peers of the exchange; 0: unknown. */
static double rate_of(const struct aggregate_runs_case *spec,
                      const json_t *runs) {
    if (spec->link_gbits > 0)
        return spec->link_gbits;
    double known =
        spec->mode == COST_MODEL_RING ? spec->worker_gbits : spec->pair_gbits;
    return known > 0 ? known : or_zero(median(runs, NULL, "link_gbits"));
}

/* Replicas of all workers, from the devices that the runs used. */
static double replicas_of(const struct aggregate_runs_case *spec,
                          const json_t *runs) {
    double replicas = median(runs, NULL, "replicas");
    return replicas > 0 ? replicas : spec->workers;
}

/* Adds the bound of these runs and their limit, with the links that they used.
 * ONCE: the samples of a step. */
static void add_bound(struct aggregate *aggregate,
                      const struct aggregate_runs_case *spec,
                      const json_t *runs, double once) {
    json_t *object = aggregate->object;
    double gbits = spec->local ? 0 : rate_of(spec, runs);
    struct links links = links_of(spec, gbits);
    struct times times = times_of(runs);
    struct cost_model_case given = measured(spec, runs, &times, &links);
    struct cost_model_step step = cost_model_step(&given, spec->mode);
    aggregate_runs_set_real(object, "link_gbits", gbits > 0 ? gbits : NAN);
    aggregate_runs_set_real(object, "worker_link_gbits",
                            gbits > 0 ? links.worker : NAN);
    aggregate_runs_set_real(
        object, "ps_link_gbits",
        gbits > 0 && spec->mode != COST_MODEL_RING ? links.ps : NAN);
    aggregate_runs_set_real(object, "bound_examples_per_second",
                            once / step.bound);
    aggregate_runs_set_real(object, "reached",
                            aggregate->rate * step.bound / once);
    json_object_set_new(
        object, "limit",
        json_string(limit_of(&step, &times, spec->mode, gbits > 0)));
}

static void add_prediction(struct aggregate *aggregate,
                           const struct aggregate_runs_case *spec,
                           const json_t *runs, double once) {
    double gbits = rate_of(spec, runs);
    struct links links = links_of(spec, gbits);
    struct times times = times_of(runs);
    aggregate->linked = gbits > 0;
    aggregate->given = measured(spec, runs, &times, &links);
    aggregate_runs_set_real(
        aggregate->object, "predicted_examples_per_second",
        once / cost_model_step(&aggregate->given, spec->mode).seconds);
}

static void add_measurements(struct aggregate *aggregate,
                             const struct aggregate_runs_case *spec,
                             const json_t *runs) {
    json_t *object = aggregate->object;
    struct times times = times_of(runs);
    double replicas = replicas_of(spec, runs);
    double once = spec->samples * replicas;
    double devices = median(runs, NULL, "devices");
    json_object_set_new(object, "replicas", json_integer((json_int_t)replicas));
    json_object_set_new(object, "devices",
                        devices > 0 ? json_integer((json_int_t)devices)
                                    : json_null());
    struct range examples = range_of(runs, NULL, "examples_per_second");
    struct range steps = range_of(runs, NULL, "steps_per_second");
    aggregate->rate = examples.mean;
    aggregate->half_width = examples.half_width;
    json_object_set_new(object, "examples_per_second", range_object(&examples));
    json_object_set_new(object, "steps_per_second", range_object(&steps));
    aggregate_runs_set_real(object, "bytes_per_step",
                            median(runs, NULL, "bytes_per_step"));
    json_object_set_new(object, "seconds_per_step", times_object(&times));
    add_bound(aggregate, spec, runs, once);
    add_prediction(aggregate, spec, runs, once);
}

struct aggregate aggregate_runs(const struct aggregate_runs_case *spec,
                                const json_t *runs) {
    struct aggregate aggregate = {
        .rate = NAN,
        .half_width = NAN,
        .object = aggregate_runs_describe(spec, json_array_size(runs))};
    if (json_array_size(runs))
        add_measurements(&aggregate, spec, runs);
    return aggregate;
}

static double aggregate_runs_count_at(const struct aggregate *aggregate,
                                      const char *key) {
    return aggregate_runs_number(aggregate->object, key);
}

static bool aggregate_runs_is_same(const struct aggregate *a,
                                   const struct aggregate *b, const char *key) {
    return json_equal(json_object_get(a->object, key),
                      json_object_get(b->object, key));
}

void aggregate_runs_add_scaling(const struct aggregate *aggregates,
                                unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        const struct aggregate *one = &aggregates[i], *least = NULL;
        bool alone = true;
        for (unsigned k = 0; k < count; k++) {
            const struct aggregate *other = &aggregates[k];
            if (!aggregate_runs_is_same(one, other, "mode") ||
                !aggregate_runs_is_same(one, other, "ps") || isnan(other->rate))
                continue;
            alone &= aggregate_runs_is_same(one, other, "replicas");
            if (!least || aggregate_runs_count_at(other, "replicas") <
                              aggregate_runs_count_at(least, "replicas"))
                least = other;
        }
        double up = least && !alone
                        ? one->rate / least->rate *
                              aggregate_runs_count_at(least, "replicas")
                        : NAN;
        aggregate_runs_set_real(one->object, "speed_up", up);
        aggregate_runs_set_real(
            one->object, "ideal_speed_up",
            isnan(up) ? NAN : aggregate_runs_count_at(one, "replicas"));
        aggregate_runs_set_real(one->object, "efficiency",
                                up / aggregate_runs_count_at(one, "replicas"));
    }
}

bool aggregate_runs_is_faster(const struct aggregate *a,
                              const struct aggregate *b) {
    return a->rate - a->half_width > b->rate + b->half_width;
}
