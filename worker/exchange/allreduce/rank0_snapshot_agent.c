/* SPDX-License-Identifier: Apache-2.0 */
/* Two threads meet here: the reducer's thread loads, saves and pauses
 * (rank0_snapshot_agent_storage); the communication thread handles the chief's
 * messages and reports the results.
 *
 * A planned round is saved without negotiation. A round that the chief requests
 * is agreed on first: the prepare message blocks rounds above the highest one
 * that may be running, which is the answer; the chief names a round from there
 * on; it is passed to the reducer and the block is released. After training no
 * round needs agreement: the current state is held at once, and all ranks hand
 * it over when it is to be written. */
#include "worker/exchange/allreduce/rank0_snapshot_agent.h"

#include "core/base/free_memory.h"
#include "worker/exchange/allreduce/rank0_snapshot_agent_internal.h"

#include <stdlib.h>

static void rank0_snapshot_agent_send_ready(
    struct rank0_snapshot_agent *agent) {
    Capstan__Ready ready = CAPSTAN__READY__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    ready.shares_folder = snapshot_agent_shares_folder(agent->snapshot_agent);
    ready.port = weights_server_port(agent->weights_server);
    control.body_case = CAPSTAN__CONTROL__BODY_READY;
    control.ready = &ready;
    agent->settings.send_message(agent->settings.context, &control);
}

/* The running round's header may already have reached the other ranks: only the
 * next round can still be saved. */
static uint64_t rank0_snapshot_agent_freeze(void *context) {
    struct rank0_snapshot_agent *agent = context;
    uint64_t total = agent->settings.plan->run_schedule.total;
    pthread_mutex_lock(&agent->mutex);
    uint64_t highest = agent->entered;
    agent->limit = highest;
    pthread_mutex_unlock(&agent->mutex);
    return highest < total ? highest : total;
}

static void lift_freeze(struct rank0_snapshot_agent *agent) {
    pthread_mutex_lock(&agent->mutex);
    agent->limit = UINT64_MAX;
    pthread_cond_broadcast(&agent->changed);
    pthread_mutex_unlock(&agent->mutex);
}

static enum status rank0_snapshot_agent_hold_at(void *context, uint64_t round,
                                                bool write,
                                                struct failure *why) {
    struct rank0_snapshot_agent *agent = context;
    (void)why;
    if (round && write)
        agent->callbacks.save(agent->callbacks.context, round);
    lift_freeze(agent);
    return STATUS_OK;
}

/* No rank trains any more: reads are answered from the current weights. */
static enum status rank0_snapshot_agent_hold_now(void *context, uint64_t id,
                                                 struct failure *why) {
    struct rank0_snapshot_agent *agent = context;
    const struct rank0_snapshot_agent_callbacks *callbacks = &agent->callbacks;
    (void)why;
    weights_server_serve(agent->weights_server, id);
    snapshots_promise(snapshot_agent_snapshots(agent->snapshot_agent), id,
                      callbacks->round(callbacks->context));
    return STATUS_OK;
}

static void rank0_snapshot_agent_hand_over(void *context) {
    struct rank0_snapshot_agent *agent = context;
    lift_freeze(agent);
    agent->callbacks.save_now(agent->callbacks.context);
}

static void rank0_snapshot_agent_set_base(void *context, uint64_t id) {
    struct rank0_snapshot_agent *agent = context;
    if (agent->callbacks.rows)
        row_reducer_set_base(agent->callbacks.rows, id);
}

/* Rank 0 answers reads by its weights server, from the current weights. */
static enum status open_agent(struct rank0_snapshot_agent *agent,
                              struct failure *why) {
    const struct rank0_snapshot_agent_settings *settings = &agent->settings;
    const struct layout *layout = settings->plan->layout;
    struct snapshot_agent_settings snapshot_agent = {
        .log = settings->process->log,
        .send = settings->send_message,
        .send_context = settings->context,
        .run = settings->process->run,
        .plan = settings->plan,
        .owner = "rank 0",
        .count = 1,
        .has_first_block = true,
        .blocks = {.layout = layout,
                   .num_blocks = layout->num_blocks,
                   .num_partitions =
                       layout->num_tables ? layout->num_partitions : 0,
                   .num_tensors = 1 + rule_slots(&settings->job->optimizer),
                   .groups = settings->plan->groups,
                   .row_bytes = sizeof(uint64_t)},
        .source = {agent, rank0_snapshot_agent_freeze,
                   rank0_snapshot_agent_hold_at, rank0_snapshot_agent_hold_now,
                   rank0_snapshot_agent_hand_over,
                   rank0_snapshot_agent_set_base},
    };
    return snapshot_agent_open(&agent->snapshot_agent, &snapshot_agent, why);
}

