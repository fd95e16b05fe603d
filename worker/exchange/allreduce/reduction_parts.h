/* SPDX-License-Identifier: Apache-2.0 */
/* What reduction.c, a round, and reduction_clip.c, its norm, both need. */
#ifndef CAPSTAN_REDUCTION_PARTS_H
#define CAPSTAN_REDUCTION_PARTS_H

#include "worker/exchange/allreduce/reduction.h"

/* Doubles of a rank's place in a vector of norms: a piece of a collective. */
enum { REDUCTION_NORM = 8 };

/* What the host hears: memory of its own, which the device can copy to while
 * the host goes on, or what it is told of itself. */
struct reduction_told {
    void *pinned; /* NULL: nothing of its own */
    float *word;
    uint32_t *found;
};

/* Pieces of PART that squares are added up in. */
static inline size_t reduction_pieces_of(struct part part) {
    return (part.end - part.first + RULE_PIECE - 1) / RULE_PIECE;
}

static inline struct part reduction_part_of(const struct reduction *reduction,
                                            uint32_t i, uint32_t rank) {
    return partition_part(&reduction->buckets[i], reduction->begin, rank,
                          reduction->ranks->size);
}

static inline size_t reduction_norms(const struct reduction *reduction) {
    return (size_t)reduction->ranks->size * REDUCTION_NORM;
}

/* Weights and state, that is; all ranks know it. */
static inline bool reduction_changes(const struct reduction *reduction) {
    return reduction->brought > 0 && !reduction->voided;
}

#endif
