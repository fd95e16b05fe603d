/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the optimiser's state that this rank keeps, and hence the weights
 * that it updates: all, or of each bucket the piece that a reduce-scatter gives
 * it (ZeRO, Rajbhandari et al. 2020). The first bucket is all-reduced, so each
 * rank updates its piece of it if there is state, else all of it. */
#ifndef CAPSTAN_PARTITION_H
#define CAPSTAN_PARTITION_H

#include "core/base/status.h"
#include "core/tensor/rule.h"
#include "worker/exchange/allreduce/bucket.h"
#include "worker/ops/device.h"

#include <stdbool.h>
#include <stdint.h>

/* Floats [first, end) of the arena; may be empty. */
struct partition_range {
    uint64_t first, end;
    uint64_t state_offset; /* of `first` in each slot's memory */
};

struct partition {
    const struct device_ops
        *ops; /* borrowed, as are all fields up to `count` */
    struct device *device;
    const struct bucket *buckets;
    uint32_t count;
    bool shared;
    struct partition_range *owned; /* per bucket, ascending */
    unsigned slots;
    float *state[RULE_MAX_SLOTS]; /* device memory */
    uint64_t elements;            /* per slot */
};

/* All borrowed. */
struct partition_settings {
    const struct device_ops *ops; /* of the device that holds the state; all
                              operations on it run on STREAM_EXCHANGE */
    struct device *device;
    const struct bucket *buckets;
    uint32_t count;
    uint64_t begin; /* where the first parameter begins, in floats */
    const struct optimizer *rule;
    unsigned slots; /* the rule's or more */
    uint32_t rank, size;
    bool shared; /* each of SIZE ranks has its own part; else all ranks have
                    everything */
};

/* Opens RANK's part with its state at the rule's initial values. STATUS_RETRY
 * if there is no memory; WHY names the bytes. */
enum status partition_open(struct partition *partition,
                           const struct partition_settings *settings,
                           struct failure *why) MUST_CHECK;

/* Frees the state and empties *PARTITION. An empty partition may be closed. */
void partition_close(struct partition *partition);

/* True if each rank has its own part of bucket I; else all have all of it. */
bool partition_shares(const struct partition *partition, uint32_t i);

/* The part of RANK among SIZE in BUCKET, without the floats before BEGIN. */
struct partition_range partition_range_of(const struct bucket *bucket,
                                          uint64_t begin, uint32_t rank,
                                          uint32_t size);

/* State SLOT of this rank's part of bucket I; a view. */
float *partition_state(const struct partition *partition, uint32_t i,
                       unsigned slot);

/* FLOATS, in device memory, are state SLOT of arena floats [FIRST, FIRST +
 * COUNT): keeps the part that this rank owns. */
void partition_put(struct partition *partition, unsigned slot, uint64_t first,
                   uint64_t count, const float *floats);

/* Copies state SLOT of arena floats [FIRST, FIRST + COUNT) to the host's
 * FLOATS. False: not all of it is this rank's. */
bool partition_get(const struct partition *partition, unsigned slot,
                   uint64_t first, uint64_t count, float *floats);

#endif
