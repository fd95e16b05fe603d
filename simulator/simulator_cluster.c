/* SPDX-License-Identifier: Apache-2.0 */
/* Processes, hosts and network of a simulated run. A packet is sent in pieces.
 * Each piece costs time in the I/O threads of its sender and its receiver (as
 * in libzmq) and on the network, so a long message is received while it is
 * still being sent, as in a real run. If memory is short, `failed` is set and
 * the run has no result. */
#include "simulator/simulator_cluster.h"

#include "chief/plan/placement.h"
#include "simulator/simulator_ps.h"
#include "simulator/simulator_worker.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_BYTES = 128, CHUNK_BYTES = 128 << 10, THREADS = 3 };

/* A piece of a packet in flight. The last piece carries the packet. */
struct chunk {
    struct chunk *next;
    struct packet *packet;
    uint64_t bytes;
    bool first, last;
};

struct packet *packet_new(const struct packet *head, const uint32_t *blocks,
                          uint32_t count) {
    size_t bytes = count * sizeof *blocks;
    struct packet *packet = malloc(sizeof *packet + bytes);
    if (!packet)
        return NULL;
    memcpy(packet, head, sizeof *packet);
    packet->next = NULL;
    packet->count = count;
    if (count)
        memcpy(packet->blocks, blocks, bytes);
    return packet;
}

void packet_queue_push(struct packet_queue *packet_queue,
                       struct packet *packet) {
    packet->next = NULL;
    if (packet_queue->first)
        packet_queue->last->next = packet;
    else
        packet_queue->first = packet;
    packet_queue->last = packet;
}

struct packet *packet_queue_pop(struct packet_queue *packet_queue) {
    struct packet *packet = packet_queue->first;
    if (packet)
        packet_queue->first = packet->next;
    return packet;
}

void packet_queue_clear(struct packet_queue *packet_queue) {
    struct packet *packet;
    while ((packet = packet_queue_pop(packet_queue)))
        free(packet);
}

static uint32_t count_hosts(const struct simulator_config *config) {
    uint32_t ps = config->num_ps, workers = config->num_workers;
    if (config->colocation == SIMULATOR_COLOCATE_ALL)
        return 1;
    if (config->colocation == SIMULATOR_COLOCATE_NONE)
        return ps + workers;
    return ps > workers ? ps : workers;
}

static uint32_t simulator_cluster_host_of(const struct simulator_config *config,
                                          uint32_t process) {
    bool is_ps = process >= config->num_workers;
    if (config->colocation == SIMULATOR_COLOCATE_ALL)
        return 0;
    return config->colocation == SIMULATOR_COLOCATE_PAIRS && is_ps
               ? process - config->num_workers
               : process;
}

static bool open_host_cores(struct simulator_cluster *simulator_cluster) {
    const struct simulator_config *config = &simulator_cluster->config;
    simulator_cluster->num_host_cores =
        config->share_cores ? 1 : simulator_cluster->num_hosts;
    simulator_cluster->host_cores =
        calloc(simulator_cluster->num_host_cores,
               sizeof *simulator_cluster->host_cores);
    struct simulator_host_settings settings = {
        .cores = config->cores,
        .parallel_efficiency = config->parallel_efficiency,
        .idle_wakeup = config->costs.idle_wakeup,
        .busy_wakeup = config->costs.busy_wakeup,
        .threads = THREADS * simulator_cluster->num_processes,
    };
    if (simulator_cluster->num_host_cores > 1 &&
        config->colocation == SIMULATOR_COLOCATE_NONE)
        settings.threads = THREADS;
    else if (simulator_cluster->num_host_cores > 1)
        settings.threads = 2 * THREADS;
    for (uint32_t i = 0;
         simulator_cluster->host_cores && i < simulator_cluster->num_host_cores;
         i++) {
        simulator_cluster->host_cores[i] =
            simulator_host_open(simulator_cluster->timeline, &settings);
        if (!simulator_cluster->host_cores[i])
            return false;
    }
    return simulator_cluster->host_cores;
}

static uint32_t connection(const struct simulator_cluster *simulator_cluster,
                           uint32_t from, uint32_t to) {
    uint32_t workers = simulator_cluster->config.num_workers,
             ps = simulator_cluster->config.num_ps;
    return from < workers ? from * ps + (to - workers)
                          : (workers + to) * ps + (from - workers);
}

static void simulator_cluster_on_arrival(void *context, void *message);

static void drop(void *message) {
    struct chunk *chunk = message;
    if (chunk && chunk->last)
        free(chunk->packet);
    free(chunk);
}

