/* SPDX-License-Identifier: Apache-2.0 */
/* The work of a round without ps, on one thread: gradients are summed over the
 * ranks bucket by bucket, then the rule is applied to what this rank updates
 * and, where ranks share that out, all gather the weights. All of it is put on
 * the device's OPS_EXCHANGE, whether that is the host's processor, where it is
 * done at once, or a GPU; the host waits for the few numbers it decides by. */
#ifndef CAPSTAN_REDUCTION_H
#define CAPSTAN_REDUCTION_H

#include "worker/collective/group.h"
#include "worker/exchange/allreduce/bucket.h"
#include "worker/exchange/allreduce/partition.h"
#include "worker/exchange/allreduce/reducer.h"
#include "worker/ops/ops.h"

#include <stdatomic.h>

struct reduction {
    const struct reducer_settings *settings; /* borrowed, as `ranks` */
    const struct ops *ops;
    struct ops_device *device;
    bool owns_device; /* the processor, opened for this */
    struct schedule schedule;
    float *weights, *gradients; /* of the device, as all up to `pieces` */
    double *norms;              /* squared; REDUCTION_NORM a rank */
    uint32_t *found;            /* an overflow */
    double *pieces;             /* sums of squares of a rank's part */
    float *clip;                /* what clipping multiplies by */
    struct reduction_host_result *host_result; /* what the host hears */
    struct ops_event *header_received;         /* the word is told */
    struct ops_event *idle;                    /* all that was given is done */
    uint64_t begin; /* where the parameters do, in floats */
    bool shared;    /* each rank updates its part */
    struct bucket *buckets;
    uint32_t num_buckets;
    struct partition partition;
    struct group *ranks;
    atomic_int_least64_t update_ns; /* in the rule */

    uint64_t round;
    bool empty;      /* this rank brings no gradients */
    bool overflowed; /* a rank's have overflowed: the round changes nothing */
    bool save_requested;       /* the round is saved, though not planned */
    unsigned contributors;     /* replicas whose gradients they bring */
    float scale;               /* of the sum of gradients */
    bool clips;                /* and *clip is another */
    struct loss_scaler scaler; /* as this round leaves it */
};

/* Memory for all that rounds need. RANKS are open, and perhaps not met yet.
 * PLACE NULL: on the processor, in the host's arenas. */
enum status reduction_open(struct reduction *reduction,
                           const struct reducer_settings *settings,
                           const struct reducer_device_arena *device_arena,
                           struct group *ranks, struct failure *why) MUST_CHECK;

/* Nothing that was given is still to be done, or the device is lost; REDUCTION
 * may be all zero. */
void reduction_close(struct reduction *reduction);

/* ROUND is next, and BRINGS what this rank has. ASKS: the round is to be saved
 * (rank 0). The others hear both with the first bucket. */
void reduction_begin(struct reduction *reduction, uint64_t round,
                     enum contribution contribution_kind, bool request_save);

/* Sums bucket I over the ranks, as soon as what OPS_EXCHANGE follows has come;
 * buckets ascending. */
enum status reduction_sum(struct reduction *reduction, uint32_t i,
                          struct failure *why) MUST_CHECK;

/* After the first bucket: waits for what all ranks say of the round. */
enum status reduction_wait_header(struct reduction *reduction,
                                  struct failure *why) MUST_CHECK;

/* After all buckets have been summed: the mean gradient is clipped by its norm,
 * without the host's waiting for it. */
enum status reduction_clip(struct reduction *reduction,
                           struct failure *why) MUST_CHECK;

/* Weights of the summed bucket I become the round's. */
enum status reduction_update(struct reduction *reduction, uint32_t i,
                             struct failure *why) MUST_CHECK;

/* Before reduction_begin: all gradients, which OPS_COMPUTE has been given, are
 * multiplied by BY where all are finite; else *FINITE is false. */
enum status reduction_unscale(struct reduction *reduction, float by,
                              bool *finite, struct failure *why) MUST_CHECK;

/* As ops.await; a rank that was lost goes before. */
enum status reduction_sync_event(struct reduction *reduction,
                                 struct ops_event *event,
                                 struct failure *why) MUST_CHECK;

/* The same until all that was given is done. */
enum status reduction_sync(struct reduction *reduction,
                           struct failure *why) MUST_CHECK;

/* After reduction_wait_header: is the round to be saved? All ranks agree. */
bool reduction_is_saved(const struct reduction *reduction);

#endif
