/* SPDX-License-Identifier: Apache-2.0 */
#include "simulator/model.h"

#include "simulator/modelled_ps.h"
#include "simulator/modelled_worker.h"
#include "simulator/stage.h"

#include <math.h>
#include <stdlib.h>

static bool is_amount(double value) {
    return isfinite(value) && value >= 0;
}

static bool are_amounts(const double *values, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (!is_amount(values[i]))
            return false;
    return true;
}

static enum status check(const struct model_case *given, struct failure *why) {
    const struct model_costs *c = &given->costs;
    uint32_t parameters = given->layout->num_parameters;
    double amounts[] = {c->step,          c->message,     c->send_byte,
                        c->receive_byte,  c->copy_byte,   c->update_byte,
                        c->gradient_byte, given->latency, given->jitter,
                        given->link_rate, c->wake,        c->turn};
    if (!given->num_ps || !given->num_workers ||
        given->num_ps > MODEL_MOST_PS ||
        given->num_workers > MODEL_MOST_WORKERS)
        return status_fail(why, STATUS_CONFIG,
                           "%u ps and %u workers: 1 to %d of each can be "
                           "simulated",
                           given->num_ps, given->num_workers, MODEL_MOST_PS);
    if (given->num_ps > given->layout->num_blocks)
        return status_fail(why, STATUS_CONFIG,
                           "%u ps: the model has %u blocks, and each ps needs "
                           "one",
                           given->num_ps, given->layout->num_blocks);
    if (!given->cores || !given->rounds || !(given->crowded > 0) ||
        given->crowded > 1 ||
        !are_amounts(amounts, sizeof amounts / sizeof *amounts) ||
        !are_amounts(given->forward, parameters) ||
        !are_amounts(given->backward, parameters))
        return status_fail(why, STATUS_CONFIG,
                           "a simulated run needs cores, rounds, and costs "
                           "and rates that are not below 0");
    return STATUS_OK;
}

static enum status open_processes(struct stage *stage, struct failure *why) {
    const struct model_case *given = &stage->given;
    bool memory = true;
    for (uint32_t p = 0; memory && p < given->num_ps; p++)
        memory = (stage->ps[p] = modelled_ps_open(stage, p));
    for (uint32_t w = 0; memory && w < given->num_workers; w++)
        memory = (stage->workers[w] = modelled_worker_open(stage, w));
    return memory ? STATUS_OK
                  : status_fail(why, STATUS_FAILED,
                                "no memory to simulate %u ps and %u workers",
                                given->num_ps, given->num_workers);
}

