/* SPDX-License-Identifier: Apache-2.0 */
#include "simulator/simulator.h"

#include "simulator/simulator_cluster.h"
#include "simulator/simulator_ps.h"
#include "simulator/simulator_worker.h"

#include <math.h>
#include <stdlib.h>

static bool simulator_is_valid(double value) {
    return isfinite(value) && value >= 0;
}

static bool are_valid(const double *values, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (!simulator_is_valid(values[i]))
            return false;
    return true;
}

static enum status simulator_check(const struct simulator_config *config,
                                   struct failure *why) {
    const struct simulator_costs *c = &config->costs;
    uint32_t parameters = config->layout->num_parameters;
    double values_to_check[] = {
        c->step,        c->message,        c->send_byte,     c->receive_byte,
        c->copy_byte,   c->update_byte,    c->gradient_byte, config->latency,
        config->jitter, config->link_rate, c->idle_wakeup,   c->busy_wakeup};
    if (!config->num_ps || !config->num_workers ||
        config->num_ps > SIMULATOR_MAX_PS ||
        config->num_workers > SIMULATOR_MAX_WORKERS)
        return status_fail(why, FAILURE_SIMULATION_INVALID,
                           "%u ps and %u workers: 1 to %d of each can be "
                           "simulated",
                           config->num_ps, config->num_workers,
                           SIMULATOR_MAX_PS);
    if (config->num_ps > config->layout->num_blocks)
        return status_fail(why, FAILURE_SIMULATION_INVALID,
                           "%u ps: the model has %u blocks, and each ps needs "
                           "one",
                           config->num_ps, config->layout->num_blocks);
    if (!config->cores || !config->rounds ||
        !(config->parallel_efficiency > 0) || config->parallel_efficiency > 1 ||
        !are_valid(values_to_check,
                   sizeof values_to_check / sizeof *values_to_check) ||
        !are_valid(config->forward, parameters) ||
        !are_valid(config->backward, parameters))
        return status_fail(why, FAILURE_SIMULATION_INVALID,
                           "a simulated run needs cores, rounds, and costs "
                           "and rates that are not below 0");
    return STATUS_OK;
}

static enum status open_processes(struct simulator_cluster *cluster,
                                  struct failure *why) {
    const struct simulator_config *config = &cluster->config;
    bool memory = true;
    for (uint32_t p = 0; memory && p < config->num_ps; p++)
        memory = (cluster->ps[p] = simulator_ps_open(cluster, p));
    for (uint32_t w = 0; memory && w < config->num_workers; w++)
        memory = (cluster->workers[w] = simulator_worker_open(cluster, w));
    return memory ? STATUS_OK
                  : status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                                "no memory to simulate %u ps and %u workers",
                                config->num_ps, config->num_workers);
}

static enum status run_events(struct simulator_cluster *cluster,
                              struct failure *why) {
    const struct simulator_config *config = &cluster->config;
    for (uint32_t w = 0; w < config->num_workers; w++)
        simulator_worker_begin(cluster->workers[w]);
    while (cluster->num_samples < cluster->wanted_samples && !cluster->failed &&
           timeline_step(cluster->timeline))
        cluster->result->events++;
    if (cluster->num_samples < cluster->wanted_samples)
        return status_fail(
            why, FAILURE_SIMULATION_FAILED,
            "the simulated run of %u ps and %u workers stops after %.6f s, or "
            "memory is short",
            config->num_ps, config->num_workers,
            1e-9 * (double)timeline_now(cluster->timeline));
    return STATUS_OK;
}

static int simulator_ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Faster asynchronous workers take more steps, so the mean is the time of all
 * workers divided by their steps. */
static double mean_step(const struct simulator_cluster *cluster) {
    double seconds = 1e-9 * (double)(timeline_now(cluster->timeline) -
                                     cluster->measured_from);
    return seconds / (double)cluster->wanted_samples *
           cluster->config.num_workers;
}

static void measure_steps(struct simulator_cluster *cluster) {
    struct simulator_result *result = cluster->result;
    size_t count = cluster->num_samples;
    double steps = cluster->config.staleness ? cluster->config.num_workers : 1;
    qsort(cluster->samples, count, sizeof *cluster->samples,
          simulator_ascending);
    result->mean = mean_step(cluster);
    result->median = cluster->samples[count / 2];
    result->p99 = cluster->samples[(count - 1) * 99 / 100];
    result->rate = result->mean > 0 ? steps / result->mean : 0;
}

/* Bytes of the shard of PS. The bound assumes even shards; a worker beside the
 * larger shard has less to send. */
