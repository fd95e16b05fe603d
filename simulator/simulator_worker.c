/* SPDX-License-Identifier: Apache-2.0 */
#include "simulator/simulator_worker.h"

#include "core/base/time.h"
#include "core/tensor/philox.h"
#include "proto/messages/message.h"
#include "worker/exchange/client/window.h"

#include <stdlib.h>

/* The computing thread is at `parameter`, forward or backward, and has
 * announced the gradients of step `pushing` from the last parameter down to
 * `announced`. The communication thread has passed those down to `granted` to
 * the window. */
struct simulator_worker {
    struct simulator_cluster *simulator_cluster;
    uint32_t rank;
    struct simulator_host_thread compute_thread, exchange_thread;
    struct philox_sequence rng;
    uint64_t clock; /* of the current step */
    uint32_t parameter;
    bool backward, waiting;
    double step_factor; /* of this step: 1 is the mean */
    int64_t step_start;
    double computed; /* seconds */
    struct window *window;
    uint32_t *missing; /* [num_parameters] blocks awaited */
    uint64_t pushing, seq;
    uint32_t announced, queued;
    struct packet_queue inbox;
    struct packet *storing;
    struct window_request request;
};

static const struct layout *layout_of(const struct simulator_worker *worker) {
    return worker->simulator_cluster->config.layout;
}

static struct window *open_window(const struct simulator_cluster *cluster) {
    const struct simulator_config *config = &cluster->config;
    bool whole = config->clip && config->staleness == 0;
    struct window_settings settings = {
        .num_blocks = config->layout->num_blocks,
        .num_ps = config->num_ps,
        .block_ps = cluster->block_ps,
        .block_bytes = cluster->block_bytes,
        .credit = whole ? UINT64_MAX : MESSAGE_CREDIT,
        .group_bytes = config->group_bytes,
        .query_after = TIME_NEVER, /* the simulated network loses nothing */
        .retry_after = 0,
    };
    return window_open(&settings);
}

struct simulator_worker *simulator_worker_open(
    struct simulator_cluster *cluster, uint32_t rank) {
    struct simulator_worker *worker = calloc(1, sizeof *worker);
    if (!worker)
        return NULL;
    worker->simulator_cluster = cluster;
    worker->rank = rank;
    worker->compute_thread.simulator_host =
        worker->exchange_thread.simulator_host =
            simulator_cluster_host(cluster, rank);
    philox_sequence_open(&worker->rng, cluster->config.seed, rank);
    worker->window = open_window(cluster);
    worker->missing =
        calloc(layout_of(worker)->num_parameters, sizeof *worker->missing);
    if (!worker->window || !worker->missing)
        simulator_worker_close(&worker);
    return worker;
}

void simulator_worker_close(struct simulator_worker **where) {
    struct simulator_worker *worker = *where;
    *where = NULL;
    if (!worker)
        return;
    window_close(&worker->window);
    packet_queue_clear(&worker->inbox);
    free(worker->storing);
    free(worker->missing);
    free(worker);
}

/* Mean 1. The sum of 12 uniforms has variance 1, is close to a normal
 * distribution and is bounded. */
static double draw_step_factor(struct simulator_worker *worker) {
    double sum = -6, step_factor;
    for (int i = 0; worker->simulator_cluster->config.jitter > 0 && i < 12; i++)
        sum += philox_next(&worker->rng) * 0x1p-32;
    step_factor = worker->simulator_cluster->config.jitter > 0
                      ? 1 + worker->simulator_cluster->config.jitter * sum
                      : 1;
    return step_factor > 0.1 ? step_factor : 0.1;
}

static void simulator_worker_compute(struct simulator_worker *worker);
static void communicate(struct simulator_worker *worker);

static void computed(void *context);

static void simulator_worker_work(struct simulator_worker *worker,
                                  double seconds) {
    seconds *= worker->step_factor;
    worker->computed += seconds;
    simulator_host_run(&worker->compute_thread, seconds, computed, worker);
}