static enum status play(struct stage *stage, struct failure *why) {
    const struct model_case *given = &stage->given;
    for (uint32_t w = 0; w < given->num_workers; w++)
        modelled_worker_begin(stage->workers[w]);
    while (stage->num_samples < stage->wanted && !stage->failed &&
           agenda_step(stage->agenda))
        stage->result->events++;
    if (stage->num_samples < stage->wanted)
        return status_fail(why, STATUS_FAILED,
                           "the simulated run of %u ps and %u workers stands "
                           "still after %.6f s, or memory is short",
                           given->num_ps, given->num_workers,
                           1e-9 * (double)agenda_now(stage->agenda));
    return STATUS_OK;
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Of asynchronous workers the faster take more steps, so that the mean is that
 * of the time all had. */
static double mean_step(const struct stage *stage) {
    double seconds = 1e-9 * (double)(agenda_now(stage->agenda) - stage->begun);
    return seconds / (double)stage->wanted * stage->given.num_workers;
}

static void measure_steps(struct stage *stage) {
    struct model_result *result = stage->result;
    size_t count = stage->num_samples;
    double steps = stage->given.staleness ? stage->given.num_workers : 1;
    qsort(stage->samples, count, sizeof *stage->samples, ascending);
    result->mean = mean_step(stage);
    result->median = stage->samples[count / 2];
    result->p99 = stage->samples[(count - 1) * 99 / 100];
    result->rate = result->mean > 0 ? steps / result->mean : 0;
}

/* Bytes of the shard of PS. The bound is that of even shards; but a worker
 * beside the larger one has less to send than that. */
static double shard_bytes(const struct stage *stage, uint32_t ps) {
    const struct model_case *given = &stage->given;
    double all =
        (double)stage_float_bytes(stage) * (double)given->layout->elements;
    return given->place == MODEL_APART ? all / given->num_ps
                                       : stage->shard_bytes[ps];
}

/* Gradients that HOST sends to others, and those that it gets from them; of
 * weights it gets and sends as much. */
static void count_bytes(const struct stage *stage, uint32_t host, double *sent,
                        double *received) {
    const struct model_case *given = &stage->given;
    *sent = *received = 0;
    for (uint32_t p = 0; p < given->num_ps; p++)
        for (uint32_t w = 0; w < given->num_workers; w++) {
            uint32_t from = stage->host_of[w];
            uint32_t to = stage->host_of[given->num_workers + p];
            if (from != to && from == host)
                *sent += shard_bytes(stage, p);
            if (from != to && to == host)
                *received += shard_bytes(stage, p);
        }
}

/* Both directions of a link work at once, on gradients as on weights; when
 * clipping, weights come after all gradients. */
static double bound(const struct stage *stage) {
    const struct model_case *given = &stage->given;
    bool phases = given->clip && !given->staleness;
    double most = 0;
    for (uint32_t h = 0; h < stage->num_hosts; h++) {
        double sent, received, busy;
        count_bytes(stage, h, &sent, &received);
        busy = phases ? 2 * fmax(sent, received) : sent + received;
        most = fmax(most, busy);
    }
    return most / given->link_rate;
}

/* A worker beside a ps is faster than others, and without rounds takes more
 * steps than they do: there is no bound then. */
static void measure_bound(struct stage *stage) {
    struct model_result *result = stage->result;
    bool alike = stage->given.place == MODEL_APART || !stage->given.staleness;
    if (stage->given.link_rate > 0 && alike)
        result->bound = bound(stage);
    result->share = result->mean > 0 ? result->bound / result->mean : 0;
}

static void use(struct model_result *result, enum model_resource resource,
                double share) {
    share = share > 1 ? 1 : share;
    if (share > result->usage[resource])
        result->usage[resource] = share;
}

static double usage_of_cores(const struct stage *stage, uint32_t process) {
    return machine_busy(stage_machine(stage, process)) / stage->given.cores;
}

static void measure_process(struct stage *stage, uint32_t process,
                            double seconds) {
    struct model_result *result = stage->result;
    uint32_t workers = stage->given.num_workers;
    uint32_t host = stage->host_of[process];
    bool ps = process >= workers;
    double out = network_busy(stage->network, host, NETWORK_OUT);
    double in = network_busy(stage->network, host, NETWORK_IN);
    double thread = ps ? modelled_ps_busy(stage->ps[process - workers])
                       : modelled_worker_busy(stage->workers[process]);
    use(result, ps ? MODEL_PS_OUT : MODEL_WORKER_OUT, out / seconds);
    use(result, ps ? MODEL_PS_IN : MODEL_WORKER_IN, in / seconds);
    use(result, ps ? MODEL_PS_THREAD : MODEL_WORKER_THREAD, thread / seconds);
    use(result, ps ? MODEL_PS_CPU : MODEL_WORKER_CPU,
        usage_of_cores(stage, process) / seconds);
}

static void measure_usage(struct stage *stage) {
    struct model_result *result = stage->result;
    double seconds = 1e-9 * (double)agenda_now(stage->agenda);
    for (uint32_t i = 0; seconds > 0 && i < stage->num_processes; i++)
        measure_process(stage, i, seconds);
    for (int r = 1; r < MODEL_RESOURCES; r++)
        if (result->usage[r] > result->usage[result->limit])
            result->limit = (enum model_resource)r;
}

enum status model_run(const struct model_case *given,
                      struct model_result *result, struct failure *why) {
    struct stage *stage = NULL;
    *result = (struct model_result){0};
    enum status status = check(given, why);
    if (!status)
        status = stage_open(&stage, given, result, why);
    if (!status)
        status = open_processes(stage, why);
    if (!status)
        status = play(stage, why);
    if (!status) {
        measure_steps(stage);
        measure_bound(stage);
        measure_usage(stage);
    }
    stage_close(&stage);
    return status;
}

const char *model_resource_name(enum model_resource resource) {
    static const char *const names[MODEL_RESOURCES] = {
        [MODEL_PS_OUT] = "link out of a ps",
        [MODEL_PS_IN] = "link into a ps",
        [MODEL_WORKER_OUT] = "link out of a worker",
        [MODEL_WORKER_IN] = "link into a worker",
        [MODEL_PS_CPU] = "cores of a ps",
        [MODEL_WORKER_CPU] = "cores of a worker",
        [MODEL_PS_THREAD] = "updating in a ps",
        [MODEL_WORKER_THREAD] = "computing in a worker",
    };
    return names[resource];
}
