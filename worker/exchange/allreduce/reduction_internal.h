/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by reduction.c, a round, and state_io.c, what is saved of it. */
#ifndef CAPSTAN_REDUCTION_INTERNAL_H
#define CAPSTAN_REDUCTION_INTERNAL_H

#include "worker/exchange/allreduce/reduction.h"

/* Doubles per rank in the vector of norms: one piece of a collective. */
enum { REDUCTION_NORM = 8 };

/* The numbers that the host reads: pinned memory, which the device copies to
 * asynchronously, or the device's memory itself. */
struct reduction_host_result {
    void *pinned; /* NULL: the device's memory is used */
    float *header;
    uint32_t *found;
};

/* Number of pieces into which the squares of PARTITION_RANGE are summed. */
static inline size_t reduction_pieces_of(
    struct partition_range partition_range) {
    return (partition_range.end - partition_range.first + RULE_PIECE - 1) /
           RULE_PIECE;
}

static inline struct partition_range reduction_range_of(
    const struct reduction *reduction, uint32_t i, uint32_t rank) {
    return partition_range_of(&reduction->buckets[i], reduction->begin, rank,
                              reduction->ranks->size);
}

static inline size_t reduction_norms(const struct reduction *reduction) {
    return (size_t)reduction->ranks->size * REDUCTION_NORM;
}

#endif
