/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/compare/predict.h"

#include <math.h>

static const double NOTHING = 1e-12; /* seconds */

static bool reduces(enum predict_mode mode) {
    return mode == PREDICT_RING || mode == PREDICT_HALVING;
}

/* Whatever the wire of a ps's job, gradients are summed as float32. */
static double summed_bytes(const struct predict_case *given) {
    return given->parameters * sizeof(float);
}

static double on_a_host(const struct predict_case *given) {
    return given->per_host < given->workers ? given->per_host : given->workers;
}

static double hosts(const struct predict_case *given) {
    return ceil((double)given->workers / on_a_host(given));
}

static double ps_link(const struct predict_case *given) {
    return given->ps_link > 0 ? given->ps_link : given->link;
}

/* Each worker's gradients pass its host's link and that of a ps, its weights
 * the other way at the same time. */
static void busy_ps(const struct predict_case *given, double *busy) {
    double bytes = given->parameters * given->element_bytes;
    double share = (double)given->workers / given->ps;
    double times = given->clip ? 2 : 1;
    busy[PREDICT_WORKER_LINK] = times * on_a_host(given) * bytes / given->link;
    busy[PREDICT_PS_LINK] = times * share * bytes / ps_link(given);
    busy[PREDICT_PS_ARITHMETIC] = share * given->parameters * given->update;
    busy[PREDICT_LATENCY] = 2 * times * given->latency;
}

/* Between hosts, each of which holds the sum of its workers. */
static void busy_ring(const struct predict_case *given, double *busy) {
    double many = hosts(given);
    double once = summed_bytes(given) / given->link;
    busy[PREDICT_WORKER_LINK] = 2 * (many - 1) / many * once;
    busy[PREDICT_LATENCY] = 2 * (many - 1) * given->latency;
}

/* Those beyond a power of two hand theirs to a neighbour first and get the sum
 * from it last. */
static void busy_halving(const struct predict_case *given, double *busy) {
    double many = hosts(given), rounds = floor(log2(many));
    double power = exp2(rounds), fold = power < many ? 2 : 0;
    double once = summed_bytes(given) / given->link;
    busy[PREDICT_WORKER_LINK] = (2 * (power - 1) / power + fold) * once;
    busy[PREDICT_LATENCY] = (2 * rounds + fold) * given->latency;
}

static void busy_in(const struct predict_case *given, enum predict_mode mode,
                    double *busy) {
    double around = on_a_host(given);
    for (int i = 0; i < PREDICT_LIMITS; i++)
        busy[i] = 0;
    busy[PREDICT_COMPUTE] = given->compute;
    busy[PREDICT_INPUT] = given->input;
    if (!reduces(mode)) {
        busy_ps(given, busy);
        return;
    }
    if (mode == PREDICT_RING)
        busy_ring(given, busy);
    else
        busy_halving(given, busy);
    busy[PREDICT_INNER_LINK] =
        2 * (around - 1) / around * summed_bytes(given) / given->inner;
    busy[PREDICT_COMPUTE] += given->parameters * given->update;
}

/* When the last messages of a step have come, their answers are still to go:
 * one of each ps to a worker, and where workers are in step one to each of them
 * from a ps. */
static double last_answers(const struct predict_case *given,
                           enum predict_mode mode) {
    double here = on_a_host(given) * given->ps * given->message / given->link;
    double there = given->workers * given->message / ps_link(given);
    if (given->clip)
        return 0; /* counted: all answers go after all messages */
    return mode == PREDICT_PS ? fmax(here, there) : here;
}

/* Seconds from a worker's first byte out to its last byte in. */
static double wire_of(const struct predict_case *given, const double *busy,
                      enum predict_mode mode) {
    if (reduces(mode))
        return busy[PREDICT_WORKER_LINK] + busy[PREDICT_INNER_LINK] +
               busy[PREDICT_LATENCY];
    double uneven = fmax(1, given->fullest * given->ps);
    double links = busy[PREDICT_WORKER_LINK];
    if (mode == PREDICT_PS)
        links = fmax(links, uneven * fmax(busy[PREDICT_PS_LINK],
                                          busy[PREDICT_PS_ARITHMETIC]));
    return links + last_answers(given, mode) + busy[PREDICT_LATENCY];
}

