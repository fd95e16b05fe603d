/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a reducer: for reducer.c and reducer_device.c. */
#ifndef CAPSTAN_REDUCER_INTERNAL_H
#define CAPSTAN_REDUCER_INTERNAL_H

#include "worker/exchange/allreduce/reducer.h"
#include "worker/exchange/allreduce/reduction.h"
#include "worker/exchange/allreduce/sequence.h"
#include "worker/exchange/allreduce/state_io.h"

#include <pthread.h>
#include <stdatomic.h>

/* Of a resident reducer; compute thread only. */
struct resident {
    bool opened;
    struct reducer_device_arena device_arena;
    struct device_event **updated; /* per bucket: its weights are updated */
    struct device_event *gradients_complete; /* all gradients are complete */
    uint32_t summed;        /* buckets of this round that are enqueued */
    uint32_t waited_bucket; /* 1 + the last bucket that STREAM_COMPUTE waits for
                               since its update; 0: none */
    /* Requests a save; the only field for any thread. */
    atomic_bool save_requested;
};

/* Sequence numbers count parameters in arena order, round after round. Initial
 * weights are round 0; after N parameters of the R-th round since then the
 * number is R * num_parameters + N. */
struct reducer {
    struct reducer_settings settings;
    struct group ranks;
    struct reduction reduction;
    struct state_io state_io;
    pthread_t thread;         /* unless resident */
    struct resident resident; /* if resident */
    uint32_t num_parameters;
    struct sequence announced, updated;
    /* Of the last two rounds, by clock. */
    enum contribution contribution_kind[2];
    uint64_t last; /* last `announced` value; compute thread only */
    atomic_int_least64_t waited;
    atomic_uint_least64_t save; /* the round to save, 0: none */
    atomic_bool cancelled;
    atomic_bool finishing; /* no round follows and the current state is saved */
    atomic_bool settled;   /* no round follows */
    bool deferred; /* the last round's save waits for the trainer's weights */

    int descriptor;
    pthread_mutex_t mutex;
    bool failed;
    struct failure why;
};

/* The sequence number at the beginning of ROUND. */
uint64_t reducer_round_begin(const struct reducer *reducer, uint64_t round);

/* Publishes this rank's header of ROUND once its first gradients are
 * complete. */
void reducer_begin_round(struct reducer *reducer, uint64_t round);

/* Saves if a save is due, and lets the snapshot agent hold the next round
 * back. */
enum status reducer_end_round(struct reducer *reducer,
                              struct failure *why) MUST_CHECK;

/* reducer_announce and reducer_wait of a resident reducer: they enqueue work on
 * the device's streams and return. */
void reducer_device_announce(struct reducer *reducer, uint32_t first,
                             uint32_t count, uint64_t round);
bool reducer_device_wait(struct reducer *reducer, uint32_t parameter);

/* Records the failure and ends all waits. A cancelled reducer does not fail. */
void reducer_fail(struct reducer *reducer, const struct failure *why);

#endif
