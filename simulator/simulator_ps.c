/* SPDX-License-Identifier: Apache-2.0 */
/* One thread in the order of ps.c: a ready reply is sent before anything else
 * is decided; the time of decided updates is spent with the next work; a
 * message is received if nothing else is due. Actions run until there is a
 * reply to send, because their time is spent before it. */
#include "simulator/simulator_ps.h"

#include "ps/consistency/update_core.h"

#include <stdlib.h>

/* Blocks sent together to one trainer, as in ps/reply_queue.c. */
struct reply {
    struct packet head;
    uint32_t count, capacity;
    uint32_t *blocks;
};

struct simulator_ps {
    struct simulator_cluster *simulator_cluster;
    uint32_t index, num_blocks;
    uint32_t *ids; /* plan's number of each block */
    struct update_core *update_core;
    struct simulator_host_thread service_thread;
    struct packet_queue inbox, outbox;
    struct packet *current; /* the packet to be sent */
    struct reply *replies;  /* [num_workers] */
    bool has_actions;
    double pending_seconds; /* seconds of updates decided but not yet spent */
    double busy_seconds;
    uint32_t num_summed;
};

static bool simulator_ps_find_blocks(struct simulator_ps *ps) {
    const struct simulator_cluster *cluster = ps->simulator_cluster;
    uint32_t num_blocks = cluster->config.layout->num_blocks;
    ps->ids = calloc(num_blocks, sizeof *ps->ids);
    for (uint32_t b = 0; ps->ids && b < num_blocks; b++)
        if (cluster->block_ps[b] == ps->index)
            ps->ids[ps->num_blocks++] = b;
    return ps->ids;
}

/* All workers are present from the first clock on. */
static bool set_view(struct simulator_ps *ps) {
    uint32_t workers = ps->simulator_cluster->config.num_workers;
    struct gate_slot *slots = calloc(workers, sizeof *slots);
    for (uint32_t r = 0; slots && r < workers; r++)
        slots[r] = (struct gate_slot){r + 1, 1, true};
    if (slots)
        update_core_set_view(ps->update_core, 1, slots);
    free(slots);
    return slots;
}

static bool open_exchange(struct simulator_ps *ps) {
    const struct simulator_config *config = &ps->simulator_cluster->config;
    struct update_core_settings settings = {
        .num_blocks = ps->num_blocks,
        .num_ranks = config->num_workers,
        .staleness = config->staleness,
        .clip = config->clip && config->staleness == 0,
    };
    ps->update_core = update_core_open(&settings);
    return ps->update_core;
}

struct simulator_ps *simulator_ps_open(struct simulator_cluster *cluster,
                                       uint32_t index) {
    struct simulator_ps *ps = calloc(1, sizeof *ps);
    if (!ps)
        return NULL;
    ps->simulator_cluster = cluster;
    ps->index = index;
    ps->service_thread.simulator_host =
        simulator_cluster_host(cluster, cluster->config.num_workers + index);
    ps->replies = calloc(cluster->config.num_workers, sizeof *ps->replies);
    if (!ps->replies || !simulator_ps_find_blocks(ps) || !open_exchange(ps) ||
        !set_view(ps))
        simulator_ps_close(&ps);
    return ps;
}

void simulator_ps_close(struct simulator_ps **where) {
    struct simulator_ps *ps = *where;
    *where = NULL;
    if (!ps)
        return;
    for (uint32_t r = 0;
         ps->replies && r < ps->simulator_cluster->config.num_workers; r++)
        free(ps->replies[r].blocks);
    update_core_close(&ps->update_core);
    packet_queue_clear(&ps->inbox);
    packet_queue_clear(&ps->outbox);
    free(ps->current);
    free(ps->replies);
    free(ps->ids);
    free(ps);
}

static void simulator_ps_flush(struct simulator_ps *ps, uint32_t rank) {
    struct reply *reply = &ps->replies[rank];
    if (!reply->count)
        return;
    struct packet *packet =
        packet_new(&reply->head, reply->blocks, reply->count);
    if (packet)
        packet_queue_push(&ps->outbox, packet);
    else
        ps->simulator_cluster->failed = true;
    reply->count = 0;
}

static bool simulator_ps_reserve(struct reply *reply) {
    if (reply->count < reply->capacity)
        return true;
    uint32_t capacity = reply->capacity ? 2 * reply->capacity : 16;
    uint32_t *blocks = realloc(reply->blocks, capacity * sizeof *blocks);
    if (!blocks)
        return false;
    reply->blocks = blocks;
    reply->capacity = capacity;
    return true;
}

