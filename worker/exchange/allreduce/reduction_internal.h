/* SPDX-License-Identifier: Apache-2.0 */
/* What reduction.c, a round, and reduction_clip.c, its norm, both need. */
#ifndef CAPSTAN_REDUCTION_INTERNAL_H
#define CAPSTAN_REDUCTION_INTERNAL_H

#include "worker/exchange/allreduce/reduction.h"

/* Doubles of a rank's place in a vector of norms: a piece of a collective. */
enum { REDUCTION_NORM = 8 };

/* What the host hears: memory of its own, which the device can copy to while
 * the host goes on, or what it is told of itself. */
struct reduction_host_result {
    void *pinned; /* NULL: nothing of its own */
    float *header;
    uint32_t *found;
};

/* Pieces of PART that squares are added up in. */
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

/* Weights and state, that is; all ranks know it. */
static inline bool reduction_changes(const struct reduction *reduction) {
    return reduction->contributors > 0 && !reduction->overflowed;
}

#endif
