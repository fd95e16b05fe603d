/* SPDX-License-Identifier: Apache-2.0 */
/* First weights and state, and the way to rank 0's keeper, block by block in
 * the arena's order. Each rank has all weights, and all state or (ZeRO) its
 * piece of every bucket. Loading: rank 0 reads a block, broadcasts it, each
 * rank keeps what is its own of the state. Saving: with all state here rank 0
 * hands blocks over by itself; with pieces every bucket's state is gathered by
 * all ranks, and rank 0 cuts blocks out of it as they come to their end. So no
 * rank ever has memory for the state of more than a bucket beside its own. */
#include "worker/exchange/allreduce/keeping.h"

#include <stdlib.h>
#include <string.h>

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static uint64_t largest_bucket(const struct reduction *reduction) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < reduction->num_buckets; i++) {
        uint64_t size = reduction->buckets[i].end - reduction->buckets[i].first;
        most = size > most ? size : most;
    }
    return most;
}

static bool is_apart(const struct reduction *reduction) {
    return reduction->ops->later;
}

/* With state in one place, what is loaded and saved passes by no memory but
 * that of who broadcasts it. */
static bool allocate(struct keeping *keeping, unsigned slot) {
    const struct reduction *reduction = keeping->reduction;
    size_t block = reduction->settings->layout->block_elements * sizeof(float);
    size_t bucket =
        (reduction->shared ? largest_bucket(reduction) : 1) * sizeof(float);
    keeping->block[slot] = calloc(1, block);
    keeping->there[slot] =
        is_apart(reduction) ? reduction->ops->allocate(reduction->device, block)
                            : keeping->block[slot];
    keeping->bucket[slot] = reduction->ops->allocate(reduction->device, bucket);
    return keeping->block[slot] && keeping->there[slot] &&
           keeping->bucket[slot];
}

enum status keeping_open(struct keeping *keeping, struct reduction *reduction,
                         struct failure *why) {
    *keeping =
        (struct keeping){.reduction = reduction,
                         .weights = buffer_data(reduction->settings->weights)};
    for (unsigned slot = 0; slot < reduction->partition.slots; slot++) {
        if (allocate(keeping, slot))
            continue;
        keeping_close(keeping);
        return status_fail(why,
                           is_apart(reduction) ? STATUS_FAILED : STATUS_RETRY,
                           "no memory for the state of a block");
    }
    return STATUS_OK;
}

void keeping_close(struct keeping *keeping) {
    const struct reduction *reduction = keeping->reduction;
    for (unsigned slot = 0; slot < RULE_MAX_SLOTS; slot++) {
        if (keeping->bucket[slot])
            reduction->ops->release(reduction->device, keeping->bucket[slot]);
        if (keeping->there[slot] != keeping->block[slot])
            reduction->ops->release(reduction->device, keeping->there[slot]);
        free(keeping->block[slot]);
    }
    *keeping = (struct keeping){0};
}

/* Where block B begins in the arena. */
static uint64_t offset_of(const struct reduction *reduction, uint32_t b) {
    const struct block *block = &reduction->settings->layout->blocks[b];
    return reduction->settings->offsets[block->parameter] + block->offset;
}

static void initialise(const struct keeping *keeping) {
    const struct reduction *reduction = keeping->reduction;
    const struct layout *layout = reduction->settings->layout;
    for (uint32_t b = 0; b < layout->num_blocks; b++) {
        float *weights = keeping->weights + offset_of(reduction, b);
        layout_init_block(layout, b, reduction->settings->job->seed, weights);
        reduction->ops->upload(reduction->device, OPS_EXCHANGE,
                               reduction->weights + offset_of(reduction, b),
                               weights,
                               layout->blocks[b].elements * sizeof *weights);
    }
}

/* The host's TENSORS of a block, on rank 0 what was loaded, become those of all
 * ranks, THERE on their devices. */
static enum status spread(struct reduction *reduction, float *const *tensors,
                          float *const *there, uint32_t elements,
                          struct failure *why) {
    enum status status = STATUS_OK;
    for (unsigned t = 0; !status && t <= reduction->partition.slots; t++) {
        if (reduction->ranks->rank == 0)
            reduction->ops->upload(reduction->device, OPS_EXCHANGE, there[t],
                                   tensors[t], elements * sizeof(float));
        status = group_broadcast(reduction->ranks, there[t], elements, 0, why);
    }
    return status;
}

/* All ranks get what rank 0's keeper has of block B, and keep their part. */
static enum status load_block(struct keeping *keeping, uint32_t b,
                              struct failure *why) {
    struct reduction *reduction = keeping->reduction;
    const struct reducer_keeper *keeper = reduction->settings->keeper;
    uint64_t first = offset_of(reduction, b);
    uint32_t elements = reduction->settings->layout->blocks[b].elements;
    float *floats[1 + RULE_MAX_SLOTS] = {keeping->weights + first};
    float *there[1 + RULE_MAX_SLOTS] = {reduction->weights + first};
    memcpy(floats + 1, keeping->block, sizeof keeping->block);
    memcpy(there + 1, keeping->there, sizeof keeping->there);
    enum status status = STATUS_OK;
    if (reduction->ranks->rank == 0)
        status = keeper->load(keeper->context, b, floats, why);
    if (!status)
        status = spread(reduction, floats, there, elements, why);
    for (unsigned s = 0; !status && s < reduction->partition.slots; s++)
        partition_put(&reduction->partition, s, first, elements, there[1 + s]);
    return status ? status : reduction_settle(reduction, why);
}

