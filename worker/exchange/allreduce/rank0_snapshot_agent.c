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
#include "core/base/time.h"
#include "core/base/waiter.h"
#include "core/store/checkpoint_reader.h"
#include "core/store/manifest.h"
#include "core/tensor/rule.h"
#include "proto/holder/snapshot_agent.h"
#include "worker/exchange/allreduce/weights_server.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct rank0_snapshot_agent {
    struct rank0_snapshot_agent_settings settings;
    struct reducer_storage storage;
    struct row_reducer_storage rows;
    /* `round` NULL: none yet. */
    struct rank0_snapshot_agent_callbacks callbacks;
    struct snapshot_agent *snapshot_agent;
    struct weights_server *weights_server;

    /* The reducer's thread only. */
    struct checkpoint_reader *reader;
    struct manifest manifest;
    struct loss_scaler scaler; /* saved with the next blocks */
    bool limit_logged;         /* for this round */

    /* Both threads, and the writer's when it frees a copy, under the mutex: */
    struct waiter waiter;
    uint64_t entered; /* the highest round that may be running */
    uint64_t limit;   /* no round above it may start */
    uint64_t copied;  /* bytes of blocks that are not written yet */
    uint64_t copy_limit;
};

/* The reducer's thread's side of the snapshot agent: initial weights and state
 * come from a checkpoint or from the chief's weights; the blocks of a saved
 * round are copied for the snapshots; before each round the thread waits while
 * the chief is still to name a round. */

enum { COPIES_POLL_US = 2000 };

/* The optimizer of block B. */
static const struct optimizer *rule_of(
    const struct rank0_snapshot_agent_settings *settings, uint32_t b) {
    const struct layout *layout = settings->plan->layout;
    return optimizer_group_find(
        settings->plan->groups,
        layout->parameters[layout->blocks[b].parameter].group,
        &settings->job->optimizer);
}

static enum status open_reader(struct rank0_snapshot_agent *agent,
                               struct failure *why) {
    const struct plan *plan = agent->settings.plan;
    if (agent->reader)
        return STATUS_OK;
    manifest_clear(&agent->manifest);
    enum status status =
        manifest_parse(&agent->manifest, plan->restore_manifest, why);
    if (!status && plan->restore_base)
        status = manifest_parse_base(&agent->manifest, plan->restore_base, why);
    return status ? status
                  : checkpoint_reader_open(&agent->reader, plan->restore_folder,
                                           &agent->manifest, why);
}

static void rank0_snapshot_storage_fill(float *floats, size_t count,
                                        float value) {
    for (size_t i = 0; i < count; i++)
        floats[i] = value;
}

/* The chief (init) or the caller has set the weights in the arena; state starts
 * at its initial values. */
static void load_assigned(const struct rank0_snapshot_agent *agent, uint32_t b,
                          float *const *tensors) {
    const struct rank0_snapshot_agent_settings *settings = &agent->settings;
    const struct block *block = &settings->plan->layout->blocks[b];
    const struct optimizer *rule = rule_of(settings, b);
    const float *weights = (const float *)buffer_data(settings->weights) +
                           settings->offsets[block->parameter] + block->offset;
    memmove(tensors[0], weights, block->elements * sizeof(float));
    for (unsigned s = 0; s < rule_slots(rule); s++)
        rank0_snapshot_storage_fill(tensors[1 + s], block->elements,
                                    rule_slot_start(rule, s));
}

static enum status rank0_snapshot_storage_load(void *context, uint32_t b,
                                               float *const *tensors,
                                               uint64_t *rule_step,
                                               struct failure *why) {
    struct rank0_snapshot_agent *agent = context;
    *rule_step = 0;
    if (!agent->settings.plan->restore_folder) {
        load_assigned(agent, b, tensors);
        return STATUS_OK;
    }
    enum status status = open_reader(agent, why);
    unsigned count = 1 + rule_slots(rule_of(&agent->settings, b));
    for (unsigned t = 0; !status && t < count; t++)
        status = checkpoint_reader_block(agent->reader, b, (uint16_t)t,
                                         tensors[t], why);
    if (!status)
        status = checkpoint_reader_rule_step(agent->reader, b, rule_step, why);
    if (b + 1 == agent->settings.plan->layout->num_blocks)
        checkpoint_reader_close(&agent->reader);
    return status;
}

