/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/compare/verdict.h"

#include "chief/plan/bound.h"
#include "proto/net/messages/message.h"
#include "proto/tensor/layout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double NOTED = 0.25; /* of a step: the first samples of a short
                                     run come late, too */
/* Two runs that are alike by chance have a narrow interval, wherever the others
 * of their case would lie. */
enum { LEAST_RUNS = 3 };
static const double NOTABLY = 1.6, FILLED = 0.85; /* rates of short bursts */

/* Medians of the runs, seconds of a step. */
struct times {
    double input, compute, weights, gradients, update;
};

static double number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Of what several runs have at one key; NAN: none has it. HALF: of the interval
 * around the mean; NAN: fewer than LEAST_RUNS have it. */
struct range {
    double median, least, most, mean, half;
};

/* Fills mean and half of Student's 95 % interval, t s / sqrt(n) with the
 * sample's standard deviation s. The quantiles of t at 0.975 are those of 1
 * degree of freedom and more; beyond the last it is at most a twentieth too
 * wide (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.5.2, 1.3.6.7.2).
 */
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
    if (count >= LEAST_RUNS)
        range->half = quantiles[freedom - 1] *
                      sqrt(squares / (double)(count - 1) / (double)count);
}

/* Writes what RUNS have at KEY, of their member INSIDE unless that is NULL, in
 * ascending order; returns how many have it. */
static size_t collect(const json_t *runs, const char *inside, const char *key,
                      double *values) {
    size_t i, count = 0;
    const json_t *run;
    json_array_foreach(runs, i, run) {
        double value = number(inside ? json_object_get(run, inside) : run, key);
        if (isfinite(value))
            values[count++] = value;
    }
    qsort(values, count, sizeof *values, ascending);
    return count;
}

/* Without memory for them they count as not told. */
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

double verdict_median(const json_t *runs, const char *key) {
    return median(runs, NULL, key);
}

static void set_real(json_t *object, const char *key, double value) {
    json_object_set_new(object, key,
                        isfinite(value) ? json_real(value) : json_null());
}

static json_t *range_object(const struct range *range) {
    json_t *object = json_object();
    set_real(object, "median", range->median);
    set_real(object, "min", range->least);
    set_real(object, "max", range->most);
    set_real(object, "mean", range->mean);
    set_real(object, "spread", range->half);
    return object;
}

static double or_zero(double value) {
    return isfinite(value) ? value : 0;
}

static struct times times_of(const json_t *runs) {
    static const char within[] = "seconds_per_step";
    return (struct times){
        .input = or_zero(median(runs, within, "input")),
        .compute = or_zero(median(runs, within, "compute")),
        .weights = or_zero(median(runs, within, "waiting_for_weights")),
        .gradients = or_zero(median(runs, within, "waiting_for_gradients")),
        .update = or_zero(median(runs, within, "update"))};
}

/* The reader works beside the rest: where a step waits for it, it takes as long
 * as the step. */
static double reading(const struct times *times) {
    double step =
        times->input + times->compute + times->weights + times->gradients;
    return times->input > NOTED * step ? step : 0;
}

/* Gbit/s of a worker's host and of a ps's; 0: not known. */
struct links {
    double worker, ps;
};

/* A worker and a ps pass what the slower of both links does. Two workers pass
 * more where the ps's is the slower one; all workers at once pass more where
 * theirs are, and where they pass as many times more as they are, the ps's link
 * has never been full. */
static struct links links_of(const struct verdict_case *of, double pair) {
    struct links links = {pair, pair};
    double all = of->all_gbits;
    if (of->mode == PREDICT_RING || of->link_gbits > 0 || !(pair > 0))
        return links;
    if (of->worker_gbits > NOTABLY * pair)
        links.worker = of->worker_gbits;
    if (of->workers > 1 && all >= FILLED * of->workers * pair)
        links.ps = INFINITY;
    else if (all > NOTABLY * pair)
        links.ps = all;
    return links;
}

/* As layout_build cuts them and placement_greedy shares them out, but for the
 * ends of parameters. */
