/* SPDX-License-Identifier: Apache-2.0 */
/* Training without ps: gradients are summed over the ranks bucket by bucket
 * during the backward pass, and every rank applies the rule itself. Two threads
 * meet here: the compute thread announces gradients and waits for weights; the
 * reducer's own thread runs the collectives and the rule.
 *
 * A resident reducer has no thread: weights, gradients and state are in the
 * computing device's memory, and the compute thread enqueues collectives and
 * the rule on a stream of the device, beside the backward pass. Announcements
 * and waits become dependencies between the device's streams.
 *
 * Stage 0 is all-reduce: every rank holds all state and does every update; if
 * there is no state and the host updates, it updates its piece only, as in
 * stage 1. In stages 1 and 2 (ZeRO, Rajbhandari et al. 2020) a rank gets its
 * piece of each bucket's sum (reduce-scatter), holds that piece's state and
 * updates that piece's weights; then all ranks gather the weights. All stages
 * give the same weights. */
#ifndef CAPSTAN_REDUCER_H
#define CAPSTAN_REDUCER_H

#include "core/base/log.h"
#include "core/base/status.h"
#include "core/net/shm/buffer.h"
#include "core/tensor/layout.h"
#include "core/tensor/loss_scaler.h"
#include "core/tensor/rule.h"
#include "proto/job/job.h"
#include "proto/plan/optimizer_group.h"
#include "proto/plan/run_schedule.h"
#include "worker/collective/collective.h"
#include "worker/exchange/allreduce/row_reducer.h"
#include "worker/exchange/exchange.h"
#include "worker/ops/device.h"

#include <stdbool.h>
#include <stdint.h>

/* Floats in front of the first parameter of the gradient arena. They hold the
 * round's header, which travels with the first bucket. */
enum { REDUCER_HEADER_FLOATS = 16 };

/* The source of initial weights and the destination of saves, on rank 0 only;
 * called by the reducer's thread. A block's tensors are its weights, then its
 * state by slot, each with the block's number of elements. There is room for as
 * many slots as any parameter's rule has. */
struct reducer_storage {
    void *context;
    /* Fills block B's TENSORS and *RULE_STEP, the updates that its rule has
     * counted; NULL: all ranks initialise from the seed. */
    enum status (*load)(void *context, uint32_t b, float *const *tensors,
                        uint64_t *rule_step, struct failure *why);
    /* The scaler that is saved with the next blocks. May be NULL. */
    void (*note)(void *context, const struct loss_scaler *scaler);
    /* Block B after round ROUND; blocks ascend, each once. May wait for the
     * disk; the bytes are copied. */
    enum status (*save)(void *context, uint64_t round, uint32_t b,
                        const float *const *tensors, uint64_t rule_step,
                        struct failure *why);
    /* Called after each round: waits while the chief is about to name a round
     * to save, which holds the next round back. */
    void (*pause)(void *context, uint64_t round);
};

/* All borrowed. WEIGHTS and GRADIENTS as in arena.h: parameter p at float
 * offsets[p] of both. */
struct reducer_settings {
    const struct log *log;
    const struct job *job; /* rule, schedule, clipping, zero; batch resolved */
    const struct layout *layout;
    /* The planned saves and evaluations. */
    const struct run_schedule *run_schedule;
    const struct collective_ops *ops;
    struct collective_settings group; /* copied */
    struct buffer *weights, *gradients;
    const uint64_t *offsets;
    const struct rule_loops *loops; /* NULL: the best for this CPU */
    /* Rank 0; NULL on other ranks. */
    const struct reducer_storage *rank0_snapshot_agent;
    struct row_reducer *rows; /* of tables, not resident; NULL: none */
    const struct row_reducer_storage *row_storage; /* rank 0; else NULL */
    struct loss_scaler scaler; /* from the checkpoint; all 0: none */
    /* Device replicas whose gradients this rank sums; 0: 1. */
    uint32_t replicas;
    uint32_t all_replicas;         /* of all ranks; 0: one per rank */
    bool broadcasts_first_weights; /* rank 0 broadcasts the initial weights;
                                      equal on all ranks */
    bool large_buckets; /* for collectives whose cost per call outweighs the
                           cost per byte */
    /* The model is external: every contribution is told by `contribute`,
     * and the round's header follows the last bucket. */
    bool external;
    /* [num_groups], by parameter: an external model's of one type, a job's of
     * any; NULL: the job's optimizer. */
    const struct optimizer_group *groups;
    uint32_t num_groups;
    bool resident;
    struct trace *trace;           /* NULL: nothing is recorded */
    struct histograms *histograms; /* likewise */
    /* Resident: asks the compute thread to call `serve`. */
    void (*wake)(void *context);
    void *context;
    /* Optimizer None: copies the trainer's weights into WEIGHTS, where a round
     * leaves means. A save then follows when the next round is announced, or
     * `settle`, as the trainer has the round's weights by then. */
    void (*collect)(void *collect_context);
    void *collect_context;
};

/* A device with its own memory; floats lie as in the arenas. */
struct reducer_device_arena {
    const struct device_ops *ops;
    struct device *device;
    float *weights, *gradients;
    struct device_event *const
        *complete; /* per parameter: recorded before the announcement, signals
                      the complete gradient */
};

struct reducer;

/* Starts the thread, which connects to the other ranks and sets initial weights
 * and state; `wait` returns once the weights are there. STATUS_RETRY: no
 * memory or no thread; reducer_failed reports later failures. */
enum status reducer_open(struct reducer **out,
                         const struct reducer_settings *settings,
                         struct failure *why) MUST_CHECK;

/* Ends the thread and clears *REDUCER (may be NULL). A resident reducer needs
 * `end` before. */
void reducer_close(struct reducer **reducer);

/* What the compute thread does. A resident reducer needs `begin` first. View.
 */
struct exchange *reducer_exchange(struct reducer *reducer);

/* Any thread. */

/* Rank 0: all ranks save state and weights as they are after round ROUND, which
 * must not be completed yet (see reducer_storage.pause). */
void reducer_save(struct reducer *reducer, uint64_t round);

/* Every rank, after its last announcement: all ranks save the state and weights
 * of that round. */
void reducer_save_now(struct reducer *reducer);

/* Polls readable when reducer_failed has something to report. */
int reducer_descriptor(const struct reducer *reducer);

/* Is a round announced whose weights are not there? Then it waits for the
 * other ranks. Of a resident reducer false. */
bool reducer_is_reducing(struct reducer *reducer);

/* True if a collective, a load or a save has failed: WHY has the reason, and
 * the run cannot continue. */
bool reducer_failed(struct reducer *reducer, struct failure *why);

struct reducer_times {
    double reduce_s, update_s; /* seconds in collectives, seconds in the rule */
    uint64_t bytes;            /* sent to other ranks */
};

/* Totals since the reducer was opened. A resident reducer has no update_s, as a
 * device does not report the time of single operations. */
void reducer_times(struct reducer *reducer, struct reducer_times *times);

#endif
