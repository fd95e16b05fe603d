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
    struct network_message message; /* first: one address for both */
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

void packet_queue_push(struct packet_queue *queue, struct packet *packet) {
    packet->next = NULL;
    if (queue->first)
        queue->last->next = packet;
    else
        queue->first = packet;
    queue->last = packet;
}

struct packet *packet_queue_pop(struct packet_queue *queue) {
    struct packet *packet = queue->first;
    if (packet)
        queue->first = packet->next;
    return packet;
}

void packet_queue_clear(struct packet_queue *queue) {
    struct packet *packet;
    while ((packet = packet_queue_pop(queue)))
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

static bool open_host_cores(struct simulator_cluster *cluster) {
    const struct simulator_config *config = &cluster->config;
    cluster->num_host_cores = config->share_cores ? 1 : cluster->num_hosts;
    cluster->host_cores =
        calloc(cluster->num_host_cores, sizeof *cluster->host_cores);
    struct simulator_host_settings settings = {
        .cores = config->cores,
        .parallel_efficiency = config->parallel_efficiency,
        .idle_wakeup = config->costs.idle_wakeup,
        .busy_wakeup = config->costs.busy_wakeup,
        .threads = THREADS * cluster->num_processes,
    };
    if (cluster->num_host_cores > 1 &&
        config->colocation == SIMULATOR_COLOCATE_NONE)
        settings.threads = THREADS;
    else if (cluster->num_host_cores > 1)
        settings.threads = 2 * THREADS;
    for (uint32_t i = 0; cluster->host_cores && i < cluster->num_host_cores;
         i++) {
        cluster->host_cores[i] =
            simulator_host_open(cluster->timeline, &settings);
        if (!cluster->host_cores[i])
            return false;
    }
    return cluster->host_cores;
}

static uint32_t connection(const struct simulator_cluster *cluster,
                           uint32_t from, uint32_t to) {
    uint32_t workers = cluster->config.num_workers, ps = cluster->config.num_ps;
    return from < workers ? from * ps + (to - workers)
                          : (workers + to) * ps + (from - workers);
}

static void simulator_cluster_on_arrival(void *context,
                                         struct network_message *message);

static void drop(struct network_message *message) {
    struct chunk *chunk = (struct chunk *)message;
    if (chunk && chunk->last)
        free(chunk->packet);
    free(chunk);
}

static bool open_network(struct simulator_cluster *cluster) {
    const struct simulator_config *config = &cluster->config;
    uint32_t workers = config->num_workers;
    struct network_settings settings = {
        .hosts = cluster->num_hosts,
        .connections = 2 * workers * config->num_ps,
        .rate = config->link_rate,
        .latency = (int64_t)ceil(1e9 * config->latency),
        .deliver = simulator_cluster_on_arrival,
        .context = cluster,
        .drop = drop,
    };
    cluster->network = network_open(cluster->timeline, &settings);
    for (uint32_t w = 0; cluster->network && w < workers; w++)
        for (uint32_t p = workers; p < cluster->num_processes; p++) {
            network_connect(cluster->network, connection(cluster, w, p),
                            cluster->host_of[w], cluster->host_of[p]);
            network_connect(cluster->network, connection(cluster, p, w),
                            cluster->host_of[p], cluster->host_of[w]);
        }
    return cluster->network;
}

static bool open_io_threads(struct simulator_cluster *cluster) {
    cluster->io_threads =
        calloc(cluster->num_processes, sizeof *cluster->io_threads);
    for (uint32_t i = 0; cluster->io_threads && i < cluster->num_processes; i++)
        cluster->io_threads[i] = (struct io_thread){
            .simulator_cluster = cluster,
            .thread.simulator_host = simulator_cluster_host(cluster, i),
            .process = i};
    return cluster->io_threads;
}

uint32_t simulator_cluster_float_bytes(
    const struct simulator_cluster *cluster) {
    return cluster->config.bf16 ? 2 : 4;
}

static enum status simulator_cluster_place_blocks(
    struct simulator_cluster *cluster, struct failure *why) {
    const struct layout *layout = cluster->config.layout;
    uint32_t *ps_of_block = calloc(layout->num_blocks, sizeof *ps_of_block);
    uint32_t *counts = calloc(cluster->config.num_ps, sizeof *counts);
    enum status status = STATUS_FAILED;
    if (ps_of_block && counts)
        status =
            placement_greedy(layout, cluster->config.num_ps, ps_of_block, why);
    else
        status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                    "no memory to place %u blocks", layout->num_blocks);
    for (uint32_t b = 0; !status && b < layout->num_blocks; b++) {
        cluster->block_ps[b] = (uint16_t)ps_of_block[b];
        cluster->local_block[b] = counts[ps_of_block[b]]++;
        cluster->block_bytes[b] =
            layout->blocks[b].elements * simulator_cluster_float_bytes(cluster);
        cluster->shard_bytes[ps_of_block[b]] += cluster->block_bytes[b];
    }
    free(ps_of_block);
    free(counts);
    return status;
}

