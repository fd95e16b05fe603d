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

#include "proto/base/free_memory.h"
#include "worker/exchange/allreduce/rank0_snapshot_agent_internal.h"

#include <stdlib.h>

static void rank0_snapshot_agent_send_ready(
    struct rank0_snapshot_agent *rank0_snapshot_agent) {
    Capstan__Ready ready = CAPSTAN__READY__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    ready.shares_folder =
        snapshot_agent_shares_folder(rank0_snapshot_agent->snapshot_agent);
    ready.port = weights_server_port(rank0_snapshot_agent->weights_server);
    control.body_case = CAPSTAN__CONTROL__BODY_READY;
    control.ready = &ready;
    rank0_snapshot_agent->settings.send_message(
        rank0_snapshot_agent->settings.context, &control);
}

/* The running round's header may already have reached the other ranks: only the
 * next round can still be saved. */
static uint64_t rank0_snapshot_agent_freeze(void *context) {
    struct rank0_snapshot_agent *rank0_snapshot_agent = context;
    uint64_t total = rank0_snapshot_agent->settings.plan->run_schedule.total;
    pthread_mutex_lock(&rank0_snapshot_agent->mutex);
    uint64_t highest = rank0_snapshot_agent->entered;
    rank0_snapshot_agent->limit = highest;
    pthread_mutex_unlock(&rank0_snapshot_agent->mutex);
    return highest < total ? highest : total;
}

static void lift_freeze(struct rank0_snapshot_agent *rank0_snapshot_agent) {
    pthread_mutex_lock(&rank0_snapshot_agent->mutex);
    rank0_snapshot_agent->limit = UINT64_MAX;
    pthread_cond_broadcast(&rank0_snapshot_agent->changed);
    pthread_mutex_unlock(&rank0_snapshot_agent->mutex);
}

static enum status rank0_snapshot_agent_hold_at(void *context, uint64_t round,
                                                bool write,
                                                struct failure *why) {
    struct rank0_snapshot_agent *rank0_snapshot_agent = context;
    (void)why;
    if (round && write)
        rank0_snapshot_agent->callbacks.save(
            rank0_snapshot_agent->callbacks.context, round);
    lift_freeze(rank0_snapshot_agent);
    return STATUS_OK;
}

/* No rank trains any more: reads are answered from the current weights. */
static enum status rank0_snapshot_agent_hold_now(void *context, uint64_t id,
                                                 struct failure *why) {
    struct rank0_snapshot_agent *rank0_snapshot_agent = context;
    const struct rank0_snapshot_agent_callbacks *callbacks =
        &rank0_snapshot_agent->callbacks;
    (void)why;
    weights_server_serve(rank0_snapshot_agent->weights_server, id);
    snapshots_promise(
        snapshot_agent_snapshots(rank0_snapshot_agent->snapshot_agent), id,
        callbacks->round(callbacks->context));
    return STATUS_OK;
}

static void rank0_snapshot_agent_hand_over(void *context) {
    struct rank0_snapshot_agent *rank0_snapshot_agent = context;
    lift_freeze(rank0_snapshot_agent);
    rank0_snapshot_agent->callbacks.save_now(
        rank0_snapshot_agent->callbacks.context);
}

/* Rank 0 answers reads by its weights server, from the current weights. */
static enum status open_agent(struct rank0_snapshot_agent *rank0_snapshot_agent,
                              struct failure *why) {
    const struct rank0_snapshot_agent_settings *settings =
        &rank0_snapshot_agent->settings;
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
                   .num_tensors = 1 + rule_slots(&settings->job->optimizer),
                   .row_bytes = sizeof(uint64_t)},
        .source = {rank0_snapshot_agent, rank0_snapshot_agent_freeze,
                   rank0_snapshot_agent_hold_at, rank0_snapshot_agent_hold_now,
                   rank0_snapshot_agent_hand_over},
    };
    return snapshot_agent_open(&rank0_snapshot_agent->snapshot_agent,
                               &snapshot_agent, why);
}

static enum status open_weights_server(
    struct rank0_snapshot_agent *rank0_snapshot_agent, struct failure *why) {
    const struct rank0_snapshot_agent_settings *settings =
        &rank0_snapshot_agent->settings;
    struct weights_server_settings weights_server = {
        .process = settings->process,
        .inproc = settings->inproc,
        .chief = settings->chief,
        .layout = settings->plan->layout,
        .weights = (float *)buffer_data(settings->weights),
        .offsets = settings->offsets,
    };
    return weights_server_open(&rank0_snapshot_agent->weights_server,
                               &weights_server, why);
}

