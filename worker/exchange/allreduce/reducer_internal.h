/* SPDX-License-Identifier: Apache-2.0 */
/* What a reducer is made of: for reducer.c and reducer_device.c. */
#ifndef CAPSTAN_REDUCER_INTERNAL_H
#define CAPSTAN_REDUCER_INTERNAL_H

#include "worker/exchange/allreduce/reducer.h"
#include "worker/exchange/allreduce/reduction.h"
#include "worker/exchange/allreduce/sequence.h"
#include "worker/exchange/allreduce/state_io.h"

#include <pthread.h>
#include <stdatomic.h>

/* Of a resident reducer; the compute thread's own. */
struct resident {
    bool opened;
    struct reducer_device_arena device_arena;
    struct ops_event **updated;           /* a bucket: its weights are */
    struct ops_event *gradients_complete; /* all gradients are complete */
    uint32_t summed;                      /* buckets of this round */
    uint32_t waited_bucket; /* 1 + the bucket that OPS_COMPUTE has followed
                          last since it was updated; 0: none */
    atomic_bool
        save_requested; /* to save; of any thread, as nothing else here */
};

/* Marks count parameters in the order of the arena, round after round: first
 * weights are the round at 0, so after N parameters of the R-th round since
 * then a mark is at R * num_parameters + N. */
struct reducer {
    struct reducer_settings settings;
    struct group ranks;
    struct reduction reduction;
    struct state_io state_io;
    pthread_t thread;         /* unless it is resident */
    struct resident resident; /* if it is */
    uint32_t num_parameters;
    struct sequence announced, updated;
    enum contribution
        contribution_kind[2]; /* to the last rounds begun, by clock */
    uint64_t last;            /* `announced`, of the compute thread alone */
    atomic_int_least64_t waited;
    atomic_uint_least64_t save; /* the round to save, 0: none */
    atomic_bool cancelled;
    atomic_bool finishing; /* no round follows, and what there is is saved */

    int descriptor;
    pthread_mutex_t mutex;
    bool failed;
    struct failure why;
};

/* Marks at the beginning of ROUND. */
uint64_t reducer_round_begin(const struct reducer *reducer, uint64_t round);

/* Says what this rank knows of ROUND, once its first gradients are here. */
void reducer_begin_round(struct reducer *reducer, uint64_t round);

/* Saves what is to be saved, and lets the keeper hold the next round back. */
enum status reducer_end_round(struct reducer *reducer,
                              struct failure *why) MUST_CHECK;

/* reducer_announce and reducer_wait of a resident one: they put what is to be
 * done on the device's streams and return. */
void reducer_device_announce(struct reducer *reducer, uint32_t first,
                             uint32_t count, uint64_t round);
bool reducer_device_wait(struct reducer *reducer, uint32_t parameter);

/* Ends all waits. Who was cancelled did not fail. */
void reducer_fail(struct reducer *reducer, const struct failure *why);

#endif