static void simulator_worker_begin_step(struct simulator_worker *worker) {
    worker->clock++;
    worker->parameter = 0;
    worker->backward = false;
    worker->step_factor = draw_step_factor(worker);
    simulator_worker_compute(worker);
}

/* The step has ended, SECONDS after the one before. False: it was the last. The
 * first `warm` rounds fill the pipeline and are not measured. Synchronous
 * workers take the same number of steps; with staleness they continue until all
 * have enough, so that no worker is measured alone. */
static bool record_step(struct simulator_worker *worker, double seconds) {
    struct simulator_cluster *cluster = worker->simulator_cluster;
    const struct simulator_config *config = &cluster->config;
    uint64_t clock = worker->clock;
    bool counts = config->staleness
                      ? cluster->num_warmed_up == config->num_workers
                      : clock > config->warmup_steps;
    if (counts && cluster->num_samples < cluster->wanted_samples)
        cluster->samples[cluster->num_samples++] = seconds;
    if (clock == config->warmup_steps &&
        ++cluster->num_warmed_up == config->num_workers)
        cluster->measured_from = timeline_now(cluster->timeline);
    return config->staleness || clock < config->warmup_steps + config->rounds;
}

/* A step lasts from its begin to that of the next. */
static void end_step(struct simulator_worker *worker) {
    int64_t now = timeline_now(worker->simulator_cluster->timeline);
    double seconds = 1e-9 * (double)(now - worker->step_start);
    worker->step_start = now;
    if (record_step(worker, seconds))
        simulator_worker_begin_step(worker);
}

/* A worker with staleness clips its own gradient, so it sends nothing before
 * the last part is computed. */
static bool defers_push(const struct simulator_worker *worker) {
    const struct simulator_config *config = &worker->simulator_cluster->config;
    return config->clip && config->staleness != 0;
}

/* Small gradients are sent with the next larger one, except over a network. */
static void simulator_worker_announce(struct simulator_worker *worker) {
    const struct layout *layout = layout_of(worker);
    uint32_t at = worker->parameter, end = worker->announced;
    uint64_t elements = 0;
    for (uint32_t p = at; p < end; p++)
        elements += layout->parameters[p].elements;
    bool is_batched = elements < WINDOW_MIN_FLOATS &&
                      !(worker->simulator_cluster->config.link_rate > 0);
    if (at && (defers_push(worker) || is_batched))
        return;
    worker->announced = at;
    for (uint32_t p = at; p < end; p++)
        worker->missing[p] = layout->num_blocks_of[p];
    communicate(worker);
}

/* All weights have arrived, so nothing is left to grant. */
static void begin_backward(struct simulator_worker *worker) {
    worker->backward = true;
    worker->pushing = worker->clock;
    worker->announced = worker->queued = worker->parameter;
}

static void computed(void *context) {
    struct simulator_worker *worker = context;
    if (worker->backward)
        simulator_worker_announce(worker);
    else if (++worker->parameter == layout_of(worker)->num_parameters)
        begin_backward(worker);
    simulator_worker_compute(worker);
}

/* With staleness a step begins when the last parameter's weights, and with them
 * the global step, have arrived. */
static bool must_wait(const struct simulator_worker *worker) {
    uint32_t last = layout_of(worker)->num_parameters - 1;
    return worker->missing[worker->parameter] ||
           (worker->simulator_cluster->config.staleness && !worker->parameter &&
            worker->missing[last]);
}

static void compute_forward(struct simulator_worker *worker) {
    const struct simulator_config *config = &worker->simulator_cluster->config;
    uint32_t p = worker->parameter;
    worker->waiting = must_wait(worker);
    if (!worker->waiting)
        simulator_worker_work(worker, config->forward[p] +
                                          (p ? 0 : config->costs.step));
}