/* Replies to one request are sent together, up to a limit. */
static void add_to_reply(struct simulator_ps *ps,
                         const struct update_core_action *action) {
    struct reply *reply = &ps->replies[action->rank];
    uint32_t id = ps->ids[action->block];
    uint64_t bytes = ps->simulator_cluster->block_bytes[id];
    if (reply->count &&
        (reply->head.seq != action->seq || reply->head.clock != action->clock ||
         reply->head.bytes + bytes > ps->simulator_cluster->config.group_bytes))
        simulator_ps_flush(ps, action->rank);
    if (!reply->count)
        reply->head = (struct packet){
            .kind = PACKET_WEIGHTS,
            .from = ps->simulator_cluster->config.num_workers + ps->index,
            .to = action->rank,
            .clock = action->clock,
            .seq = action->seq};
    if (!simulator_ps_reserve(reply)) {
        ps->simulator_cluster->failed = true;
        return;
    }
    reply->blocks[reply->count++] = id;
    reply->head.bytes += bytes;
}

/* One fused pass over the weights and the gradients that it sums. */
static double simulator_ps_pass_seconds(const struct simulator_ps *ps,
                                        uint32_t block, bool over_weights) {
    const struct simulator_config *config = &ps->simulator_cluster->config;
    uint32_t id = ps->ids[block];
    uint32_t gradients = config->staleness ? 1 : config->num_workers;
    double weights =
        sizeof(float) * (double)config->layout->blocks[id].elements;
    return config->costs.gradient_byte * gradients *
               ps->simulator_cluster->block_bytes[id] +
           (over_weights ? config->costs.update_byte * weights : 0);
}

static void execute(struct simulator_ps *ps,
                    const struct update_core_action *action) {
    if (action->kind == UPDATE_CORE_UPDATE) {
        ps->pending_seconds +=
            simulator_ps_pass_seconds(ps, action->block, true);
    } else if (action->kind == UPDATE_CORE_REPLY) {
        add_to_reply(ps, action);
    } else if (action->kind == UPDATE_CORE_SUM) {
        ps->pending_seconds +=
            simulator_ps_pass_seconds(ps, action->block, false);
        if (++ps->num_summed == ps->num_blocks) {
            ps->num_summed = 0;
            simulator_cluster_report_sums(ps->simulator_cluster,
                                          action->version);
        }
    }
}

static void simulator_ps_serve(void *context);

/* The serving thread works for SECONDS plus the pending time. */
static void simulator_ps_work(struct simulator_ps *ps, double seconds) {
    seconds += ps->pending_seconds;
    ps->pending_seconds = 0;
    ps->busy_seconds += seconds;
    simulator_host_run(&ps->service_thread, seconds, simulator_ps_serve, ps);
}

static void simulator_ps_prepare(struct simulator_ps *ps) {
    const struct simulator_costs *costs = &ps->simulator_cluster->config.costs;
    struct packet *packet = packet_queue_pop(&ps->outbox);
    bool copied = packet->count > 1 || ps->simulator_cluster->config.bf16;
    double byte = copied ? costs->copy_byte : 0;
    ps->current = packet;
    simulator_ps_work(ps, costs->message + byte * (double)packet->bytes);
}

static void handle(struct simulator_ps *ps) {
    struct packet *packet = packet_queue_pop(&ps->inbox);
    if (packet->kind == PACKET_NORM)
        update_core_set_norm(ps->update_core, packet->clock);
    for (uint32_t i = 0; i < packet->count; i++)
        if (update_core_push(
                ps->update_core,
                ps->simulator_cluster->local_block[packet->blocks[i]],
                packet->from, packet->clock,
                packet->seq) != UPDATE_CORE_ACCEPTED)
            ps->simulator_cluster->failed = true;
    ps->simulator_cluster->result->received += packet->bytes;
    ps->has_actions = true;
    free(packet);
    simulator_ps_work(ps, ps->simulator_cluster->config.costs.message);
}

/* Runs actions until there is a reply to send or none is left. */
static void simulator_ps_run_actions(struct simulator_ps *ps) {
    struct update_core_action action;
    while (!ps->outbox.first && ps->has_actions) {
        ps->has_actions = update_core_next(ps->update_core, &action);
        if (ps->has_actions)
            execute(ps, &action);
    }
    for (uint32_t r = 0;
         !ps->has_actions && r < ps->simulator_cluster->config.num_workers; r++)
        simulator_ps_flush(ps, r);
}

static void simulator_ps_serve(void *context) {
    struct simulator_ps *ps = context;
    struct packet *packet = ps->current;
    ps->current = NULL;
    if (packet) {
        ps->simulator_cluster->result->replied += packet->bytes;
        simulator_cluster_send(ps->simulator_cluster, packet);
    }
    if (ps->has_actions)
        simulator_ps_run_actions(ps);
    if (ps->outbox.first)
        simulator_ps_prepare(ps);
    else if (ps->pending_seconds > 0)
        simulator_ps_work(ps, 0);
    else if (ps->inbox.first)
        handle(ps);
}

void simulator_ps_receive(struct simulator_ps *ps, struct packet *packet) {
    packet_queue_push(&ps->inbox, packet);
    if (!ps->service_thread.running)
        simulator_ps_serve(ps);
}

double simulator_ps_busy(const struct simulator_ps *ps) {
    return ps->busy_seconds;
}
