/* SPDX-License-Identifier: Apache-2.0 */
/* What the exchange decides is carried out on the bytes of blocks by a crew:
 * updates, square sums, and holding what a reply reads, in their order for each
 * block. One thread begins tasks and takes them back. */
#ifndef CAPSTAN_TASKS_H
#define CAPSTAN_TASKS_H

#include "proto/base/status.h"
#include "proto/net/shm/buffer.h"
#include "ps/consistency/exchange.h"
#include "ps/crew.h"
#include "ps/dense/shard.h"

#include <stdbool.h>
#include <stdint.h>

struct parcel; /* the caller's: what gradients lie in */

struct task {
    struct crew_task crew;
    struct exchange_action action; /* UPDATE, SUM or REPLY */
    bool receipt;                  /* REPLY: without weights */
    struct shard_round round;      /* UPDATE, SUM */
    const void **gradients;        /* room for a pointer a rank: the round's */
    struct parcel **parcels;       /* room for a pointer a rank */
    unsigned num_parcels;          /* UPDATE: those to be let go after it */

    /* When it is done. */
    enum status status;     /* UPDATE */
    int64_t ns;             /* UPDATE: how long it took */
    double sum;             /* SUM */
    struct buffer *weights; /* REPLY: held for the caller, NULL: a receipt */
};

struct tasks;

/* For the blocks of SHARD (borrowed), NUM_RANKS gradients a block at most,
 * THREADS beside the caller's own, 0: none. */
enum status tasks_open(struct tasks **out, struct shard *shard,
                       uint32_t num_ranks, uint32_t threads,
                       struct failure *why) MUST_CHECK;

/* Clears *TASKS (may be NULL); all tasks are back. */
void tasks_close(struct tasks **tasks);

/* A task for ACTION, to be filled in; NULL: no memory. One that came back is
 * used again, so that a step allocates nothing. */
struct task *tasks_take(struct tasks *tasks,
                        const struct exchange_action *action);

/* Puts TASK behind all others of its block. */
void tasks_put(struct tasks *tasks, struct task *task);

/* Begins what was put. */
void tasks_start(struct tasks *tasks);

/* Waits until all that was put is done: the shard is the caller's alone. */
void tasks_settle(struct tasks *tasks);

/* The next task that is done; NULL: none yet. An UPDATE whose status is not OK
 * has left its block as it was; tasks_failure says why. */
struct task *tasks_done(struct tasks *tasks);

/* TASK is not looked at any more. */
void tasks_give_back(struct tasks *tasks, struct task *task);

/* The first failure of an update; read when one is back. */
const struct failure *tasks_failure(const struct tasks *tasks);

/* Readable when tasks_done has something; -1: never. */
int tasks_descriptor(const struct tasks *tasks);

#endif
