/* SPDX-License-Identifier: Apache-2.0 */
/* What the reducer's thread does with its keeper: first values of weights and
 * state come from a checkpoint or from the chief's weights; a round that is to
 * be saved goes to the saver block by block; and before each round it waits
 * while the chief is still to name one. */
#include "proto/tensor/rule.h"
#include "worker/exchange/allreduce/keeper_parts.h"

#include <string.h>
#include <sys/eventfd.h>

/* The reducer's thread. */

static enum status open_reader(struct keeper *keeper, struct failure *why) {
    const struct plan *plan = keeper->settings.plan;
    if (keeper->reader)
        return STATUS_OK;
    enum status status =
        manifest_parse(&keeper->manifest, plan->restore_manifest, why);
    return status
               ? status
               : checkpoint_reader_open(&keeper->reader, plan->restore_folder,
                                        &keeper->manifest, why);
}

static void fill(float *floats, size_t count, float value) {
    for (size_t i = 0; i < count; i++)
        floats[i] = value;
}

/* The chief has set the weights where they lie (init); state starts anew. */
static void load_set(const struct keeper *keeper, uint32_t b,
                     float *const *tensors) {
    const struct keeper_settings *settings = &keeper->settings;
    const struct block *block = &settings->plan->layout->blocks[b];
    const struct optimizer *rule = &settings->job->optimizer;
    const float *weights = (const float *)buffer_data(settings->weights) +
                           settings->offsets[block->parameter] + block->offset;
    memmove(tensors[0], weights, block->elements * sizeof(float));
    for (unsigned s = 0; s < rule_slots(rule); s++)
        fill(tensors[1 + s], block->elements, rule_slot_start(rule, s));
}

static enum status load(void *context, uint32_t b, float *const *tensors,
                        struct failure *why) {
    struct keeper *keeper = context;
    if (!keeper->settings.plan->restore_folder) {
        load_set(keeper, b, tensors);
        return STATUS_OK;
    }
    enum status status = open_reader(keeper, why);
    unsigned count = 1 + rule_slots(&keeper->settings.job->optimizer);
    for (unsigned t = 0; !status && t < count; t++)
        status = checkpoint_reader_block(keeper->reader, b, (uint16_t)t,
                                         tensors[t], why);
    if (b + 1 == keeper->settings.plan->layout->num_blocks)
        checkpoint_reader_close(&keeper->reader);
    return status;
}

static void wake(struct keeper *keeper) {
    eventfd_write(keeper->descriptor, 1);
}

/* A checkpoint that is due while one is being written is left out, but never
 * the last one. */
static void begin_save(struct keeper *keeper, uint64_t round) {
    pthread_mutex_lock(&keeper->mutex);
    bool asked = keeper->asked_id && keeper->asked_round == round;
    keeper->saving = asked ? keeper->asked_id : round;
    pthread_mutex_unlock(&keeper->mutex);
    bool last = round == keeper->settings.plan->rounds.total;
    keeper->said_full = false;
    bool busy = !asked && !last && saver_busy(keeper->saver);
    keeper->left_out = busy || !saver_begin(keeper->saver, keeper->saving,
                                            round, &keeper->scaler);
    if (!busy)
        return;
    log_warning(keeper->settings.log,
                "the checkpoint of step %llu is left out: an earlier one "
                "is still being written",
                (unsigned long long)round);
    pthread_mutex_lock(&keeper->mutex);
    keeper->skipped = round;
    pthread_mutex_unlock(&keeper->mutex);
    wake(keeper);
}

static void end_save(struct keeper *keeper) {
    pthread_mutex_lock(&keeper->mutex);
    if (keeper->saving == keeper->asked_id) {
        keeper->held = keeper->asked_held ? 0 : keeper->asked_id;
        keeper->asked_id = 0;
    }
    pthread_mutex_unlock(&keeper->mutex);
    wake(keeper);
}

static void note(void *context, const struct loss_scaler *scaler) {
    struct keeper *keeper = context;
    keeper->scaler = *scaler;
}

static enum status save(void *context, uint64_t round, uint32_t b,
                        const float *const *tensors, struct failure *why) {
    struct keeper *keeper = context;
    bool waited = false;
    (void)why;
    if (!keeper->settings.plan->checkpoint_dir)
        return STATUS_OK;
    if (b == 0)
        begin_save(keeper, round);
    if (keeper->left_out)
        return STATUS_OK;
    if (b + 1 == keeper->settings.plan->layout->num_blocks)
        end_save(keeper); /* before the saver can tell its end */
    saver_add(keeper->saver, tensors, &waited);
    if (waited && !keeper->said_full) {
        keeper->said_full = true;
        log_warning(keeper->settings.log,
                    "copies for the checkpoint have reached their limit "
                    "(checkpoint.copy_mb): training waits for the disk");
    }
    return STATUS_OK;
}

static void pause_rounds(void *context, uint64_t round) {
    struct keeper *keeper = context;
    pthread_mutex_lock(&keeper->mutex);
    while (round + 1 > keeper->limit && !keeper->cancelled)
        pthread_cond_wait(&keeper->changed, &keeper->mutex);
    keeper->entered = round + 1;
    pthread_mutex_unlock(&keeper->mutex);
}

struct reducer_keeper keeper_saves_calls(struct keeper *keeper) {
    return (struct reducer_keeper){
        .context = keeper,
        .load = load,
        .note = note,
        .save = save,
        .pause = pause_rounds,
    };
}
