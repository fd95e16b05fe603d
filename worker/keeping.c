#include "worker/keeping.h"

#include <stdlib.h>
#include <string.h>

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static uint64_t largest_bucket(const struct reduction *reduction) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < reduction->num_buckets; i++) {
        uint64_t size = reduction->buckets[i].end - reduction->buckets[i].first;
        most = size > most ? size : most;
    }
    return most;
}

/* With state in one place, what is loaded and saved passes by no memory but
 * that of who broadcasts it. */
enum status keeping_open(struct keeping *keeping, struct reduction *reduction,
                         struct failure *why) {
    size_t block = reduction->settings->layout->block_elements;
    size_t bucket = reduction->shared ? largest_bucket(reduction) : 1;
    *keeping = (struct keeping){.reduction = reduction};
    for (unsigned slot = 0; slot < reduction->partition.slots; slot++) {
        keeping->block[slot] = calloc(block, sizeof(float));
        keeping->bucket[slot] = calloc(bucket, sizeof(float));
        if (keeping->block[slot] && keeping->bucket[slot])
            continue;
        keeping_close(keeping);
        return status_fail(why, STATUS_RETRY,
                           "no memory for the state of a block");
    }
    return STATUS_OK;
}

void keeping_close(struct keeping *keeping) {
    for (unsigned slot = 0; slot < RULE_MAX_SLOTS; slot++) {
        free(keeping->block[slot]);
        free(keeping->bucket[slot]);
    }
    *keeping = (struct keeping){0};
}

/* Where block B begins in the arena. */
static uint64_t offset_of(const struct reduction *reduction, uint32_t b) {
    const struct block *block = &reduction->settings->layout->blocks[b];
    return reduction->settings->offsets[block->parameter] + block->offset;
}

static void initialise(struct reduction *reduction) {
    const struct layout *layout = reduction->settings->layout;
    for (uint32_t b = 0; b < layout->num_blocks; b++)
        layout_init_block(layout, b, reduction->settings->job->seed,
                          reduction->weights + offset_of(reduction, b));
}

/* All ranks get what rank 0's keeper has of block B, and keep their part. */
static enum status load_block(struct keeping *keeping, uint32_t b,
                              struct failure *why) {
    struct reduction *reduction = keeping->reduction;
    const struct reducer_keeper *keeper = reduction->settings->keeper;
    uint64_t first = offset_of(reduction, b);
    uint32_t elements = reduction->settings->layout->blocks[b].elements;
    unsigned tensors = 1 + reduction->partition.slots;
    float *floats[1 + RULE_MAX_SLOTS] = {reduction->weights + first};
    memcpy(floats + 1, keeping->block, sizeof keeping->block);
    enum status status = STATUS_OK;
    if (reduction->ranks.rank == 0)
        status = keeper->load(keeper->context, b, floats, why);
    for (unsigned t = 0; !status && t < tensors; t++)
        status =
            group_broadcast(&reduction->ranks, floats[t], elements, 0, why);
    for (unsigned t = 1; !status && t < tensors; t++)
        partition_put(&reduction->partition, t - 1, first, elements, floats[t]);
    return status;
}

enum status keeping_load(struct keeping *keeping, struct failure *why) {
    const struct reducer_settings *s = keeping->reduction->settings;
    enum status status = STATUS_OK;
    if (!s->loads)
        initialise(keeping->reduction);
    for (uint32_t b = 0; s->loads && !status && b < s->layout->num_blocks; b++)
        status = load_block(keeping, b, why);
    return status;
}

/* Block B to this rank's keeper, if it has one that saves. */
static enum status hand_over(struct keeping *keeping, uint32_t b,
                             float *const *state, struct failure *why) {
    const struct reduction *reduction = keeping->reduction;
    const struct reducer_keeper *keeper = reduction->settings->keeper;
    const float *tensors[1 + RULE_MAX_SLOTS] = {reduction->weights +
                                                offset_of(reduction, b)};
    for (unsigned slot = 0; slot < reduction->partition.slots; slot++)
        tensors[1 + slot] = state[slot];
    if (!keeper || !keeper->save)
        return STATUS_OK;
    return keeper->save(keeper->context, reduction->round, b, tensors, why);
}

/* All state is here, in arena order. */
static enum status save_own(struct keeping *keeping, struct failure *why) {
    const struct reduction *reduction = keeping->reduction;
    uint32_t num_blocks = reduction->settings->layout->num_blocks;
    enum status status = STATUS_OK;
    for (uint32_t b = 0; !status && b < num_blocks; b++) {
        float *state[RULE_MAX_SLOTS];
        for (unsigned slot = 0; slot < reduction->partition.slots; slot++)
            state[slot] = reduction->partition.state[slot] +
                          (offset_of(reduction, b) - reduction->begin);
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
            memcpy(floats + (own->first - bucket->first),
                   partition_state(&reduction->partition, i, slot),
                   (own->end - own->first) * sizeof *floats);
        status = group_all_gather(&reduction->ranks, floats,
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
    enum status status = STATUS_OK;
    uint64_t at = i == 0 ? reduction->begin : bucket->first;
    while (!status && at < bucket->end) {
        uint64_t first = offset_of(reduction, *b);
        uint64_t end = first + layout->blocks[*b].elements;
        uint64_t until = smaller(end, bucket->end);
        for (unsigned slot = 0; slot < reduction->partition.slots; slot++)
            memcpy(keeping->block[slot] + (at - first),
                   keeping->bucket[slot] + (at - bucket->first),
                   (until - at) * sizeof(float));
        at = until;
        if (until == end)
            status = hand_over(keeping, (*b)++, keeping->block, why);
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
        if (!status)
            status = take_bucket(keeping, i, &b, why);
    }
    return status;
}
