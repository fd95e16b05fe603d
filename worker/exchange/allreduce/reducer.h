/* SPDX-License-Identifier: Apache-2.0 */
/* Training without ps: gradients are summed over the ranks bucket by bucket
 * while the backward pass goes on, and every rank applies the rule itself. Two
 * threads meet here: the compute thread announces gradients and waits for
 * weights, a thread of the reducer's own runs the collectives and the rule.
 *
 * A resident reducer has no thread: weights, gradients and state are in the
 * memory of the device that computes, and the compute thread puts collectives
 * and the rule on a stream of it, which goes on beside the backward pass. What
 * it announces and waits for is then done in the device's streams, each behind
 * the other.
 *
 * Stage 0: all-reduce; every rank holds all state and does every update, or,
 * where there is no state and the host updates, its piece as in stage 1. Stages
 * 1 and 2 (ZeRO, Rajbhandari et al. 2020): of each bucket a rank gets its piece
 * of the sum (reduce-scatter), holds that piece's state, updates that piece's
 * weights, and all gather the weights. The same weights in all stages. */
#ifndef CAPSTAN_REDUCER_H
#define CAPSTAN_REDUCER_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/job/job.h"
#include "proto/net/shm/buffer.h"
#include "proto/tensor/layout.h"
#include "proto/tensor/loss_scaler.h"
#include "proto/tensor/rule.h"
#include "proto/tensor/run_schedule.h"
#include "worker/collective/collective.h"
#include "worker/exchange/client/contribution.h"
#include "worker/ops/ops.h"

#include <stdbool.h>
#include <stdint.h>

/* Floats of room in front of the first parameter of the arena of gradients:
 * the word of a round travels there, with its first bucket. */
enum { REDUCER_HEADER_FLOATS = 16 };

/* Where first weights come from and where saved ones go, on rank 0 alone;
 * called by the reducer's thread. A block's tensors: its weights, then its
 * state by slot (rule_slots), each of the block's elements. */
struct reducer_storage {
    void *context;
    /* Fills block B's TENSORS; NULL: all ranks begin by the seed. */
    enum status (*load)(void *context, uint32_t b, float *const *tensors,
                        struct failure *why);
    /* What belongs to the blocks that are saved next. May be NULL. */
    void (*note)(void *context, const struct loss_scaler *scaler);
    /* Block B as round ROUND leaves it, blocks ascending, each once. May wait
     * for a disk; the bytes are copied. */
    enum status (*save)(void *context, uint64_t round, uint32_t b,
                        const float *const *tensors, struct failure *why);
    /* Asked after each round, before the next: must this rank hold the next
     * round back, as the chief is about to name a round to save? Waits. */
    void (*pause)(void *context, uint64_t round);
};

/* All borrowed. WEIGHTS and GRADIENTS as in arena.h: parameter p at float
 * offsets[p] of both. */
struct reducer_settings {
    const struct log *log;
    const struct job *job; /* rule, schedule, clipping, zero; batch solved */
    const struct layout *layout;
    const struct run_schedule
        *run_schedule; /* the planned saves and evaluations */
    const struct collective_ops *ops;
    struct collective_settings group; /* copied */
    struct buffer *weights, *gradients;
    const uint64_t *offsets;
    const struct rule_loops *loops; /* NULL: the best */
    const struct reducer_storage
        *rank0_snapshot_agent; /* rank 0; NULL elsewhere */
    struct loss_scaler scaler; /* as saved; all 0: none was */
    uint32_t replicas; /* whose gradients this rank's are the sum of; 0: 1 */
    uint32_t all_replicas;         /* of all ranks; 0: as many as ranks */
    bool broadcasts_first_weights; /* first weights are rank 0's, broadcast; the
                                      same on all */
    bool large_buckets; /* buckets are large: each costs the same, whatever is
                           in it */
    bool resident;
    /* Resident: the compute thread is to call reducer_serve. */
    void (*wake)(void *context);
    void *context;
};

/* A device with memory of its own, where floats lie as in the arenas. */
struct reducer_device_arena {
    const struct ops *ops;
    struct ops_device *device;
    float *weights, *gradients;
    struct ops_event *const *complete; /* a parameter: its gradient is, as
                                          recorded before it is announced */
};