static enum status restore_rows(void *context, struct row_shard *rows,
                                uint32_t p, uint64_t *rule_step,
                                struct failure *why) {
    struct rank0_snapshot_agent *agent = context;
    const struct layout *layout = agent->settings.plan->layout;
    enum status status = open_reader(agent, why);
    if (!status)
        status = row_shard_units.restore(rows, p, agent->reader, why);
    if (!status)
        status = checkpoint_reader_rule_step(
            agent->reader, layout->num_blocks + p, rule_step, why);
    if (p + 1 == layout->num_partitions)
        checkpoint_reader_close(&agent->reader);
    return status;
}

static void note(void *context, const struct loss_scaler *scaler) {
    struct rank0_snapshot_agent *agent = context;
    agent->scaler = *scaler;
}

/* A copy has been written, on the writer's thread, or is not needed. */
static void recycle_copy(void *owner, struct buffer *copy) {
    struct rank0_snapshot_agent *agent = owner;
    waiter_enter(&agent->waiter);
    agent->copied -= buffer_bytes(copy);
    waiter_leave_changed(&agent->waiter);
    buffer_destroy(copy);
}

/* COPIES[COUNT] of BYTES each; false: no memory for all of them. */
static bool open_copies(struct rank0_snapshot_agent *agent, size_t bytes,
                        unsigned count, struct buffer **copies) {
    for (unsigned t = 0; t < count; t++) {
        copies[t] = buffer_open(bytes, recycle_copy, agent);
        if (copies[t])
            continue;
        while (t)
            buffer_destroy(copies[--t]);
        copies[0] = NULL;
        return false;
    }
    return true;
}

/* Waits for the disk while the copies are at their limit. A block larger than
 * the limit is copied when no other is pending. A failed allocation may succeed
 * once earlier copies are written and freed: without any pending, COPIES[0] is
 * NULL. False: cancelled. */
static bool await_copies(struct rank0_snapshot_agent *agent, size_t bytes,
                         unsigned count, struct buffer **copies) {
    bool waited = false, opened = false;
    waiter_enter(&agent->waiter);
    while (!agent->waiter.cancelled) {
        uint64_t copied = agent->copied;
        bool fits = !copied || copied + bytes * count <= agent->copy_limit;
        opened = fits && open_copies(agent, bytes, count, copies);
        if (opened || !copied)
            break;
        waited = true;
        waiter_wait(&agent->waiter, TIME_NEVER, NULL);
    }
    bool cancelled = agent->waiter.cancelled;
    agent->copied += opened ? bytes * count : 0;
    waiter_leave(&agent->waiter);
    if (waited && !agent->limit_logged) {
        agent->limit_logged = true;
        log_warning(agent->settings.process->log, "updates_paused",
                    "copies for the checkpoint have reached their limit "
                    "(checkpoint.copy_mb): training waits for the disk");
    }
    return opened || !cancelled;
}

/* Every block's record has a ledger row; here it holds only the block's update
 * number, as there are no pushes to deduplicate. */
static enum status rank0_snapshot_storage_save(void *context, uint64_t round,
                                               uint32_t b,
                                               const float *const *tensors,
                                               uint64_t rule_step,
                                               struct failure *why) {
    struct rank0_snapshot_agent *agent = context;
    const struct rank0_snapshot_agent_settings *settings = &agent->settings;
    size_t bytes = settings->plan->layout->blocks[b].elements * sizeof(float);
    unsigned count = 1 + rule_slots(rule_of(settings, b));
    struct buffer *copies[SNAPSHOTS_MAX_TENSORS] = {NULL};
    struct snapshots_block block = {.version = round,
                                    .tensors = copies,
                                    .row = &round,
                                    .rule_step = rule_step,
                                    .scaler = agent->scaler};
    uint64_t id;
    (void)why;
    if (b == 0)
        agent->limit_logged = false;
    if (!settings->plan->checkpoint_dir ||
        waiter_is_cancelled(&agent->waiter) ||
        !snapshot_agent_due(agent->snapshot_agent, round, &id) ||
        !await_copies(agent, bytes, count, copies))
        return STATUS_OK;
    for (unsigned t = 0; copies[0] && t < count; t++)
        memcpy(buffer_data(copies[t]), tensors[t], bytes);
    snapshots_add(snapshot_agent_snapshots(agent->snapshot_agent), id, b,
                  &block);
    for (unsigned t = 0; t < count; t++)
        buffer_release(&copies[t]);
    return STATUS_OK;
}

