/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by reduction.c, a round, and reduction_clip.c, its norm. */
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

/* With groups: the state of each parameter starts as its rule says. */
void reduction_start_state(struct reduction *reduction);

/* External, or with groups: applies to bucket I the rule of each parameter in
 * it. STATUS_FAILED: an external model's gradient is NaN or infinite. */
enum status reduction_apply_parameters(struct reduction *reduction, uint32_t i,
                                       struct failure *why) MUST_CHECK;

/* External: adds the pieces of the squares of RANGE to those before; returns
 * how many there are now. */
size_t reduction_square_parameters(struct reduction *reduction,
                                   struct partition_range range, size_t count);

/* True if the round changes weights and state; all ranks agree. */
static inline bool reduction_changes(const struct reduction *reduction) {
    return reduction->contributors > 0 && !reduction->overflowed;
}

#endif