static void add_blocks(struct predict_case *given, double gbits) {
    double bytes = sizeof(float) * given->parameters;
    double block = layout_block_bytes((uint64_t)bytes);
    double most = ceil(ceil(bytes / block) / given->ps) * block;
    if (!(bytes > 0))
        return;
    double wire = given->element_bytes / sizeof(float);
    given->fullest = fmin(1, most / bytes);
    given->message =
        fmin(fmax(message_group(gbits), wire * block), wire * most);
}

static struct predict_case measured(const struct verdict_case *of,
                                    const json_t *runs,
                                    const struct times *times,
                                    const struct links *links) {
    double gbits = links->worker;
    double elements = median(runs, NULL, "parameters");
    double share = of->mode == PREDICT_RING ? 1 : (double)of->workers / of->ps;
    struct predict_case given = {
        .parameters = or_zero(elements),
        .element_bytes = or_zero(median(runs, NULL, "wire_bytes") / elements),
        .link = gbits > 0 ? bound_payload(gbits) : INFINITY,
        .ps_link = gbits > 0 ? bound_payload(links->ps) : 0,
        .inner = INFINITY,
        .latency = gbits > 0 ? of->latency : 0,
        .compute = times->compute,
        .input = reading(times),
        .overlap = 2.0 / 3,
        .update = or_zero(times->update / (share * elements)),
        .workers = of->workers,
        .per_host = 1,
        .ps = of->ps ? of->ps : 1,
        .clip = of->clip,
    };
    if (gbits > 0 && of->mode != PREDICT_RING)
        add_blocks(&given, fmin(gbits, links->ps));
    return given;
}

/* The busiest but computing. */
static enum predict_limit busiest_besides(const struct predict_step *step) {
    enum predict_limit best = PREDICT_WORKER_LINK;
    for (int i = 0; i < PREDICT_LIMITS; i++)
        if (i != PREDICT_COMPUTE && step->busy[i] > step->busy[best])
            best = (enum predict_limit)i;
    return best;
}

/* What the formulas name, unless the measured times speak against it. */
static const char *limit_of(const struct predict_step *step,
                            const struct times *times, bool linked) {
    double waiting = times->weights + times->gradients;
    if (times->input > times->compute && times->input > waiting)
        return predict_limit_name(PREDICT_INPUT);
    if (waiting <= times->compute || step->limit != PREDICT_COMPUTE)
        return predict_limit_name(step->limit);
    if (linked || times->update > waiting / 2)
        return predict_limit_name(busiest_besides(step));
    return "messages";
}

static json_t *times_object(const struct times *times) {
    json_t *object = json_object();
    set_real(object, "input", times->input);
    set_real(object, "compute", times->compute);
    set_real(object, "waiting_for_weights", times->weights);
    set_real(object, "waiting_for_gradients", times->gradients);
    set_real(object, "update", times->update);
    return object;
}

static const char *mode_name(enum predict_mode mode) {
    return mode == PREDICT_RING ? "allreduce" : predict_mode_name(mode);
}

static json_t *describe(const struct verdict_case *of, size_t runs) {
    json_t *object = json_object();
    json_object_set_new(object, "mode", json_string(mode_name(of->mode)));
    json_object_set_new(object, "workers", json_integer(of->workers));
    json_object_set_new(object, "ps", json_integer(of->ps));
    json_object_set_new(object, "processes",
                        of->here ? json_integer(of->workers + of->ps)
                                 : json_null());
    json_object_set_new(object, "runs", json_integer((json_int_t)runs));
    return object;
}

/* Gbit/s between who exchanges; 0: not known. */
static double rate_of(const struct verdict_case *of, const json_t *runs) {
    if (of->link_gbits > 0)
        return of->link_gbits;
    double known = of->mode == PREDICT_RING ? of->worker_gbits : of->pair_gbits;
    return known > 0 ? known : or_zero(median(runs, NULL, "link_gbits"));
}

/* Of all workers, on the devices that the runs had. */
static double replicas_of(const struct verdict_case *of, const json_t *runs) {
    double replicas = median(runs, NULL, "replicas");
    return replicas > 0 ? replicas : of->workers;
}

