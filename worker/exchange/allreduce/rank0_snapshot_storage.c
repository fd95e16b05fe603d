/* SPDX-License-Identifier: Apache-2.0 */
/* The reducer's thread's side of the snapshot agent: initial weights and state
 * come from a checkpoint or from the chief's weights; the blocks of a saved
 * round are copied for the snapshots; before each round the thread waits while
 * the chief is still to name a round. */
#include "proto/tensor/rule.h"
#include "worker/exchange/allreduce/rank0_snapshot_agent_internal.h"

#include <string.h>

/* The reducer's thread. */

static enum status open_reader(
    struct rank0_snapshot_agent *rank0_snapshot_agent, struct failure *why) {
    const struct plan *plan = rank0_snapshot_agent->settings.plan;
    if (rank0_snapshot_agent->reader)
        return STATUS_OK;
    enum status status = manifest_parse(&rank0_snapshot_agent->manifest,
                                        plan->restore_manifest, why);
    return status
               ? status
               : checkpoint_reader_open(&rank0_snapshot_agent->reader,
                                        plan->restore_folder,
                                        &rank0_snapshot_agent->manifest, why);
}

static void rank0_snapshot_storage_fill(float *floats, size_t count,
                                        float value) {
    for (size_t i = 0; i < count; i++)
        floats[i] = value;
}

/* The chief has set the weights in the arena (init); state starts at its
 * initial values. */
static void load_assigned(
    const struct rank0_snapshot_agent *rank0_snapshot_agent, uint32_t b,
    float *const *tensors) {
    const struct rank0_snapshot_agent_settings *settings =
        &rank0_snapshot_agent->settings;
    const struct block *block = &settings->plan->layout->blocks[b];
    const struct optimizer *rule = &settings->job->optimizer;
    const float *weights = (const float *)buffer_data(settings->weights) +
                           settings->offsets[block->parameter] + block->offset;
    memmove(tensors[0], weights, block->elements * sizeof(float));
    for (unsigned s = 0; s < rule_slots(rule); s++)
        rank0_snapshot_storage_fill(tensors[1 + s], block->elements,
                                    rule_slot_start(rule, s));
}

static enum status rank0_snapshot_storage_load(void *context, uint32_t b,
                                               float *const *tensors,
                                               struct failure *why) {
    struct rank0_snapshot_agent *rank0_snapshot_agent = context;
    if (!rank0_snapshot_agent->settings.plan->restore_folder) {
        load_assigned(rank0_snapshot_agent, b, tensors);
        return STATUS_OK;
    }
    enum status status = open_reader(rank0_snapshot_agent, why);
    unsigned count =
        1 + rule_slots(&rank0_snapshot_agent->settings.job->optimizer);
    for (unsigned t = 0; !status && t < count; t++)
        status = checkpoint_reader_block(rank0_snapshot_agent->reader, b,
                                         (uint16_t)t, tensors[t], why);
    if (b + 1 == rank0_snapshot_agent->settings.plan->layout->num_blocks)
        checkpoint_reader_close(&rank0_snapshot_agent->reader);
    return status;
}

static void note(void *context, const struct loss_scaler *scaler) {
    struct rank0_snapshot_agent *rank0_snapshot_agent = context;
    rank0_snapshot_agent->scaler = *scaler;
}

static bool is_cancelled(struct rank0_snapshot_agent *rank0_snapshot_agent) {
    pthread_mutex_lock(&rank0_snapshot_agent->mutex);
    bool cancelled = rank0_snapshot_agent->cancelled;
    pthread_mutex_unlock(&rank0_snapshot_agent->mutex);
    return cancelled;
}

/* A copy has been written, on the writer's thread, or is not needed. */
static void recycle_copy(void *owner, struct buffer *copy) {
    struct rank0_snapshot_agent *rank0_snapshot_agent = owner;
    pthread_mutex_lock(&rank0_snapshot_agent->mutex);
    rank0_snapshot_agent->copied -= buffer_bytes(copy);
    pthread_cond_broadcast(&rank0_snapshot_agent->changed);
    pthread_mutex_unlock(&rank0_snapshot_agent->mutex);
    buffer_destroy(copy);
}