static enum status open_weights_server(struct rank0_snapshot_agent *agent,
                                       struct failure *why) {
    const struct rank0_snapshot_agent_settings *settings = &agent->settings;
    struct weights_server_settings weights_server = {
        .process = settings->process,
        .inproc = settings->inproc,
        .chief = settings->chief,
        .layout = settings->plan->layout,
        .weights = (float *)buffer_data(settings->weights),
        .offsets = settings->offsets,
    };
    return weights_server_open(&agent->weights_server, &weights_server, why);
}

enum status rank0_snapshot_agent_open(
    struct rank0_snapshot_agent **out,
    const struct rank0_snapshot_agent_settings *settings, struct failure *why) {
    struct rank0_snapshot_agent *agent = calloc(1, sizeof *agent);
    *out = NULL;
    if (!agent)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for checkpoints");
    agent->settings = *settings;
    agent->storage = rank0_snapshot_storage_functions(agent);
    agent->rows = rank0_snapshot_storage_rows(agent);
    agent->row_views = calloc(settings->plan->layout->num_stacks + 1,
                              sizeof *agent->row_views);
    agent->copy_limit = settings->job->checkpoint.copy_mb
                            ? settings->job->checkpoint.copy_mb << 20
                            : free_memory_half();
    agent->entered = settings->plan->run_schedule.start + 1;
    agent->limit = UINT64_MAX;
    pthread_mutex_init(&agent->mutex, NULL);
    pthread_cond_init(&agent->changed, NULL);
    enum status status = open_agent(agent, why);
    if (!status && !agent->row_views)
        status =
            status_fail(why, FAILURE_NO_MEMORY, "no memory for checkpoints");
    if (!status)
        status = open_weights_server(agent, why);
    if (status) {
        rank0_snapshot_agent_close(&agent);
        return status;
    }
    rank0_snapshot_agent_send_ready(agent);
    *out = agent;
    return STATUS_OK;
}

void rank0_snapshot_agent_cancel(struct rank0_snapshot_agent *agent) {
    pthread_mutex_lock(&agent->mutex);
    agent->cancelled = true;
    pthread_cond_broadcast(&agent->changed);
    pthread_mutex_unlock(&agent->mutex);
}

void rank0_snapshot_agent_close(struct rank0_snapshot_agent **where) {
    struct rank0_snapshot_agent *agent = *where;
    *where = NULL;
    if (!agent)
        return;
    snapshot_agent_close(&agent->snapshot_agent);
    weights_server_close(&agent->weights_server);
    checkpoint_reader_close(&agent->reader);
    manifest_clear(&agent->manifest);
    free(agent->row_views);
    pthread_mutex_destroy(&agent->mutex);
    pthread_cond_destroy(&agent->changed);
    free(agent);
}

const struct reducer_storage *rank0_snapshot_agent_storage(
    const struct rank0_snapshot_agent *agent) {
    return &agent->storage;
}

const struct row_reducer_storage *rank0_snapshot_agent_rows(
    const struct rank0_snapshot_agent *agent) {
    return &agent->rows;
}

void rank0_snapshot_agent_attach(
    struct rank0_snapshot_agent *agent,
    const struct rank0_snapshot_agent_callbacks *callbacks) {
    agent->callbacks = *callbacks;
    weights_server_freeze(agent->weights_server);
}

/* Before there are rounds, only old checkpoints can be dropped. */
enum status rank0_snapshot_agent_handle(struct rank0_snapshot_agent *agent,
                                        const Capstan__Control *command,
                                        struct failure *why) {
    if (!agent->callbacks.round &&
        command->body_case != CAPSTAN__CONTROL__BODY_RETAIN)
        return STATUS_OK;
    if (command->body_case == CAPSTAN__CONTROL__BODY_SNAPSHOT_RELEASE)
        weights_server_serve(agent->weights_server, 0);
    return snapshot_agent_handle(agent->snapshot_agent, command, why);
}

void rank0_snapshot_agent_poll_items(struct rank0_snapshot_agent *agent,
                                     zmq_pollitem_t *items) {
    items[0] = weights_server_poll_item(agent->weights_server);
    items[1] = (zmq_pollitem_t){
        NULL, snapshot_agent_descriptor(agent->snapshot_agent), ZMQ_POLLIN, 0};
}

void rank0_snapshot_agent_step(struct rank0_snapshot_agent *agent) {
    weights_server_step(agent->weights_server);
    snapshot_agent_step(agent->snapshot_agent);
}
