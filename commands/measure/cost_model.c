/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/cost_model.h"

#include <math.h>

static const double NEGLIGIBLE = 1e-12; /* seconds */

static bool is_allreduce(enum cost_model_mode mode) {
    return mode == COST_MODEL_RING || mode == COST_MODEL_HALVING;
}

/* Gradients are always summed as float32, whatever the wire format of a ps's
 * job. */
static double summed_bytes(const struct cost_model_case *given) {
    return given->parameters * sizeof(float);
}

static double workers_on_host(const struct cost_model_case *given) {
    return given->per_host < given->workers ? given->per_host : given->workers;
}

static double num_hosts(const struct cost_model_case *given) {
    return ceil((double)given->workers / workers_on_host(given));
}

static double ps_link(const struct cost_model_case *given) {
    return given->ps_link > 0 ? given->ps_link : given->link;
}

/* The gradients of each worker cross its host's link and that of a ps; its
 * weights cross them in the other direction at the same time. */
static void busy_ps(const struct cost_model_case *given, double *busy) {
    double bytes = given->parameters * given->element_bytes;
    double share = (double)given->workers / given->ps;
    double times = given->clip ? 2 : 1;
    busy[COST_MODEL_WORKER_LINK] =
        times * workers_on_host(given) * bytes / given->link;
    busy[COST_MODEL_PS_LINK] = times * share * bytes / ps_link(given);
    busy[COST_MODEL_PS_ARITHMETIC] = share * given->parameters * given->update;
    busy[COST_MODEL_LATENCY] = 2 * times * given->latency;
}

/* The ring between hosts, each of which has the sum of its workers. */
static void busy_ring(const struct cost_model_case *given, double *busy) {
    double host_count = num_hosts(given);
    double once = summed_bytes(given) / given->link;
    busy[COST_MODEL_WORKER_LINK] = 2 * (host_count - 1) / host_count * once;
    busy[COST_MODEL_LATENCY] = 2 * (host_count - 1) * given->latency;
}

/* Hosts beyond a power of two first give their data to a neighbour and finally
 * get the sum from it. */
static void busy_halving(const struct cost_model_case *given, double *busy) {
    double host_count = num_hosts(given), rounds = floor(log2(host_count));
    double power = exp2(rounds), fold = power < host_count ? 2 : 0;
    double once = summed_bytes(given) / given->link;
    busy[COST_MODEL_WORKER_LINK] = (2 * (power - 1) / power + fold) * once;
    busy[COST_MODEL_LATENCY] = (2 * rounds + fold) * given->latency;
}

static void fill_busy(const struct cost_model_case *given,
                      enum cost_model_mode mode, double *busy) {
    double around = workers_on_host(given);
    for (int i = 0; i < COST_MODEL_LIMITS; i++)
        busy[i] = 0;
    busy[COST_MODEL_COMPUTE] = given->compute;
    busy[COST_MODEL_INPUT] = given->input;
    if (!is_allreduce(mode)) {
        busy_ps(given, busy);
        return;
    }
    if (mode == COST_MODEL_RING)
        busy_ring(given, busy);
    else
        busy_halving(given, busy);
    busy[COST_MODEL_INTRA_HOST_LINK] =
        2 * (around - 1) / around * summed_bytes(given) / given->intra_host;
    busy[COST_MODEL_COMPUTE] += given->parameters * given->update;
}

/* After the last messages of a step their replies remain: one from each ps to a
 * worker, and if workers run in step one from a ps to each of them. */
static double last_replies(const struct cost_model_case *given,
                           enum cost_model_mode mode) {
    double worker_side =
        workers_on_host(given) * given->ps * given->reply_bytes / given->link;
    double ps_side = given->workers * given->reply_bytes / ps_link(given);
    if (given->clip)
        return 0; /* already counted: with clipping all replies follow all
                     messages */
    return mode == COST_MODEL_PS ? fmax(worker_side, ps_side) : worker_side;
}

/* Seconds from the first byte that a worker sends to the last byte that it
 * receives. */
static double exchange_seconds(const struct cost_model_case *given,
                               const double *busy, enum cost_model_mode mode) {
    if (is_allreduce(mode))
        return busy[COST_MODEL_WORKER_LINK] + busy[COST_MODEL_INTRA_HOST_LINK] +
               busy[COST_MODEL_LATENCY];
    double uneven = fmax(1, given->max_ps_share * given->ps);
    double links = busy[COST_MODEL_WORKER_LINK];
    if (mode == COST_MODEL_PS)
        links = fmax(links, uneven * fmax(busy[COST_MODEL_PS_LINK],
                                          busy[COST_MODEL_PS_ARITHMETIC]));
    return links + last_replies(given, mode) + busy[COST_MODEL_LATENCY];
}

