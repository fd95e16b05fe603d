/* SPDX-License-Identifier: Apache-2.0 */
/* The floats of each bucket that this rank's rule updates. State exists for
 * those only, consecutively in bucket order. Without sharding that is
 * everything, by the same arithmetic as with one rank; the same holds for the
 * first bucket, whose sum every rank has, if there is no state to shard. */
#include "worker/exchange/allreduce/partition.h"

#include "core/base/byte_size.h"
#include "worker/collective/collective.h"

#include <stdlib.h>

static uint64_t partition_max_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static uint64_t partition_min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

struct partition_range partition_range_of(const struct bucket *bucket,
                                          uint64_t begin, uint32_t rank,
                                          uint32_t size) {
    size_t first;
    size_t count =
        collective_piece(bucket->end - bucket->first, rank, size, &first);
    uint64_t from = bucket->first + first, end = from + count;
    return (struct partition_range){.first = partition_max_u64(from, begin),
                                    .end = partition_max_u64(end, begin)};
}

static enum status partition_no_memory(struct partition *partition,
                                       struct failure *why) {
    uint64_t bytes = partition->elements * partition->slots * sizeof(float);
    bool async =
        partition->ops
            ->async; /* a retry would find no more memory on a device */
    char text[16];
    partition->ops->synchronize(partition->device, NULL);
    partition_close(partition);
    byte_size_text(bytes, text, sizeof text);
    return status_fail(why, async ? FAILURE_DEVICE_MEMORY : FAILURE_NO_MEMORY,
                       "no memory for %s of the optimiser's state: "
                       "zero_optimization.stage 2 shards it over the "
                       "ranks; with strategy.type \"ps\" the ps hold it%s",
                       text,
                       async ? ", with offload_optimizer.device \"cpu\" the "
                               "host has"
                             : "");
}

static bool partition_allocate(struct partition *partition,
                               const struct optimizer *rule) {
    const struct device_ops *ops = partition->ops;
    for (unsigned slot = 0; slot < partition->slots; slot++) {
        float *state = ops->allocate(partition->device,
                                     partition->elements * sizeof *state);
        partition->state[slot] = state;
        if (!state)
            return false;
        ops->run(
            partition->device, STREAM_EXCHANGE,
            op_fill(state, partition->elements, rule_slot_start(rule, slot)));
    }
    return true;
}

bool partition_shares(const struct partition *partition, uint32_t i) {
    return partition->shared && (i > 0 || partition->slots > 0);
}

enum status partition_open(struct partition *partition,
                           const struct partition_settings *settings,
                           struct failure *why) {
    const struct optimizer *rule = settings->rule;
    uint32_t count = settings->count;
    *partition = (struct partition){.ops = settings->ops,
                                    .device = settings->device,
                                    .buckets = settings->buckets,
                                    .count = count,
                                    .shared = settings->shared,
                                    .slots = settings->slots};
    partition->owned = calloc(count, sizeof *partition->owned);
    if (!partition->owned)
        return partition_no_memory(partition, why);
    for (uint32_t i = 0; i < count; i++) {
        struct partition_range *owned = &partition->owned[i];
        bool shared = partition_shares(partition, i);
        *owned = partition_range_of(&settings->buckets[i], settings->begin,
                                    shared ? settings->rank : 0,
                                    shared ? settings->size : 1);
        owned->state_offset = partition->elements;
        partition->elements += owned->end - owned->first;
    }
    return partition_allocate(partition, rule)
               ? STATUS_OK
               : partition_no_memory(partition, why);
}

void partition_close(struct partition *partition) {
    free(partition->owned);
    for (unsigned slot = 0; slot < RULE_MAX_SLOTS; slot++)
        if (partition->state[slot])
            partition->ops->release(partition->device, partition->state[slot]);
    *partition = (struct partition){0};
}

float *partition_state(const struct partition *partition, uint32_t i,
                       unsigned slot) {
    return partition->state[slot] + partition->owned[i].state_offset;
}

bool partition_get(const struct partition *partition, unsigned slot,
                   uint64_t first, uint64_t count, float *floats) {
    uint64_t end = first + count, done = first;
    uint32_t i = bucket_at(partition->buckets, partition->count, first);
    for (; done < end && i < partition->count; i++) {
        const struct partition_range *owned = &partition->owned[i];
        uint64_t to = partition_min_u64(end, owned->end);
        if (done < owned->first || done >= to)
            return false;
        partition->ops->download(
            partition->device, STREAM_EXCHANGE, floats + (done - first),
            partition_state(partition, i, slot) + (done - owned->first),
            (to - done) * sizeof *floats);
        done = to;
    }
    return done == end;
}

void partition_put(struct partition *partition, unsigned slot, uint64_t first,
                   uint64_t count, const float *floats) {
    uint64_t end = first + count;
    uint32_t i = bucket_at(partition->buckets, partition->count, first);
    for (; i < partition->count && partition->buckets[i].first < end; i++) {
        const struct partition_range *owned = &partition->owned[i];
        uint64_t from = partition_max_u64(first, owned->first);
        uint64_t to = partition_min_u64(end, owned->end);
        if (from < to)
            partition->ops->copy(
                partition->device, STREAM_EXCHANGE,
                partition_state(partition, i, slot) + (from - owned->first),
                floats + (from - first), (to - from) * sizeof *floats);
    }
}