static bool simulator_cluster_allocate(struct simulator_cluster *cluster) {
    const struct simulator_config *config = &cluster->config;
    size_t blocks = config->layout->num_blocks;
    cluster->host_of = calloc(cluster->num_processes, sizeof *cluster->host_of);
    cluster->block_ps = calloc(blocks, sizeof *cluster->block_ps);
    cluster->block_bytes = calloc(blocks, sizeof *cluster->block_bytes);
    cluster->shard_bytes = calloc(config->num_ps, sizeof *cluster->shard_bytes);
    cluster->local_block = calloc(blocks, sizeof *cluster->local_block);
    cluster->workers = calloc(config->num_workers, sizeof *cluster->workers);
    cluster->ps = calloc(config->num_ps, sizeof *cluster->ps);
    cluster->wanted_samples = (size_t)config->num_workers * config->rounds;
    cluster->samples =
        calloc(cluster->wanted_samples, sizeof *cluster->samples);
    if (!cluster->host_of || !cluster->block_ps || !cluster->block_bytes ||
        !cluster->local_block || !cluster->shard_bytes || !cluster->workers ||
        !cluster->ps || !cluster->samples)
        return false;
    for (uint32_t i = 0; i < cluster->num_processes; i++)
        cluster->host_of[i] = simulator_cluster_host_of(config, i);
    return true;
}

enum status simulator_cluster_open(struct simulator_cluster **out,
                                   const struct simulator_config *config,
                                   struct simulator_result *result,
                                   struct failure *why) {
    struct simulator_cluster *cluster = *out = calloc(1, sizeof *cluster);
    enum status status = STATUS_FAILED;
    if (cluster) {
        cluster->config = *config;
        cluster->result = result;
        cluster->num_processes = config->num_workers + config->num_ps;
        cluster->num_hosts = count_hosts(config);
        cluster->timeline = timeline_open();
    }
    if (cluster && cluster->timeline && simulator_cluster_allocate(cluster) &&
        open_host_cores(cluster) && open_network(cluster) &&
        open_io_threads(cluster))
        status = simulator_cluster_place_blocks(cluster, why);
    else
        status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                    "no memory to simulate %u ps and %u workers",
                    config->num_ps, config->num_workers);
    if (status)
        simulator_cluster_close(out);
    return status;
}

void simulator_cluster_close(struct simulator_cluster **where) {
    struct simulator_cluster *cluster = *where;
    *where = NULL;
    if (!cluster)
        return;
    for (uint32_t i = 0; cluster->io_threads && i < cluster->num_processes;
         i++) {
        drop(cluster->io_threads[i].current);
        while (cluster->io_threads[i].first) {
            struct network_message *chunk = cluster->io_threads[i].first;
            cluster->io_threads[i].first = chunk->next;
            drop(chunk);
        }
    }
    for (uint32_t i = 0; cluster->workers && i < cluster->config.num_workers;
         i++)
        simulator_worker_close(&cluster->workers[i]);
    for (uint32_t i = 0; cluster->ps && i < cluster->config.num_ps; i++)
        simulator_ps_close(&cluster->ps[i]);
    for (uint32_t i = 0; cluster->host_cores && i < cluster->num_host_cores;
         i++)
        simulator_host_close(&cluster->host_cores[i]);
    network_close(&cluster->network);
    timeline_close(&cluster->timeline);
    free(cluster->host_cores);
    free(cluster->io_threads);
    free(cluster->host_of);
    free(cluster->block_ps);
    free(cluster->block_bytes);
    free(cluster->shard_bytes);
    free(cluster->local_block);
    free(cluster->workers);
    free(cluster->ps);
    free(cluster->samples);
    free(cluster);
}

struct simulator_host *simulator_cluster_host(
    const struct simulator_cluster *cluster, uint32_t process) {
    return cluster
        ->host_cores[cluster->num_host_cores > 1 ? cluster->host_of[process]
                                                 : 0];
}

static void process_next(struct io_thread *io_thread);

static bool is_outgoing(const struct io_thread *io_thread) {
    const struct chunk *chunk = (const struct chunk *)io_thread->current;
    return chunk->packet->from == io_thread->process;
}