/* COPIES[COUNT] of BYTES each; false: no memory for all of them. */
static bool open_copies(struct rank0_snapshot_agent *rank0_snapshot_agent,
                        size_t bytes, unsigned count, struct buffer **copies) {
    for (unsigned t = 0; t < count; t++) {
        copies[t] = buffer_open(bytes, recycle_copy, rank0_snapshot_agent);
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
static bool await_copies(struct rank0_snapshot_agent *rank0_snapshot_agent,
                         size_t bytes, unsigned count, struct buffer **copies) {
    bool waited = false, opened = false;
    pthread_mutex_lock(&rank0_snapshot_agent->mutex);
    while (!rank0_snapshot_agent->cancelled) {
        uint64_t copied = rank0_snapshot_agent->copied;
        bool fits = !copied ||
                    copied + bytes * count <= rank0_snapshot_agent->copy_limit;
        opened =
            fits && open_copies(rank0_snapshot_agent, bytes, count, copies);
        if (opened || !copied)
            break;
        waited = true;
        pthread_cond_wait(&rank0_snapshot_agent->changed,
                          &rank0_snapshot_agent->mutex);
    }
    bool cancelled = rank0_snapshot_agent->cancelled;
    rank0_snapshot_agent->copied += opened ? bytes * count : 0;
    pthread_mutex_unlock(&rank0_snapshot_agent->mutex);
    if (waited && !rank0_snapshot_agent->limit_logged) {
        rank0_snapshot_agent->limit_logged = true;
        log_warning(rank0_snapshot_agent->settings.process->log,
                    "updates_paused",
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
                                               struct failure *why) {
    struct rank0_snapshot_agent *rank0_snapshot_agent = context;
    const struct rank0_snapshot_agent_settings *settings =
        &rank0_snapshot_agent->settings;
    size_t bytes = settings->plan->layout->blocks[b].elements * sizeof(float);
    unsigned count = 1 + rule_slots(&settings->job->optimizer);
    struct buffer *copies[SNAPSHOTS_MAX_TENSORS] = {NULL};
    struct snapshots_block block = {.version = round,
                                    .tensors = copies,
                                    .row = &round,
                                    .scaler = rank0_snapshot_agent->scaler};
    uint64_t id;
    (void)why;
    if (b == 0)
        rank0_snapshot_agent->limit_logged = false;
    if (!settings->plan->checkpoint_dir || is_cancelled(rank0_snapshot_agent) ||
        !snapshot_agent_due(rank0_snapshot_agent->snapshot_agent, round, &id) ||
        !await_copies(rank0_snapshot_agent, bytes, count, copies))
        return STATUS_OK;
    for (unsigned t = 0; copies[0] && t < count; t++)
        memcpy(buffer_data(copies[t]), tensors[t], bytes);
    snapshots_add(
        snapshot_agent_snapshots(rank0_snapshot_agent->snapshot_agent), id, b,
        &block);
    for (unsigned t = 0; t < count; t++)
        buffer_release(&copies[t]);
    return STATUS_OK;
}

static void pause_rounds(void *context, uint64_t round) {
    struct rank0_snapshot_agent *rank0_snapshot_agent = context;
    pthread_mutex_lock(&rank0_snapshot_agent->mutex);
    while (round + 1 > rank0_snapshot_agent->limit &&
           !rank0_snapshot_agent->cancelled)
        pthread_cond_wait(&rank0_snapshot_agent->changed,
                          &rank0_snapshot_agent->mutex);
    rank0_snapshot_agent->entered = round + 1;
    pthread_mutex_unlock(&rank0_snapshot_agent->mutex);
}

struct reducer_storage rank0_snapshot_storage_functions(
    struct rank0_snapshot_agent *rank0_snapshot_agent) {
    return (struct reducer_storage){
        .context = rank0_snapshot_agent,
        .load = rank0_snapshot_storage_load,
        .note = note,
        .save = rank0_snapshot_storage_save,
        .pause = pause_rounds,
    };
}