/* The bound of these runs and what limits them, by the links that they used;
 * ONCE: the samples of a step. */
static void add_bound(struct verdict *verdict, const struct verdict_case *of,
                      const json_t *runs, double once) {
    json_t *object = verdict->object;
    double gbits = of->here ? 0 : rate_of(of, runs);
    struct links links = links_of(of, gbits);
    struct times times = times_of(runs);
    struct predict_case given = measured(of, runs, &times, &links);
    struct predict_step step = predict_step(&given, of->mode);
    set_real(object, "link_gbits", gbits > 0 ? gbits : NAN);
    set_real(object, "worker_link_gbits", gbits > 0 ? links.worker : NAN);
    set_real(object, "ps_link_gbits",
             gbits > 0 && of->mode != PREDICT_RING ? links.ps : NAN);
    set_real(object, "bound_examples_per_second", once / step.bound);
    set_real(object, "reached", verdict->rate * step.bound / once);
    json_object_set_new(object, "limit",
                        json_string(limit_of(&step, &times, gbits > 0)));
}

static void add_prediction(struct verdict *verdict,
                           const struct verdict_case *of, const json_t *runs,
                           double once) {
    double gbits = rate_of(of, runs);
    struct links links = links_of(of, gbits);
    struct times times = times_of(runs);
    verdict->linked = gbits > 0;
    verdict->given = measured(of, runs, &times, &links);
    set_real(verdict->object, "predicted_examples_per_second",
             once / predict_step(&verdict->given, of->mode).seconds);
}

static void judge(struct verdict *verdict, const struct verdict_case *of,
                  const json_t *runs) {
    json_t *object = verdict->object;
    struct times times = times_of(runs);
    double replicas = replicas_of(of, runs);
    double once = of->samples * replicas;
    json_object_set_new(object, "replicas", json_integer((json_int_t)replicas));
    struct range examples = range_of(runs, NULL, "examples_per_second");
    struct range steps = range_of(runs, NULL, "steps_per_second");
    verdict->rate = examples.median;
    verdict->mean = examples.mean;
    verdict->half = examples.half;
    json_object_set_new(object, "examples_per_second", range_object(&examples));
    json_object_set_new(object, "steps_per_second", range_object(&steps));
    set_real(object, "bytes_per_step", median(runs, NULL, "bytes_per_step"));
    json_object_set_new(object, "seconds_per_step", times_object(&times));
    add_bound(verdict, of, runs, once);
    add_prediction(verdict, of, runs, once);
}

struct verdict verdict_of(const struct verdict_case *of, const json_t *runs) {
    struct verdict verdict = {.rate = NAN,
                              .mean = NAN,
                              .half = NAN,
                              .object = describe(of, json_array_size(runs))};
    if (json_array_size(runs))
        judge(&verdict, of, runs);
    return verdict;
}

static double count_at(const struct verdict *verdict, const char *key) {
    return number(verdict->object, key);
}

static bool same(const struct verdict *a, const struct verdict *b,
                 const char *key) {
    return json_equal(json_object_get(a->object, key),
                      json_object_get(b->object, key));
}

void verdict_scale(const struct verdict *verdicts, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        const struct verdict *one = &verdicts[i], *least = NULL;
        bool alone = true;
        for (unsigned k = 0; k < count; k++) {
            const struct verdict *other = &verdicts[k];
            if (!same(one, other, "mode") || !same(one, other, "ps") ||
                isnan(other->rate))
                continue;
            alone &= same(one, other, "replicas");
            if (!least ||
                count_at(other, "replicas") < count_at(least, "replicas"))
                least = other;
        }
        double up = least && !alone
                        ? one->rate / least->rate * count_at(least, "replicas")
                        : NAN;
        set_real(one->object, "speed_up", up);
        set_real(one->object, "ideal_speed_up",
                 isnan(up) ? NAN : count_at(one, "replicas"));
        set_real(one->object, "efficiency", up / count_at(one, "replicas"));
    }
}

bool verdict_faster(const struct verdict *a, const struct verdict *b) {
    return a->mean - a->half > b->mean + b->half;
}