static void simulator_cluster_receive_chunk(struct simulator_cluster *cluster,
                                            struct chunk *chunk) {
    uint32_t workers = cluster->config.num_workers;
    struct packet *packet = chunk->packet;
    bool whole = chunk->last;
    free(chunk);
    if (whole && packet->to < workers)
        simulator_worker_receive(cluster->workers[packet->to], packet);
    else if (whole)
        simulator_ps_receive(cluster->ps[packet->to - workers], packet);
}

static void on_processed(void *context) {
    struct io_thread *io_thread = context;
    struct simulator_cluster *cluster = io_thread->simulator_cluster;
    struct chunk *chunk = (struct chunk *)io_thread->current;
    const struct packet *packet = chunk->packet;
    bool out = is_outgoing(io_thread);
    io_thread->current = NULL;
    if (!out)
        simulator_cluster_receive_chunk(cluster, chunk);
    else if (cluster->host_of[packet->from] == cluster->host_of[packet->to])
        simulator_cluster_on_arrival(cluster, &chunk->message);
    else
        network_send(
            cluster->network, connection(cluster, packet->from, packet->to),
            chunk->bytes + (chunk->first ? HEADER_BYTES : 0), &chunk->message);
    process_next(io_thread);
}

static void process_next(struct io_thread *io_thread) {
    const struct simulator_costs *costs =
        &io_thread->simulator_cluster->config.costs;
    const struct chunk *chunk = (const struct chunk *)io_thread->first;
    if (io_thread->current || !chunk)
        return;
    io_thread->current = io_thread->first;
    io_thread->first = chunk->message.next;
    double byte =
        is_outgoing(io_thread) ? costs->send_byte : costs->receive_byte;
    simulator_host_run(&io_thread->thread,
                       (chunk->first ? costs->message : 0) +
                           byte * (double)chunk->bytes,
                       on_processed, io_thread);
}

static void simulator_cluster_enqueue(struct io_thread *io_thread,
                                      struct network_message *chunk) {
    chunk->next = NULL;
    if (io_thread->first)
        io_thread->last->next = chunk;
    else
        io_thread->first = chunk;
    io_thread->last = chunk;
}

static void simulator_cluster_on_arrival(void *context,
                                         struct network_message *message) {
    struct simulator_cluster *cluster = context;
    const struct chunk *chunk = (const struct chunk *)message;
    struct io_thread *io_thread = &cluster->io_threads[chunk->packet->to];
    simulator_cluster_enqueue(io_thread, message);
    process_next(io_thread);
}

void simulator_cluster_send(struct simulator_cluster *cluster,
                            struct packet *packet) {
    uint64_t done = 0, bytes;
    struct chunk *chunk = NULL;
    cluster->failed |= !packet;
    for (; packet && !(chunk && chunk->last); done += bytes) {
        uint64_t left = packet->bytes - done;
        bytes = left < CHUNK_BYTES ? left : CHUNK_BYTES;
        chunk = malloc(sizeof *chunk);
        if (!chunk) {
            cluster->failed = true;
            return;
        }
        *chunk = (struct chunk){{0}, packet, bytes, !done, bytes == left};
        simulator_cluster_enqueue(&cluster->io_threads[packet->from],
                                  &chunk->message);
    }
    if (packet)
        process_next(&cluster->io_threads[packet->from]);
}

/* The chief's message has reached every ps. */
static void broadcast_norm(void *context, uint64_t round) {
    struct simulator_cluster *cluster = context;
    for (uint32_t p = 0; p < cluster->config.num_ps; p++) {
        struct packet head = {.kind = PACKET_NORM, .clock = round};
        struct packet *packet = packet_new(&head, NULL, 0);
        if (packet)
            simulator_ps_receive(cluster->ps[p], packet);
        else
            cluster->failed = true;
    }
}

/* To the chief and back: two latencies, with a message at each end of both. */
void simulator_cluster_report_sums(struct simulator_cluster *cluster,
                                   uint64_t round) {
    const struct simulator_config *config = &cluster->config;
    double latency =
        config->colocation == SIMULATOR_COLOCATE_ALL ? 0 : config->latency;
    if (++cluster->num_reported < config->num_ps)
        return;
    cluster->num_reported = 0;
    double seconds =
        2 * latency + 8 * (config->costs.message + config->costs.idle_wakeup);
    timeline_add(cluster->timeline, (int64_t)ceil(1e9 * seconds),
                 broadcast_norm, cluster, round);
}