static bool open_network(struct simulator_cluster *simulator_cluster) {
    const struct simulator_config *config = &simulator_cluster->config;
    uint32_t workers = config->num_workers;
    struct network_settings settings = {
        .hosts = simulator_cluster->num_hosts,
        .connections = 2 * workers * config->num_ps,
        .rate = config->link_rate,
        .latency = (int64_t)ceil(1e9 * config->latency),
        .deliver = simulator_cluster_on_arrival,
        .context = simulator_cluster,
        .drop = drop,
    };
    simulator_cluster->network =
        network_open(simulator_cluster->timeline, &settings);
    for (uint32_t w = 0; simulator_cluster->network && w < workers; w++)
        for (uint32_t p = workers; p < simulator_cluster->num_processes; p++) {
            network_connect(
                simulator_cluster->network, connection(simulator_cluster, w, p),
                simulator_cluster->host_of[w], simulator_cluster->host_of[p]);
            network_connect(
                simulator_cluster->network, connection(simulator_cluster, p, w),
                simulator_cluster->host_of[p], simulator_cluster->host_of[w]);
        }
    return simulator_cluster->network;
}

static bool open_io_threads(struct simulator_cluster *simulator_cluster) {
    simulator_cluster->io_threads =
        calloc(simulator_cluster->num_processes,
               sizeof *simulator_cluster->io_threads);
    for (uint32_t i = 0;
         simulator_cluster->io_threads && i < simulator_cluster->num_processes;
         i++)
        simulator_cluster->io_threads[i] =
            (struct io_thread){.simulator_cluster = simulator_cluster,
                               .thread.simulator_host =
                                   simulator_cluster_host(simulator_cluster, i),
                               .process = i};
    return simulator_cluster->io_threads;
}

uint32_t simulator_cluster_float_bytes(
    const struct simulator_cluster *simulator_cluster) {
    return simulator_cluster->config.bf16 ? 2 : 4;
}

static enum status simulator_cluster_place_blocks(
    struct simulator_cluster *simulator_cluster, struct failure *why) {
    const struct layout *layout = simulator_cluster->config.layout;
    uint32_t *ps_of_block = calloc(layout->num_blocks, sizeof *ps_of_block);
    uint32_t *counts = calloc(simulator_cluster->config.num_ps, sizeof *counts);
    enum status status = STATUS_FAILED;
    if (ps_of_block && counts)
        status = placement_greedy(layout, simulator_cluster->config.num_ps,
                                  ps_of_block, why);
    else
        status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                    "no memory to place %u blocks", layout->num_blocks);
    for (uint32_t b = 0; !status && b < layout->num_blocks; b++) {
        simulator_cluster->block_ps[b] = (uint16_t)ps_of_block[b];
        simulator_cluster->local_block[b] = counts[ps_of_block[b]]++;
        simulator_cluster->block_bytes[b] =
            layout->blocks[b].elements *
            simulator_cluster_float_bytes(simulator_cluster);
        simulator_cluster->shard_bytes[ps_of_block[b]] +=
            simulator_cluster->block_bytes[b];
    }
    free(ps_of_block);
    free(counts);
    return status;
}

static bool simulator_cluster_allocate(
    struct simulator_cluster *simulator_cluster) {
    const struct simulator_config *config = &simulator_cluster->config;
    size_t blocks = config->layout->num_blocks;
    simulator_cluster->host_of = calloc(simulator_cluster->num_processes,
                                        sizeof *simulator_cluster->host_of);
    simulator_cluster->block_ps =
        calloc(blocks, sizeof *simulator_cluster->block_ps);
    simulator_cluster->block_bytes =
        calloc(blocks, sizeof *simulator_cluster->block_bytes);
    simulator_cluster->shard_bytes =
        calloc(config->num_ps, sizeof *simulator_cluster->shard_bytes);
    simulator_cluster->local_block =
        calloc(blocks, sizeof *simulator_cluster->local_block);
    simulator_cluster->workers =
        calloc(config->num_workers, sizeof *simulator_cluster->workers);
    simulator_cluster->ps =
        calloc(config->num_ps, sizeof *simulator_cluster->ps);
    simulator_cluster->wanted_samples =
        (size_t)config->num_workers * config->rounds;
    simulator_cluster->samples = calloc(simulator_cluster->wanted_samples,
                                        sizeof *simulator_cluster->samples);
    if (!simulator_cluster->host_of || !simulator_cluster->block_ps ||
        !simulator_cluster->block_bytes || !simulator_cluster->local_block ||
        !simulator_cluster->shard_bytes || !simulator_cluster->workers ||
        !simulator_cluster->ps || !simulator_cluster->samples)
        return false;
    for (uint32_t i = 0; i < simulator_cluster->num_processes; i++)
        simulator_cluster->host_of[i] = simulator_cluster_host_of(config, i);
    return true;
}

