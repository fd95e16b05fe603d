/* The work of a round without ps, on one thread: gradients are summed over the
 * ranks bucket by bucket, then the rule is applied to what this rank updates
 * and, where ranks share that out, all gather the weights. */
#ifndef CAPSTAN_REDUCTION_H
#define CAPSTAN_REDUCTION_H

#include "worker/bucket.h"
#include "worker/group.h"
#include "worker/partition.h"
#include "worker/reducer.h"

#include <stdatomic.h>

struct reduction {
    const struct reducer_settings *settings; /* borrowed */
    const struct rule_loops *loops;
    struct schedule schedule;
    float *weights, *gradients;
    uint64_t begin; /* where the parameters do, in floats */
    bool shared;    /* each rank updates its part */
    struct bucket *buckets;
    uint32_t num_buckets;
    struct partition partition;
    struct group ranks;
    float *norms;                   /* 16 floats a rank */
    atomic_int_least64_t update_ns; /* in the rule */

    uint64_t round;
    bool empty;       /* this rank brings no gradients */
    bool voided;      /* a rank's have overflowed: the round changes nothing */
    bool asked;       /* the round is saved, though not planned */
    unsigned brought; /* replicas whose gradients they bring */
    float scale;      /* of the sum of gradients */
    struct loss_scaler scaler; /* as this round leaves it */
};

/* Memory for all that rounds need; no rank is met yet (group_meet). */
enum status reduction_open(struct reduction *reduction,
                           const struct reducer_settings *settings,
                           struct failure *why) MUST_CHECK;
void reduction_close(struct reduction *reduction);

/* ROUND is next, and BRINGS what this rank has. ASKS: the round is to be saved
 * (rank 0). The others hear both with the first bucket. */
void reduction_begin(struct reduction *reduction, uint64_t round,
                     enum contribution brings, bool asks);

/* Sums bucket I over the ranks; buckets ascending. */
enum status reduction_sum(struct reduction *reduction, uint32_t i,
                          struct failure *why) MUST_CHECK;

/* After all buckets have been summed: clips the mean gradient by its norm. */
enum status reduction_clip(struct reduction *reduction,
                           struct failure *why) MUST_CHECK;

/* Weights of the summed bucket I become the round's. */
enum status reduction_update(struct reduction *reduction, uint32_t i,
                             struct failure *why) MUST_CHECK;

/* After the first bucket: is the round to be saved? All ranks agree. */
bool reduction_saves(const struct reduction *reduction);

#endif