/* Views of pages, which an update copies while they are held. */
static enum status save_rows(void *context, const struct row_reducer_saved *as,
                             struct row_shard *rows, uint32_t p,
                             struct failure *why) {
    struct rank0_snapshot_agent *agent = context;
    const struct plan *plan = agent->settings.plan;
    struct snapshots *snapshots =
        snapshot_agent_snapshots(agent->snapshot_agent);
    struct snapshots_block block = {.version = as->round,
                                    .row = &as->round,
                                    .rule_step = as->rule_step,
                                    .scaler = agent->scaler};
    uint64_t id;
    (void)why;
    if (!plan->checkpoint_dir || waiter_is_cancelled(&agent->waiter) ||
        !snapshot_agent_due(agent->snapshot_agent, as->round, &id))
        return STATUS_OK;
    struct unit_cut cut = {
        .id = id, .step = as->step, .form = snapshots_form(snapshots, id)};
    row_shard_units.cut(rows, p, &cut, &block);
    snapshots_add(snapshots, id, plan->layout->num_blocks + p, &block);
    return STATUS_OK;
}

/* Pages that an update changes are copied while a checkpoint holds them. The
 * disk frees them on the writer's thread, without a word. */
static void await_row_copies(void *context, const struct row_shard *rows) {
    struct rank0_snapshot_agent *agent = context;
    struct snapshots *snapshots =
        snapshot_agent_snapshots(agent->snapshot_agent);
    bool waited = false;
    while (snapshots_busy(snapshots) && !waiter_is_cancelled(&agent->waiter) &&
           row_shard_copied_bytes(rows) >= agent->copy_limit) {
        waited = true;
        usleep(COPIES_POLL_US);
    }
    if (!waited || agent->limit_logged)
        return;
    agent->limit_logged = true;
    log_warning(agent->settings.process->log, "updates_paused",
                "copies for the checkpoint have reached their limit "
                "(checkpoint.copy_mb): training waits for the disk");
}

static void pause_rounds(void *context, uint64_t round) {
    struct rank0_snapshot_agent *agent = context;
    waiter_enter(&agent->waiter);
    while (round + 1 > agent->limit &&
           waiter_wait(&agent->waiter, TIME_NEVER, NULL))
        ;
    agent->entered = round + 1;
    waiter_leave(&agent->waiter);
}

/* The callbacks that the reducer calls on its own thread. */
static struct reducer_storage rank0_snapshot_storage_functions(
    struct rank0_snapshot_agent *agent) {
    return (struct reducer_storage){
        .context = agent,
        .load = rank0_snapshot_storage_load,
        .note = note,
        .save = rank0_snapshot_storage_save,
        .pause = pause_rounds,
    };
}

static struct row_reducer_storage rank0_snapshot_storage_rows(
    struct rank0_snapshot_agent *agent) {
    return (struct row_reducer_storage){agent, restore_rows, save_rows,
                                        await_row_copies};
}

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
    waiter_enter(&agent->waiter);
    uint64_t highest = agent->entered;
    agent->limit = highest;
    waiter_leave(&agent->waiter);
    return highest < total ? highest : total;
}

static void lift_freeze(struct rank0_snapshot_agent *agent) {
    waiter_enter(&agent->waiter);
    agent->limit = UINT64_MAX;
    waiter_leave_changed(&agent->waiter);
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
        .blocks = {.trace = settings->process->trace,
                   .layout = layout,
                   .num_units = layout_units(layout),
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
    agent->copy_limit = settings->job->checkpoint.copy_mb
                            ? settings->job->checkpoint.copy_mb << 20
                            : free_memory_half();
    agent->entered = settings->plan->run_schedule.start + 1;
    agent->limit = UINT64_MAX;
    waiter_open(&agent->waiter);
    enum status status = open_agent(agent, why);
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
    waiter_cancel(&agent->waiter);
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
    waiter_close(&agent->waiter);
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