struct predict_step predict_step(const struct predict_case *given,
                                 enum predict_mode mode) {
    struct predict_step step = {0};
    struct predict_case loose = *given;
    if (mode == PREDICT_PS_FREE)
        loose.clip = false; /* a worker clips its own gradient */
    busy_in(&loose, mode, step.busy);
    for (int i = 0; i < PREDICT_LIMITS; i++)
        if (step.busy[i] > step.busy[step.limit])
            step.limit = (enum predict_limit)i;
    step.bound = step.busy[step.limit];
    step.wire = wire_of(&loose, step.busy, mode);
    step.exposed = fmax(0, step.wire - given->overlap * given->compute);
    step.seconds = fmax(step.bound, step.busy[PREDICT_COMPUTE] + step.exposed);
    step.rate = given->workers / step.seconds;
    double alone =
        fmax(given->input, given->compute + given->parameters * given->update);
    step.efficiency = alone > 0          ? alone / step.seconds
                      : step.seconds > 0 ? NAN
                                         : 1;
    return step;
}

uint32_t predict_crossover(const struct predict_case *given,
                           enum predict_mode mode) {
    struct predict_case tried = *given;
    double against = predict_step(given, mode).seconds * (1 + 1e-9);
    for (tried.ps = 1; tried.ps <= PREDICT_MOST_PS; tried.ps++)
        if (predict_step(&tried, PREDICT_PS).seconds <= against)
            return tried.ps;
    return 0;
}

double predict_crossover_wire(const struct predict_case *given,
                              enum predict_mode mode) {
    struct predict_case one = *given;
    one.ps = 1;
    double against = predict_step(given, mode).wire;
    double busy[PREDICT_LIMITS];
    busy_in(&one, PREDICT_PS, busy);
    double left = against - busy[PREDICT_LATENCY];
    if (busy[PREDICT_WORKER_LINK] > left)
        return INFINITY;
    return fmax(busy[PREDICT_PS_LINK], busy[PREDICT_PS_ARITHMETIC]) / left;
}

const char *predict_crossover_formula(void) {
    return "m >= nM/(B T), T of the ring; one worker a host, no latency, "
           "float32: m >= n^2/(2(n-1))";
}

double predict_compute_for(const struct predict_case *given,
                           enum predict_mode mode, double efficiency) {
    struct predict_case tried = *given;
    double low = 0, high = 1e-6;
    tried.input = 0;
    for (tried.compute = high;
         high < 1e9 && predict_step(&tried, mode).efficiency < efficiency;
         tried.compute = high)
        high *= 2;
    for (int i = 0; i < 100; i++) {
        tried.compute = (low + high) / 2;
        if (predict_step(&tried, mode).efficiency < efficiency)
            low = tried.compute;
        else
            high = tried.compute;
    }
    return high < NOTHING ? 0 : high;
}

const char *predict_mode_name(enum predict_mode mode) {
    static const char *const names[PREDICT_MODES] = {
        [PREDICT_PS] = "ps",
        [PREDICT_PS_FREE] = "ps-async",
        [PREDICT_RING] = "ring",
        [PREDICT_HALVING] = "halving"};
    return names[mode];
}

const char *predict_limit_name(enum predict_limit limit) {
    static const char *const names[PREDICT_LIMITS] = {
        [PREDICT_WORKER_LINK] = "worker link",
        [PREDICT_PS_LINK] = "ps link",
        [PREDICT_INNER_LINK] = "link inside a host",
        [PREDICT_LATENCY] = "latency",
        [PREDICT_PS_ARITHMETIC] = "ps arithmetic",
        [PREDICT_COMPUTE] = "compute",
        [PREDICT_INPUT] = "input"};
    return names[limit];
}
