/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on the bytes of blocks and partitions, run by a thread pool:
 * updates, square sums, lookups, and holding the weights that a reply reads.
 * Those of one block run in order. One thread submits them and collects the
 * results. */
#ifndef CAPSTAN_WORK_ITEM_H
#define CAPSTAN_WORK_ITEM_H

#include "core/base/status.h"
#include "core/net/shm/buffer.h"
#include "proto/messages/histograms.h"
#include "ps/consistency/update_core.h"
#include "ps/thread_pool.h"
#include "ps/units/row_lookups.h"
#include "ps/units/units.h"

#include <stdbool.h>
#include <stdint.h>

struct gradient_payload; /* the caller's: received bytes that hold gradients */

struct work_item {
    struct thread_pool_task task;
    struct update_core_action action;  /* UPDATE, SUM, REPLY or LOOKUP */
    bool ack_only;                     /* REPLY: without weights */
    bool mean;                         /* REPLY: the mean in place of weights */
    bool if_set;                       /* REPLY: what a round left is an ack */
    struct unit_round round;           /* UPDATE, SUM */
    struct row_part *parts, *assigned; /* [num_ranks]: its parts */
    struct row_lookup *lookup;         /* LOOKUP, and the number of its part */
    uint32_t part;
    struct row_lookup *
        *lookups; /* [num_ranks]: those whose lists `parts` use */
    unsigned num_lookups;
    struct optimizer optimizer; /* of its group, if `round` points here */
    const void **gradients;     /* [num_ranks]: the round's gradients */
    struct gradient_payload **payloads; /* [num_ranks] */
    unsigned num_payloads; /* UPDATE: how many to release after it */

    /* Results. */
    enum status status;     /* UPDATE */
    int64_t start, ns;      /* UPDATE, SUM, LOOKUP: begin and duration */
    double sum;             /* SUM */
    struct buffer *weights; /* REPLY: held for the caller; NULL: an ack */
};

struct work_items;

/* For UNITS, borrowed, with at most NUM_RANKS gradients a unit, on THREADS
 * besides the caller's own; 0: none. */
struct work_items_settings {
    struct units units;
    struct histograms *histograms; /* of blocks; NULL: none */
    const struct layout *layout;   /* of them */
    uint32_t num_ranks, threads;
};

enum status work_items_open(struct work_items **out,
                            const struct work_items_settings *settings,
                            struct failure *why) MUST_CHECK;

/* Clears *ITEMS (may be NULL). All items must have been recycled. */
void work_items_close(struct work_items **items);

/* An item for ACTION, which the caller completes; NULL: no memory. Recycled
 * items are reused, so that a step allocates nothing. */
struct work_item *work_items_alloc(struct work_items *items,
                                   const struct update_core_action *action);

/* Queues ITEM behind the earlier ones of its block. */
void work_items_submit(struct work_items *items, struct work_item *item);

/* Starts the queued items. */
void work_items_dispatch(struct work_items *items);

/* Waits until all queued items are done: no other thread then touches the
 * shard. */
void work_items_wait(struct work_items *items);

/* The next completed item; NULL: none yet. If an UPDATE fails, its block is
 * unchanged and work_items_failure says why. */
struct work_item *work_items_completed(struct work_items *items);

/* Returns ITEM for reuse. */
void work_items_recycle(struct work_items *items, struct work_item *item);

/* How many items were taken and not recycled: they wait, or are being done. */
uint32_t work_items_in_use(const struct work_items *items);

/* The first failure of an update. Read it after that item has completed. */
const struct failure *work_items_failure(const struct work_items *items);

/* Readable when work_items_completed has an item; -1 without threads. */
int work_items_descriptor(const struct work_items *items);

#endif