static void simulator_worker_compute(struct simulator_worker *worker) {
    const struct simulator_config *config = &worker->simulator_cluster->config;
    if (!worker->backward) {
        compute_forward(worker);
        return;
    }
    if (!worker->parameter) {
        end_step(worker);
        return;
    }
    double clipping =
        worker->parameter == 1 && defers_push(worker)
            ? config->costs.gradient_byte * 4 * (double)config->layout->elements
            : 0;
    worker->parameter--;
    simulator_worker_work(worker,
                          config->backward[worker->parameter] + clipping);
}

/* Weights are in place: resumes the thread that waits for them. */
static void stored(void *context) {
    struct simulator_worker *worker = context;
    const struct layout *layout = layout_of(worker);
    struct packet *packet = worker->storing;
    worker->storing = NULL;
    worker->simulator_cluster->result->stored += packet->bytes;
    for (uint32_t i = 0; i < packet->count; i++)
        if (window_received(worker->window, packet->blocks[i], packet->clock,
                            timeline_now(worker->simulator_cluster->timeline)))
            worker->missing[layout->blocks[packet->blocks[i]].parameter]--;
    free(packet);
    if (worker->waiting && !must_wait(worker))
        compute_forward(worker);
    communicate(worker);
}

static void store(struct simulator_worker *worker) {
    const struct simulator_costs *costs =
        &worker->simulator_cluster->config.costs;
    worker->storing = packet_queue_pop(&worker->inbox);
    simulator_host_run(&worker->exchange_thread,
                       costs->message +
                           costs->copy_byte * (double)worker->storing->bytes,
                       stored, worker);
}

static void queue_pushes(struct simulator_worker *worker) {
    const struct layout *layout = layout_of(worker);
    while (worker->queued > worker->announced) {
        uint32_t p = --worker->queued;
        window_enqueue(worker->window, layout->first_block[p],
                       layout->num_blocks_of[p], WINDOW_PUSH, worker->pushing);
    }
}

/* Neighbouring blocks are contiguous and are sent without a copy. */
static bool is_scattered(const struct window_request *request) {
    for (uint32_t i = 1; i < request->count; i++)
        if (request->blocks[i] != request->blocks[i - 1] + 1)
            return true;
    return false;
}

static void pushed(void *context) {
    struct simulator_worker *worker = context;
    const struct window_request *request = &worker->request;
    struct packet head = {.kind = PACKET_PUSH,
                          .from = worker->rank,
                          .to = worker->simulator_cluster->config.num_workers +
                                request->ps,
                          .clock = request->clock,
                          .seq = ++worker->seq,
                          .bytes = request->bytes};
    worker->simulator_cluster->result->pushed += request->bytes;
    simulator_cluster_send(worker->simulator_cluster,
                           packet_new(&head, request->blocks, request->count));
    communicate(worker);
}

static void simulator_worker_push(struct simulator_worker *worker) {
    const struct simulator_costs *costs =
        &worker->simulator_cluster->config.costs;
    bool copied = is_scattered(&worker->request) ||
                  worker->simulator_cluster->config.bf16;
    double byte = copied ? costs->copy_byte : 0;
    simulator_host_run(&worker->exchange_thread,
                       costs->message + byte * (double)worker->request.bytes,
                       pushed, worker);
}

/* Handles received packets first, then packets to send. */
static void communicate(struct simulator_worker *worker) {
    if (worker->exchange_thread.running || worker->storing)
        return;
    if (worker->inbox.first) {
        store(worker);
        return;
    }
    queue_pushes(worker);
    if (window_next(worker->window,
                    timeline_now(worker->simulator_cluster->timeline),
                    &worker->request))
        simulator_worker_push(worker);
}

void simulator_worker_begin(struct simulator_worker *worker) {
    simulator_worker_begin_step(worker);
}

void simulator_worker_receive(struct simulator_worker *worker,
                              struct packet *packet) {
    packet_queue_push(&worker->inbox, packet);
    communicate(worker);
}

double simulator_worker_busy(const struct simulator_worker *worker) {
    return worker->computed;
}