struct cost_model_step cost_model_step(const struct cost_model_case *given,
                                       enum cost_model_mode mode) {
    struct cost_model_step step = {0};
    struct cost_model_case relaxed = *given;
    if (mode == COST_MODEL_PS_ASYNC)
        relaxed.clip =
            false; /* with staleness a worker clips its own gradient */
    fill_busy(&relaxed, mode, step.busy);
    for (int i = 0; i < COST_MODEL_LIMITS; i++)
        if (step.busy[i] > step.busy[step.limit])
            step.limit = (enum cost_model_limit)i;
    step.bound = step.busy[step.limit];
    step.wire = exchange_seconds(&relaxed, step.busy, mode);
    step.exposed = fmax(0, step.wire - given->overlap * given->compute);
    step.seconds =
        fmax(step.bound, step.busy[COST_MODEL_COMPUTE] + step.exposed);
    step.rate = given->workers / step.seconds;
    double alone =
        fmax(given->input, given->compute + given->parameters * given->update);
    step.efficiency = alone > 0          ? alone / step.seconds
                      : step.seconds > 0 ? NAN
                                         : 1;
    return step;
}

uint32_t cost_model_crossover(const struct cost_model_case *given,
                              enum cost_model_mode mode) {
    struct cost_model_case tried = *given;
    double against = cost_model_step(given, mode).seconds * (1 + 1e-9);
    for (tried.ps = 1; tried.ps <= COST_MODEL_MAX_PS; tried.ps++)
        if (cost_model_step(&tried, COST_MODEL_PS).seconds <= against)
            return tried.ps;
    return 0;
}

double cost_model_crossover_wire(const struct cost_model_case *given,
                                 enum cost_model_mode mode) {
    struct cost_model_case one = *given;
    one.ps = 1;
    double against = cost_model_step(given, mode).wire;
    double busy[COST_MODEL_LIMITS];
    fill_busy(&one, COST_MODEL_PS, busy);
    double remaining = against - busy[COST_MODEL_LATENCY];
    if (busy[COST_MODEL_WORKER_LINK] > remaining)
        return INFINITY;
    return fmax(busy[COST_MODEL_PS_LINK], busy[COST_MODEL_PS_ARITHMETIC]) /
           remaining;
}

const char *cost_model_crossover_formula(void) {
    return "m >= nM/(B T), T of the ring; one worker a host, no latency, "
           "float32: m >= n^2/(2(n-1))";
}

double cost_model_compute_for_efficiency(const struct cost_model_case *given,
                                         enum cost_model_mode mode,
                                         double efficiency) {
    struct cost_model_case tried = *given;
    double low = 0, high = 1e-6;
    tried.input = 0;
    for (tried.compute = high;
         high < 1e9 && cost_model_step(&tried, mode).efficiency < efficiency;
         tried.compute = high)
        high *= 2;
    for (int i = 0; i < 100; i++) {
        tried.compute = (low + high) / 2;
        if (cost_model_step(&tried, mode).efficiency < efficiency)
            low = tried.compute;
        else
            high = tried.compute;
    }
    return high < NEGLIGIBLE ? 0 : high;
}

const char *cost_model_mode_name(enum cost_model_mode mode) {
    static const char *const names[COST_MODEL_MODES] = {
        [COST_MODEL_PS] = "ps",
        [COST_MODEL_PS_ASYNC] = "ps-async",
        [COST_MODEL_RING] = "ring",
        [COST_MODEL_HALVING] = "halving"};
    return names[mode];
}

const char *cost_model_limit_name(enum cost_model_limit limit) {
    static const char *const names[COST_MODEL_LIMITS] = {
        [COST_MODEL_WORKER_LINK] = "worker link",
        [COST_MODEL_PS_LINK] = "ps link",
        [COST_MODEL_INTRA_HOST_LINK] = "link inside a host",
        [COST_MODEL_LATENCY] = "latency",
        [COST_MODEL_PS_ARITHMETIC] = "ps arithmetic",
        [COST_MODEL_COMPUTE] = "compute",
        [COST_MODEL_INPUT] = "input"};
    return names[limit];
}
