/* SPDX-License-Identifier: Apache-2.0 */
/* The reducer's thread's side of the snapshot agent: initial weights and state
 * come from a checkpoint or from the chief's weights; the blocks of a saved
 * round go to the shard writer; before each round the thread waits while the
 * chief is still to name a round. */
#include "proto/tensor/rule.h"
#include "worker/exchange/allreduce/rank0_snapshot_agent_internal.h"

#include <string.h>
#include <sys/eventfd.h>

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

static void wake(struct rank0_snapshot_agent *rank0_snapshot_agent) {
    eventfd_write(rank0_snapshot_agent->descriptor, 1);
}

/* A checkpoint that is due while another is being written is skipped, except
 * the last one. */
static void begin_save(struct rank0_snapshot_agent *rank0_snapshot_agent,
                       uint64_t round) {
    pthread_mutex_lock(&rank0_snapshot_agent->mutex);
    bool requested = rank0_snapshot_agent->requested_id &&
                     rank0_snapshot_agent->requested_round == round;
    rank0_snapshot_agent->saving =
        requested ? rank0_snapshot_agent->requested_id : round;
    pthread_mutex_unlock(&rank0_snapshot_agent->mutex);
    bool last =
        round == rank0_snapshot_agent->settings.plan->run_schedule.total;
    rank0_snapshot_agent->limit_logged = false;
    bool busy =
        !requested && !last &&
        async_shard_writer_busy(rank0_snapshot_agent->async_shard_writer);
    rank0_snapshot_agent->skipped_round =
        busy ||
        !async_shard_writer_begin(rank0_snapshot_agent->async_shard_writer,
                                  rank0_snapshot_agent->saving, round,
                                  &rank0_snapshot_agent->scaler);
    if (!busy)
        return;
    log_warning(rank0_snapshot_agent->settings.log, "checkpoint_skipped",
                "the checkpoint of step %llu is left out: an earlier one "
                "is still being written",
                (unsigned long long)round);
    pthread_mutex_lock(&rank0_snapshot_agent->mutex);
    rank0_snapshot_agent->skipped = round;
    pthread_mutex_unlock(&rank0_snapshot_agent->mutex);
    wake(rank0_snapshot_agent);
}

static void end_save(struct rank0_snapshot_agent *rank0_snapshot_agent) {
    pthread_mutex_lock(&rank0_snapshot_agent->mutex);
    if (rank0_snapshot_agent->saving == rank0_snapshot_agent->requested_id) {
        rank0_snapshot_agent->held = rank0_snapshot_agent->requested_held_sent
                                         ? 0
                                         : rank0_snapshot_agent->requested_id;
        rank0_snapshot_agent->requested_id = 0;
    }
    pthread_mutex_unlock(&rank0_snapshot_agent->mutex);
    wake(rank0_snapshot_agent);
}

static void note(void *context, const struct loss_scaler *scaler) {
    struct rank0_snapshot_agent *rank0_snapshot_agent = context;
    rank0_snapshot_agent->scaler = *scaler;
}

static enum status rank0_snapshot_storage_save(void *context, uint64_t round,
                                               uint32_t b,
                                               const float *const *tensors,
                                               struct failure *why) {
    struct rank0_snapshot_agent *rank0_snapshot_agent = context;
    bool waited = false;
    (void)why;
    if (!rank0_snapshot_agent->settings.plan->checkpoint_dir)
        return STATUS_OK;
    if (b == 0)
        begin_save(rank0_snapshot_agent, round);
    if (rank0_snapshot_agent->skipped_round)
        return STATUS_OK;
    if (b + 1 == rank0_snapshot_agent->settings.plan->layout->num_blocks)
        end_save(
            rank0_snapshot_agent); /* before the writer can report the end */
    async_shard_writer_add(rank0_snapshot_agent->async_shard_writer, tensors,
                           &waited);
    if (waited && !rank0_snapshot_agent->limit_logged) {
        rank0_snapshot_agent->limit_logged = true;
        log_warning(rank0_snapshot_agent->settings.log, "updates_paused",
                    "copies for the checkpoint have reached their limit "
                    "(checkpoint.copy_mb): training waits for the disk");
    }
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