enum status rank0_snapshot_agent_open(
    struct rank0_snapshot_agent **out,
    const struct rank0_snapshot_agent_settings *settings, struct failure *why) {
    struct rank0_snapshot_agent *rank0_snapshot_agent =
        calloc(1, sizeof *rank0_snapshot_agent);
    *out = NULL;
    if (!rank0_snapshot_agent)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for checkpoints");
    rank0_snapshot_agent->settings = *settings;
    rank0_snapshot_agent->storage =
        rank0_snapshot_storage_functions(rank0_snapshot_agent);
    rank0_snapshot_agent->copy_limit = settings->job->checkpoint.copy_mb
                                           ? settings->job->checkpoint.copy_mb
                                                 << 20
                                           : free_memory_half();
    rank0_snapshot_agent->entered = settings->plan->run_schedule.start + 1;
    rank0_snapshot_agent->limit = UINT64_MAX;
    pthread_mutex_init(&rank0_snapshot_agent->mutex, NULL);
    pthread_cond_init(&rank0_snapshot_agent->changed, NULL);
    enum status status = open_agent(rank0_snapshot_agent, why);
    if (!status)
        status = open_weights_server(rank0_snapshot_agent, why);
    if (status) {
        rank0_snapshot_agent_close(&rank0_snapshot_agent);
        return status;
    }
    rank0_snapshot_agent_send_ready(rank0_snapshot_agent);
    *out = rank0_snapshot_agent;
    return STATUS_OK;
}

void rank0_snapshot_agent_cancel(
    struct rank0_snapshot_agent *rank0_snapshot_agent) {
    pthread_mutex_lock(&rank0_snapshot_agent->mutex);
    rank0_snapshot_agent->cancelled = true;
    pthread_cond_broadcast(&rank0_snapshot_agent->changed);
    pthread_mutex_unlock(&rank0_snapshot_agent->mutex);
}

void rank0_snapshot_agent_close(struct rank0_snapshot_agent **where) {
    struct rank0_snapshot_agent *rank0_snapshot_agent = *where;
    *where = NULL;
    if (!rank0_snapshot_agent)
        return;
    snapshot_agent_close(&rank0_snapshot_agent->snapshot_agent);
    weights_server_close(&rank0_snapshot_agent->weights_server);
    checkpoint_reader_close(&rank0_snapshot_agent->reader);
    manifest_clear(&rank0_snapshot_agent->manifest);
    pthread_mutex_destroy(&rank0_snapshot_agent->mutex);
    pthread_cond_destroy(&rank0_snapshot_agent->changed);
    free(rank0_snapshot_agent);
}

const struct reducer_storage *rank0_snapshot_agent_storage(
    const struct rank0_snapshot_agent *rank0_snapshot_agent) {
    return &rank0_snapshot_agent->storage;
}

void rank0_snapshot_agent_attach(
    struct rank0_snapshot_agent *rank0_snapshot_agent,
    const struct rank0_snapshot_agent_callbacks *callbacks) {
    rank0_snapshot_agent->callbacks = *callbacks;
    weights_server_freeze(rank0_snapshot_agent->weights_server);
}

/* Before there are rounds, only old checkpoints can be dropped. */
enum status rank0_snapshot_agent_handle(
    struct rank0_snapshot_agent *rank0_snapshot_agent,
    const Capstan__Control *command, struct failure *why) {
    if (!rank0_snapshot_agent->callbacks.round &&
        command->body_case != CAPSTAN__CONTROL__BODY_RETAIN)
        return STATUS_OK;
    if (command->body_case == CAPSTAN__CONTROL__BODY_SNAPSHOT_RELEASE)
        weights_server_serve(rank0_snapshot_agent->weights_server, 0);
    return snapshot_agent_handle(rank0_snapshot_agent->snapshot_agent, command,
                                 why);
}

void rank0_snapshot_agent_poll_items(
    struct rank0_snapshot_agent *rank0_snapshot_agent, zmq_pollitem_t *items) {
    items[0] = weights_server_poll_item(rank0_snapshot_agent->weights_server);
    items[1] = (zmq_pollitem_t){
        NULL, snapshot_agent_descriptor(rank0_snapshot_agent->snapshot_agent),
        ZMQ_POLLIN, 0};
}

void rank0_snapshot_agent_step(
    struct rank0_snapshot_agent *rank0_snapshot_agent) {
    weights_server_step(rank0_snapshot_agent->weights_server);
    snapshot_agent_step(rank0_snapshot_agent->snapshot_agent);
}
