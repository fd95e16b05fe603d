/* SPDX-License-Identifier: Apache-2.0 */
/* What of the optimiser's state this rank keeps, and so which weights it
 * updates: all of them, or of each bucket the piece that a reduce-scatter gives
 * it (ZeRO, Rajbhandari et al. 2020); of the first, whose sum all have, the
 * same piece where there is state, else all. */
#ifndef CAPSTAN_PARTITION_H
#define CAPSTAN_PARTITION_H

#include "proto/base/status.h"
#include "proto/tensor/rule.h"
#include "worker/exchange/allreduce/bucket.h"
#include "worker/ops/ops.h"

#include <stdbool.h>
#include <stdint.h>

/* Floats [first, end) of the arena; perhaps none. */
struct partition_range {
    uint64_t first, end;
    uint64_t state_offset; /* of the first one in each slot's memory */
};

struct partition {
    const struct ops *ops; /* borrowed, as all up to `count` */
    struct ops_device *device;
    const struct bucket *buckets;
    uint32_t count;
    bool shared;
    struct partition_range *owned; /* of each bucket, ascending */
    unsigned slots;
    float *state[RULE_MAX_SLOTS]; /* of the device */
    uint64_t elements;            /* of each slot */
};

/* All is borrowed. */
struct partition_settings {
    const struct ops *ops; /* state is in memory of this device, and all that is
                              done to it on OPS_EXCHANGE */
    struct ops_device *device;
    const struct bucket *buckets;
    uint32_t count;
    uint64_t begin; /* where the first parameter begins, in floats */
    const struct optimizer *rule;
    uint32_t rank, size;
    bool shared; /* each of SIZE ranks has its own part, else all have all */
};

/* RANK's part, its state at the rule's start. STATUS_RETRY names the bytes when
 * there is no memory. */
enum status partition_open(struct partition *partition,
                           const struct partition_settings *settings,
                           struct failure *why) MUST_CHECK;

/* Frees the state; *PARTITION is empty then. One that is empty may be closed.
 */
void partition_close(struct partition *partition);

/* Has each rank a part of its own of bucket I? Else all have all of it. */
bool partition_shares(const struct partition *partition, uint32_t i);

/* The part of RANK among SIZE in BUCKET, without what lies before BEGIN. */
struct partition_range partition_range_of(const struct bucket *bucket,
                                          uint64_t begin, uint32_t rank,
                                          uint32_t size);

/* State SLOT of the own part of bucket I; view. */
float *partition_state(const struct partition *partition, uint32_t i,
                       unsigned slot);

/* FLOATS, of the device, are state SLOT of arena floats [FIRST, FIRST + COUNT):
 * keeps what is its own of it. */
void partition_put(struct partition *partition, unsigned slot, uint64_t first,
                   uint64_t count, const float *floats);

#endif