struct reducer;

/* Starts the thread, which meets the other ranks and sets first weights and
 * state; the weights are there once reducer_wait says so. STATUS_RETRY: no
 * memory or no thread; what fails later is for reducer_failed to tell. */
enum status reducer_open(struct reducer **out,
                         const struct reducer_settings *settings,
                         struct failure *why) MUST_CHECK;

/* Ends the thread and clears *REDUCER (may be NULL); a resident one has ended
 * before (reducer_end). */
void reducer_close(struct reducer **reducer);

/* Compute thread. */

/* Do weights, gradients and state stay on the device? */
bool reducer_is_resident(const struct reducer *reducer);

/* Resident, before all that follows: meets the other ranks and sets first
 * weights and state in PLACE, which stays until reducer_end. STATUS_FAILED when
 * the device has no memory for it. */
enum status reducer_begin(struct reducer *reducer,
                          const struct reducer_device_arena *device_arena,
                          struct failure *why) MUST_CHECK;

/* Resident: lets go of the place. When training goes on elsewhere, after
 * reducer_cancel. */
void reducer_end(struct reducer *reducer);

/* Resident: all gradients of the step, which OPS_COMPUTE has been given, are
 * multiplied by BY where all are finite; else *FINITE is false. */
enum status reducer_unscale(struct reducer *reducer, float by, bool *finite,
                            struct failure *why) MUST_CHECK;

/* Resident: waits until the last round announced is done; on rank 0 the host's
 * arena has its weights then. */
enum status reducer_download_weights(struct reducer *reducer,
                                     struct failure *why) MUST_CHECK;

/* Resident: saves, if reducer_save_now has asked for it. */
void reducer_serve(struct reducer *reducer);

/* Resident: are other ranks lost, as far as is known without waiting? For who
 * waits for the device. WHY (may be NULL) says which. */
bool reducer_peer_lost(struct reducer *reducer, struct failure *why);

/* As client_announce: gradients of round CLOCK of COUNT parameters from FIRST
 * on are complete, last parameters first. What is not whole is announced with
 * all parameters at once. The round's sum is divided by the number of those
 * replicas that are whole; where any is void all ranks leave weights and state
 * as they are. */
void reducer_announce(struct reducer *reducer, uint32_t first, uint32_t count,
                      uint64_t clock, enum contribution contribution_kind);

/* Waits until PARAMETER's weights are those of the last round announced, or
 * the first ones; a bucket waits for the gradients of all that lie in it, so
 * what is waited for comes for certain once the round is announced whole;
 * resident: what OPS_COMPUTE is given from now on does. False when the reducer
 * has failed or was cancelled. */
bool reducer_wait(struct reducer *reducer, uint32_t parameter);

/* Seconds the compute thread has waited for weights. */
double reducer_waited(struct reducer *reducer);

/* As the last round has left it; read once reducer_wait has let the last
 * parameter's weights be read, before the next is announced. */
struct loss_scaler reducer_scaler(const struct reducer *reducer);

/* Rounds behind the run: rounds->start at first. */
uint64_t reducer_round(struct reducer *reducer);

/* Any thread. */

/* Rank 0: state and weights are saved as round ROUND leaves them (it is not
 * behind the run yet, see reducer_storage.pause), by all ranks together. */
void reducer_save(struct reducer *reducer, uint64_t round);

/* Every rank, once it has announced its last round: state and weights are saved
 * as that one leaves them, by all ranks together. */
void reducer_save_now(struct reducer *reducer);

/* Polls readable when reducer_failed would tell something. */
int reducer_descriptor(const struct reducer *reducer);

/* Has a collective, a load or a save failed? Then WHY says how; the run cannot
 * go on. */
bool reducer_failed(struct reducer *reducer, struct failure *why);

/* Ends every wait, on both threads. */
void reducer_cancel(struct reducer *reducer);

struct reducer_times {
    double reduce_s, update_s; /* seconds in collectives and in the rule */
    uint64_t bytes;            /* that this rank has sent to others */
};

/* Since it was opened; of a resident one without update_s, as a device does not
 * tell what it is at. */
void reducer_times(struct reducer *reducer, struct reducer_times *times);

#endif
