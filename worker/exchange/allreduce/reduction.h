/* SPDX-License-Identifier: Apache-2.0 */
/* The work of a round without ps, on one thread: gradients are summed over the
 * ranks bucket by bucket; the rule is applied to this rank's part; if updates
 * are sharded, all ranks gather the weights. All work goes to the device's
 * STREAM_EXCHANGE stream, which executes at once on the CPU and asynchronously
 * on a GPU; the host waits only for the few numbers that it decides by. */
#ifndef CAPSTAN_REDUCTION_H
#define CAPSTAN_REDUCTION_H

#include "worker/collective/group.h"
#include "worker/exchange/allreduce/bucket.h"
#include "worker/exchange/allreduce/partition.h"
#include "worker/exchange/allreduce/reducer.h"
#include "worker/exchange/allreduce/round_trailer.h"
#include "worker/ops/device.h"

#include <stdatomic.h>

struct reduction {
    const struct reducer_settings *settings; /* borrowed, as is `ranks` */
    const struct device_ops *ops;
    struct device *device;
    bool owns_device; /* the CPU device, opened here */
    struct schedule schedule;
    float *weights,
        *gradients;  /* device memory, as are all fields up to `pieces` */
    double *norms;   /* squared; REDUCTION_NORM per rank */
    uint32_t *found; /* overflow flag */
    double *pieces;  /* sums of squares of a rank's part */
    float *clip;     /* clipping factor */
    struct reduction_host_result *host_result; /* numbers that the host reads */
    struct device_event *header_received;      /* the header is on the host */
    struct device_event *idle;                 /* all enqueued work is done */
    uint64_t begin;                            /* first parameter, in floats */
    bool shared; /* updates are sharded over the ranks */
    struct bucket *buckets;
    uint32_t num_buckets;
    struct partition partition;
    struct group *ranks;
    struct round_trailer *trailer;  /* of an external model, or NULL */
    atomic_int_least64_t update_ns; /* nanoseconds in the rule */

    uint64_t round;
    bool empty;          /* this rank contributes no gradients */
    bool overflowed;     /* some rank's gradients overflowed: the round changes
                            nothing */
    bool save_requested; /* the round is saved although unplanned */
    unsigned contributors;     /* replicas that contribute gradients */
    float scale;               /* factor of the gradient sum */
    bool clips;                /* and *clip differs */
    struct loss_scaler scaler; /* after this round */
    uint64_t *rule_steps; /* [num_parameters]: rounds to which some rank brought
                             a gradient of the parameter, this one included */
    bool uneven;          /* they differed when the run began */
};

/* Allocates all memory for the rounds. RANKS is open but need not be connected
 * yet. DEVICE_ARENA NULL: on the CPU, in the host's arenas. */
enum status reduction_open(struct reduction *reduction,
                           const struct reducer_settings *settings,
                           const struct reducer_device_arena *device_arena,
                           struct group *ranks, struct failure *why) MUST_CHECK;

/* Call when no enqueued work is left, or the device is lost; REDUCTION may be
 * all zero. */
void reduction_close(struct reduction *reduction);

/* Begins ROUND, to which this rank brings CONTRIBUTION_KIND. REQUEST_SAVE (rank
 * 0): the round is to be saved. The first bucket carries both to the other
 * ranks. */
void reduction_begin(struct reduction *reduction, uint64_t round,
                     enum contribution contribution_kind, bool request_save);

/* Sums bucket I over the ranks, behind the work that STREAM_EXCHANGE waits for;
 * buckets ascend. */
enum status reduction_sum(struct reduction *reduction, uint32_t i,
                          struct failure *why) MUST_CHECK;

/* After the first bucket: waits for the header summed over all ranks. */
enum status reduction_wait_header(struct reduction *reduction,
                                  struct failure *why) MUST_CHECK;

/* An external model, after all its buckets are summed: its trailer, in place of
 * the header. */
enum status reduction_sum_trailer(struct reduction *reduction,
                                  bool request_save,
                                  struct failure *why) MUST_CHECK;

/* After all buckets are summed: clips the mean gradient by its norm, without a
 * wait of the host. ROWS: the square sum of those of tables, not on a device.
 */
enum status reduction_clip(struct reduction *reduction, double rows,
                           struct failure *why) MUST_CHECK;

/* How the rule is to be applied to rows of tables in this round, on the host.
 */
struct row_reducer_round reduction_of_rows(const struct reduction *reduction);

/* Applies the rule to the weights of the summed bucket I. */
enum status reduction_update(struct reduction *reduction, uint32_t i,
                             struct failure *why) MUST_CHECK;

/* Before reduction_begin: multiplies all gradients, which are enqueued on
 * STREAM_COMPUTE, by BY if all are finite; else *FINITE is false. */
enum status reduction_unscale(struct reduction *reduction, float by,
                              bool *finite, struct failure *why) MUST_CHECK;

/* As ops.event_sync; reports a lost rank first. */
enum status reduction_sync_event(struct reduction *reduction,
                                 struct device_event *event,
                                 struct failure *why) MUST_CHECK;

/* The same, until all enqueued work is done. */
enum status reduction_sync(struct reduction *reduction,
                           struct failure *why) MUST_CHECK;

/* The number of this round, without those that overflowed. */
uint64_t reduction_step(const struct reduction *reduction);

/* After reduction_wait_header: true if the round is to be saved. All ranks
 * agree. */
bool reduction_is_saved(const struct reduction *reduction);

#endif