static double shard_bytes(const struct simulator_cluster *cluster,
                          uint32_t ps) {
    const struct simulator_config *config = &cluster->config;
    double all = (double)simulator_cluster_float_bytes(cluster) *
                 (double)config->layout->elements;
    return config->colocation == SIMULATOR_COLOCATE_NONE
               ? all / config->num_ps
               : cluster->shard_bytes[ps];
}

/* The gradients that HOST sends to and receives from other hosts; the weights
 * are the same amounts in reverse. */
static void count_bytes(const struct simulator_cluster *cluster, uint32_t host,
                        double *sent, double *received) {
    const struct simulator_config *config = &cluster->config;
    *sent = *received = 0;
    for (uint32_t p = 0; p < config->num_ps; p++)
        for (uint32_t w = 0; w < config->num_workers; w++) {
            uint32_t from = cluster->host_of[w];
            uint32_t to = cluster->host_of[config->num_workers + p];
            if (from != to && from == host)
                *sent += shard_bytes(cluster, p);
            if (from != to && to == host)
                *received += shard_bytes(cluster, p);
        }
}

/* Both directions of a link work at once, on gradients and weights; with
 * clipping the weights follow after all gradients. */
static double bound(const struct simulator_cluster *cluster) {
    const struct simulator_config *config = &cluster->config;
    bool serialized = config->clip && !config->staleness;
    double longest = 0;
    for (uint32_t h = 0; h < cluster->num_hosts; h++) {
        double sent, received, busy;
        count_bytes(cluster, h, &sent, &received);
        busy = serialized ? 2 * fmax(sent, received) : sent + received;
        longest = fmax(longest, busy);
    }
    return longest / config->link_rate;
}

/* Without rounds a worker beside a ps is faster and takes more steps than
 * others: then there is no bound. */
static void measure_bound(struct simulator_cluster *cluster) {
    struct simulator_result *result = cluster->result;
    bool comparable = cluster->config.colocation == SIMULATOR_COLOCATE_NONE ||
                      !cluster->config.staleness;
    if (cluster->config.link_rate > 0 && comparable)
        result->bound = bound(cluster);
    result->share = result->mean > 0 ? result->bound / result->mean : 0;
}

static void raise_usage(struct simulator_result *result,
                        enum simulator_resource resource, double share) {
    share = share > 1 ? 1 : share;
    if (share > result->usage[resource])
        result->usage[resource] = share;
}

static double usage_of_cores(const struct simulator_cluster *cluster,
                             uint32_t process) {
    return simulator_host_busy(simulator_cluster_host(cluster, process)) /
           cluster->config.cores;
}

static void measure_process(struct simulator_cluster *cluster, uint32_t process,
                            double seconds) {
    struct simulator_result *result = cluster->result;
    uint32_t workers = cluster->config.num_workers;
    uint32_t host = cluster->host_of[process];
    bool ps = process >= workers;
    double out = network_busy(cluster->network, host, NETWORK_OUT);
    double in = network_busy(cluster->network, host, NETWORK_IN);
    double thread = ps ? simulator_ps_busy(cluster->ps[process - workers])
                       : simulator_worker_busy(cluster->workers[process]);
    raise_usage(result, ps ? SIMULATOR_PS_OUT : SIMULATOR_WORKER_OUT,
                out / seconds);
    raise_usage(result, ps ? SIMULATOR_PS_IN : SIMULATOR_WORKER_IN,
                in / seconds);
    raise_usage(result, ps ? SIMULATOR_PS_THREAD : SIMULATOR_WORKER_THREAD,
                thread / seconds);
    raise_usage(result, ps ? SIMULATOR_PS_CPU : SIMULATOR_WORKER_CPU,
                usage_of_cores(cluster, process) / seconds);
}

static void measure_usage(struct simulator_cluster *cluster) {
    struct simulator_result *result = cluster->result;
    double seconds = 1e-9 * (double)timeline_now(cluster->timeline);
    for (uint32_t i = 0; seconds > 0 && i < cluster->num_processes; i++)
        measure_process(cluster, i, seconds);
    for (int r = 1; r < SIMULATOR_RESOURCES; r++)
        if (result->usage[r] > result->usage[result->bottleneck])
            result->bottleneck = (enum simulator_resource)r;
}

enum status simulator_run(const struct simulator_config *config,
                          struct simulator_result *result,
                          struct failure *why) {
    struct simulator_cluster *cluster = NULL;
    *result = (struct simulator_result){0};
    enum status status = simulator_check(config, why);
    if (!status)
        status = simulator_cluster_open(&cluster, config, result, why);
    if (!status)
        status = open_processes(cluster, why);
    if (!status)
        status = run_events(cluster, why);
    if (!status) {
        measure_steps(cluster);
        measure_bound(cluster);
        measure_usage(cluster);
    }
    simulator_cluster_close(&cluster);
    return status;
}