enum status keeping_load(struct keeping *keeping, struct failure *why) {
    const struct reducer_settings *s = keeping->reduction->settings;
    enum status status = STATUS_OK;
    if (!s->loads)
        initialise(keeping);
    for (uint32_t b = 0; s->loads && !status && b < s->layout->num_blocks; b++)
        status = load_block(keeping, b, why);
    return status ? status : reduction_settle(keeping->reduction, why);
}

static bool hands_over(const struct reduction *reduction) {
    const struct reducer_keeper *keeper = reduction->settings->keeper;
    return keeper && keeper->save;
}

/* FLOATS of the device on their way to HOST; what is the host's stays. Where
 * they will be. */
static const float *bring(const struct reduction *reduction, float *host,
                          const float *floats, uint64_t count) {
    if (!is_apart(reduction))
        return floats;
    reduction->ops->download(reduction->device, OPS_EXCHANGE, host, floats,
                             count * sizeof *floats);
    return host;
}

/* Block B, whose STATE has set out for the host, to this rank's keeper. */
static enum status hand_over(struct keeping *keeping, uint32_t b,
                             const float *const *state, struct failure *why) {
    struct reduction *reduction = keeping->reduction;
    const struct reducer_keeper *keeper = reduction->settings->keeper;
    uint64_t first = offset_of(reduction, b);
    const float *tensors[1 + RULE_MAX_SLOTS] = {
        bring(reduction, keeping->weights + first, reduction->weights + first,
              reduction->settings->layout->blocks[b].elements)};
    for (unsigned slot = 0; slot < reduction->partition.slots; slot++)
        tensors[1 + slot] = state[slot];
    enum status status = reduction_settle(reduction, why);
    return status ? status
                  : keeper->save(keeper->context, reduction->round, b, tensors,
                                 why);
}

/* All state is here, in arena order. */
static enum status save_own(struct keeping *keeping, struct failure *why) {
    const struct reduction *reduction = keeping->reduction;
    const struct layout *layout = reduction->settings->layout;
    enum status status = STATUS_OK;
    for (uint32_t b = 0;
         hands_over(reduction) && !status && b < layout->num_blocks; b++) {
        const float *state[RULE_MAX_SLOTS];
        for (unsigned slot = 0; slot < reduction->partition.slots; slot++)
            state[slot] =
                bring(reduction, keeping->block[slot],
                      reduction->partition.state[slot] +
                          (offset_of(reduction, b) - reduction->begin),
                      layout->blocks[b].elements);
        status = hand_over(keeping, b, state, why);
    }
    return status;
}

/* Each rank's state of bucket I, in place. */
static enum status gather(struct keeping *keeping, uint32_t i,
                          struct failure *why) {
    struct reduction *reduction = keeping->reduction;
    const struct bucket *bucket = &reduction->buckets[i];
    const struct part *own = &reduction->partition.own[i];
    enum status status = STATUS_OK;
    for (unsigned slot = 0; !status && slot < reduction->partition.slots;
         slot++) {
        float *floats = keeping->bucket[slot];
        if (own->first < own->end)
            reduction->ops->copy(
                reduction->device, OPS_EXCHANGE,
                floats + (own->first - bucket->first),
                partition_state(&reduction->partition, i, slot),
                (own->end - own->first) * sizeof *floats);
        status = group_all_gather(reduction->ranks, floats,
                                  bucket->end - bucket->first, why);
    }
    return status;
}

/* Blocks and buckets both ascend through the arena. Takes what the gathered
 * bucket I has; *B is the first block not handed over yet. */
static enum status take_bucket(struct keeping *keeping, uint32_t i, uint32_t *b,
                               struct failure *why) {
    const struct reduction *reduction = keeping->reduction;
    const struct layout *layout = reduction->settings->layout;
    const struct bucket *bucket = &reduction->buckets[i];
    const float *state[RULE_MAX_SLOTS];
    enum status status = STATUS_OK;
    memcpy(state, keeping->block, sizeof state);
    while (!status && *b < layout->num_blocks) {
        uint64_t first = offset_of(reduction, *b);
        uint64_t end = first + layout->blocks[*b].elements;
        uint64_t from = larger(first, bucket->first);
        uint64_t until = smaller(end, bucket->end);
        if (from >= until)
            break;
        for (unsigned slot = 0; slot < reduction->partition.slots; slot++)
            reduction->ops->download(reduction->device, OPS_EXCHANGE,
                                     keeping->block[slot] + (from - first),
                                     keeping->bucket[slot] +
                                         (from - bucket->first),
                                     (until - from) * sizeof(float));
        if (until < end)
            break;
        status = hand_over(keeping, (*b)++, state, why);
    }
    return status;
}

enum status keeping_save(struct keeping *keeping, struct failure *why) {
    const struct reduction *reduction = keeping->reduction;
    enum status status = STATUS_OK;
    const struct reducer_keeper *keeper = reduction->settings->keeper;
    uint32_t b = 0;
    if (keeper && keeper->note)
        keeper->note(keeper->context, &reduction->scaler);
    if (!reduction->shared)
        return save_own(keeping, why);
    for (uint32_t i = 0; !status && i < reduction->num_buckets; i++) {
        status = gather(keeping, i, why);
        if (!status && hands_over(reduction))
            status = take_bucket(keeping, i, &b, why);
    }
    return status;
}

enum status keeping_show(struct keeping *keeping, struct failure *why) {
    const struct reduction *reduction = keeping->reduction;
    uint64_t begin = reduction->begin;
    uint64_t end = reduction->buckets[reduction->num_buckets - 1].end;
    if (reduction->ranks->rank == 0)
        (void)bring(reduction, keeping->weights + begin,
                    reduction->weights + begin, end - begin);
    return reduction_settle(keeping->reduction, why);
}