enum status simulator_cluster_open(struct simulator_cluster **out,
                                   const struct simulator_config *config,
                                   struct simulator_result *result,
                                   struct failure *why) {
    struct simulator_cluster *simulator_cluster = *out =
        calloc(1, sizeof *simulator_cluster);
    enum status status = STATUS_FAILED;
    if (simulator_cluster) {
        simulator_cluster->config = *config;
        simulator_cluster->result = result;
        simulator_cluster->num_processes = config->num_workers + config->num_ps;
        simulator_cluster->num_hosts = count_hosts(config);
        simulator_cluster->timeline = timeline_open();
    }
    if (simulator_cluster && simulator_cluster->timeline &&
        simulator_cluster_allocate(simulator_cluster) &&
        open_host_cores(simulator_cluster) && open_network(simulator_cluster) &&
        open_io_threads(simulator_cluster))
        status = simulator_cluster_place_blocks(simulator_cluster, why);
    else
        status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                    "no memory to simulate %u ps and %u workers",
                    config->num_ps, config->num_workers);
    if (status)
        simulator_cluster_close(out);
    return status;
}

void simulator_cluster_close(struct simulator_cluster **where) {
    struct simulator_cluster *simulator_cluster = *where;
    *where = NULL;
    if (!simulator_cluster)
        return;
    for (uint32_t i = 0;
         simulator_cluster->io_threads && i < simulator_cluster->num_processes;
         i++) {
        drop(simulator_cluster->io_threads[i].current);
        while (simulator_cluster->io_threads[i].first) {
            struct chunk *chunk = simulator_cluster->io_threads[i].first;
            simulator_cluster->io_threads[i].first = chunk->next;
            drop(chunk);
        }
    }
    for (uint32_t i = 0; simulator_cluster->workers &&
                         i < simulator_cluster->config.num_workers;
         i++)
        simulator_worker_close(&simulator_cluster->workers[i]);
    for (uint32_t i = 0;
         simulator_cluster->ps && i < simulator_cluster->config.num_ps; i++)
        simulator_ps_close(&simulator_cluster->ps[i]);
    for (uint32_t i = 0;
         simulator_cluster->host_cores && i < simulator_cluster->num_host_cores;
         i++)
        simulator_host_close(&simulator_cluster->host_cores[i]);
    network_close(&simulator_cluster->network);
    timeline_close(&simulator_cluster->timeline);
    free(simulator_cluster->host_cores);
    free(simulator_cluster->io_threads);
    free(simulator_cluster->host_of);
    free(simulator_cluster->block_ps);
    free(simulator_cluster->block_bytes);
    free(simulator_cluster->shard_bytes);
    free(simulator_cluster->local_block);
    free(simulator_cluster->workers);
    free(simulator_cluster->ps);
    free(simulator_cluster->samples);
    free(simulator_cluster);
}

struct simulator_host *simulator_cluster_host(
    const struct simulator_cluster *simulator_cluster, uint32_t process) {
    return simulator_cluster
        ->host_cores[simulator_cluster->num_host_cores > 1
                         ? simulator_cluster->host_of[process]
                         : 0];
}

/* The first `warm` rounds fill the pipeline and are not measured. With
 * staleness workers continue until all have enough steps, so that the load
 * stays constant. */
bool simulator_cluster_end_step(struct simulator_cluster *simulator_cluster,
                                uint64_t clock, double seconds) {
    const struct simulator_config *config = &simulator_cluster->config;
    bool counts = config->staleness
                      ? simulator_cluster->num_warmed_up == config->num_workers
                      : clock > config->warmup_steps;
    if (counts &&
        simulator_cluster->num_samples < simulator_cluster->wanted_samples)
        simulator_cluster->samples[simulator_cluster->num_samples++] = seconds;
    if (clock == config->warmup_steps &&
        ++simulator_cluster->num_warmed_up == config->num_workers)
        simulator_cluster->measured_from =
            timeline_now(simulator_cluster->timeline);
    return config->staleness || clock < config->warmup_steps + config->rounds;
}

static void process_next(struct io_thread *io_thread);

static bool is_outgoing(const struct io_thread *io_thread) {
    return io_thread->current->packet->from == io_thread->process;
}

