/* SPDX-License-Identifier: Apache-2.0 */
/* What the exchange decides is carried out on the bytes of blocks by a crew:
 * updates, square sums, and holding what a reply reads, in their order for each
 * block. One thread begins tasks and takes them back. */
#ifndef CAPSTAN_WORK_ITEM_H
#define CAPSTAN_WORK_ITEM_H

#include "proto/base/status.h"
#include "proto/net/shm/buffer.h"
#include "ps/consistency/update_core.h"
#include "ps/dense/shard.h"
#include "ps/thread_pool.h"

#include <stdbool.h>
#include <stdint.h>

struct gradient_payload; /* the caller's: what gradients lie in */

struct work_item {
    struct thread_pool_task thread_pool;
    struct update_core_action action; /* UPDATE, SUM or REPLY */
    bool ack_only;                    /* REPLY: without weights */
    struct shard_round round;         /* UPDATE, SUM */
    const void **gradients; /* room for a pointer a rank: the round's */
    struct gradient_payload **payloads; /* room for a pointer a rank */
    unsigned num_payloads; /* UPDATE: those to be let go after it */

    /* When it is done. */
    enum status status;     /* UPDATE */
    int64_t ns;             /* UPDATE: how long it took */
    double sum;             /* SUM */
    struct buffer *weights; /* REPLY: held for the caller, NULL: a receipt */
};

struct work_items;

/* For the blocks of SHARD (borrowed), NUM_RANKS gradients a block at most,
 * THREADS beside the caller's own, 0: none. */
enum status work_items_open(struct work_items **out, struct shard *shard,
                            uint32_t num_ranks, uint32_t threads,
                            struct failure *why) MUST_CHECK;

/* Clears *TASKS (may be NULL); all tasks are back. */
void work_items_close(struct work_items **work_items);

/* A task for ACTION, to be filled in; NULL: no memory. One that came back is
 * used again, so that a step allocates nothing. */
struct work_item *work_items_alloc(struct work_items *work_items,
                                   const struct update_core_action *action);

/* Puts TASK behind all others of its block. */
void work_items_submit(struct work_items *work_items,
                       struct work_item *work_item);

/* Begins what was put. */
void work_items_dispatch(struct work_items *work_items);

/* Waits until all that was put is done: the shard is the caller's alone. */
void work_items_wait(struct work_items *work_items);

/* The next task that is done; NULL: none yet. An UPDATE whose status is not OK
 * has left its block as it was; work_items_failure says why. */
struct work_item *work_items_completed(struct work_items *work_items);

/* TASK is not looked at any more. */
void work_items_recycle(struct work_items *work_items,
                        struct work_item *work_item);

/* The first failure of an update; read when one is back. */
const struct failure *work_items_failure(const struct work_items *work_items);

/* Readable when work_items_completed has something; -1: never. */
int work_items_descriptor(const struct work_items *work_items);

#endif