static void simulator_cluster_receive_chunk(
    struct simulator_cluster *simulator_cluster, struct chunk *chunk) {
    uint32_t workers = simulator_cluster->config.num_workers;
    struct packet *packet = chunk->packet;
    bool whole = chunk->last;
    free(chunk);
    if (whole && packet->to < workers)
        simulator_worker_receive(simulator_cluster->workers[packet->to],
                                 packet);
    else if (whole)
        simulator_ps_receive(simulator_cluster->ps[packet->to - workers],
                             packet);
}

static void on_processed(void *context) {
    struct io_thread *io_thread = context;
    struct simulator_cluster *simulator_cluster = io_thread->simulator_cluster;
    struct chunk *chunk = io_thread->current;
    const struct packet *packet = chunk->packet;
    bool out = is_outgoing(io_thread);
    io_thread->current = NULL;
    if (!out)
        simulator_cluster_receive_chunk(simulator_cluster, chunk);
    else if (simulator_cluster->host_of[packet->from] ==
             simulator_cluster->host_of[packet->to])
        simulator_cluster_on_arrival(simulator_cluster, chunk);
    else if (!network_send(
                 simulator_cluster->network,
                 connection(simulator_cluster, packet->from, packet->to),
                 chunk->bytes + (chunk->first ? HEADER_BYTES : 0), chunk)) {
        simulator_cluster->failed = true;
        drop(chunk);
    }
    process_next(io_thread);
}

static void process_next(struct io_thread *io_thread) {
    const struct simulator_costs *costs =
        &io_thread->simulator_cluster->config.costs;
    struct chunk *chunk = io_thread->first;
    if (io_thread->current || !chunk)
        return;
    io_thread->first = chunk->next;
    io_thread->current = chunk;
    double byte =
        is_outgoing(io_thread) ? costs->send_byte : costs->receive_byte;
    simulator_host_run(&io_thread->thread,
                       (chunk->first ? costs->message : 0) +
                           byte * (double)chunk->bytes,
                       on_processed, io_thread);
}

static void simulator_cluster_enqueue(struct io_thread *io_thread,
                                      struct chunk *chunk) {
    chunk->next = NULL;
    if (io_thread->first)
        io_thread->last->next = chunk;
    else
        io_thread->first = chunk;
    io_thread->last = chunk;
}

static void simulator_cluster_on_arrival(void *context, void *message) {
    struct simulator_cluster *simulator_cluster = context;
    struct chunk *chunk = message;
    struct io_thread *io_thread =
        &simulator_cluster->io_threads[chunk->packet->to];
    simulator_cluster_enqueue(io_thread, chunk);
    process_next(io_thread);
}

void simulator_cluster_send(struct simulator_cluster *simulator_cluster,
                            struct packet *packet) {
    uint64_t done = 0, bytes;
    struct chunk *chunk = NULL;
    simulator_cluster->failed |= !packet;
    for (; packet && !(chunk && chunk->last); done += bytes) {
        uint64_t left = packet->bytes - done;
        bytes = left < CHUNK_BYTES ? left : CHUNK_BYTES;
        chunk = malloc(sizeof *chunk);
        if (!chunk) {
            simulator_cluster->failed = true;
            return;
        }
        *chunk = (struct chunk){NULL, packet, bytes, !done, bytes == left};
        simulator_cluster_enqueue(&simulator_cluster->io_threads[packet->from],
                                  chunk);
    }
    if (packet)
        process_next(&simulator_cluster->io_threads[packet->from]);
}

/* The chief's message has reached every ps. */
static void broadcast_norm(void *context, uint64_t round) {
    struct simulator_cluster *simulator_cluster = context;
    for (uint32_t p = 0; p < simulator_cluster->config.num_ps; p++) {
        struct packet head = {.kind = PACKET_NORM, .clock = round};
        struct packet *packet = packet_new(&head, NULL, 0);
        if (packet)
            simulator_ps_receive(simulator_cluster->ps[p], packet);
        else
            simulator_cluster->failed = true;
    }
}

/* To the chief and back: two latencies, with a message at each end of both. */
void simulator_cluster_report_sums(struct simulator_cluster *simulator_cluster,
                                   uint64_t round) {
    const struct simulator_config *config = &simulator_cluster->config;
    double latency =
        config->colocation == SIMULATOR_COLOCATE_ALL ? 0 : config->latency;
    if (++simulator_cluster->num_reported < config->num_ps)
        return;
    simulator_cluster->num_reported = 0;
    double seconds =
        2 * latency + 8 * (config->costs.message + config->costs.idle_wakeup);
    timeline_add(simulator_cluster->timeline, (int64_t)ceil(1e9 * seconds),
                 broadcast_norm, simulator_cluster, round);
}
