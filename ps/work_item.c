/* SPDX-License-Identifier: Apache-2.0 */
/* Items are reused: a free one lies on the free list, and its two arrays of one
 * pointer a rank lie behind it in the same allocation. The thread pool runs the
 * items of one block in order and never two at once (thread_pool.h), so the
 * shard needs no lock. */
#include "ps/work_item.h"

#include "proto/base/time.h"

#include <pthread.h>
#include <stdlib.h>

struct work_items {
    struct shard *shard;
    struct thread_pool *thread_pool;
    uint32_t num_ranks;
    struct work_item *free_list; /* linked by task.next */
    pthread_mutex_t mutex;
    struct failure why; /* the mutex is held */
};

static void work_item_record_failure(struct work_items *items,
                                     const struct failure *why) {
    pthread_mutex_lock(&items->mutex);
    if (!items->why.code)
        items->why = *why;
    pthread_mutex_unlock(&items->mutex);
}

static void work_item_update(struct work_items *items, struct work_item *item) {
    struct failure why;
    int64_t start = time_now();
    item->status =
        shard_update(items->shard, item->action.block, &item->round, &why);
    item->ns = time_now() - start;
    if (item->status)
        work_item_record_failure(items, &why);
}

/* Without a mean the reply is an ack. */
static void work_item_hold(struct work_items *items, struct work_item *item) {
    uint32_t b = item->action.block;
    struct buffer *buffer = item->mean ? shard_mean(items->shard, b)
                                       : shard_tensor(items->shard, b, 0);
    item->ack_only = !buffer;
    item->weights = buffer ? buffer_hold(buffer) : NULL;
}

static void run_item(void *context, struct thread_pool_task *task) {
    struct work_items *items = context;
    struct work_item *item = (struct work_item *)task;
    uint32_t b = item->action.block;
    if (item->action.kind == UPDATE_CORE_UPDATE)
        work_item_update(items, item);
    else if (item->action.kind == UPDATE_CORE_SUM)
        item->sum = shard_square_sum(items->shard, b, &item->round);
    else if (!item->ack_only)
        work_item_hold(items, item);
}

enum status work_items_open(struct work_items **out, struct shard *shard,
                            uint32_t num_ranks, uint32_t threads,
                            struct failure *why) {
    struct work_items *items = calloc(1, sizeof *items);
    *out = items;
    if (!items)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for a ps's work items");
    items->shard = shard;
    items->num_ranks = num_ranks;
    pthread_mutex_init(&items->mutex, NULL);
    enum status status =
        thread_pool_open(&items->thread_pool, threads, run_item, items, why);
    if (status)
        work_items_close(out);
    return status;
}

void work_items_close(struct work_items **where) {
    struct work_items *items = *where;
    *where = NULL;
    if (!items)
        return;
    thread_pool_close(&items->thread_pool);
    while (items->free_list) {
        struct work_item *item = items->free_list;
        items->free_list = (struct work_item *)item->task.next;
        free(item);
    }
    pthread_mutex_destroy(&items->mutex);
    free(items);
}

/* An item, with its two arrays behind it. */
static struct work_item *allocate_item(const struct work_items *items) {
    size_t ranks = items->num_ranks;
    struct work_item *item = malloc(sizeof *item + 2 * ranks * sizeof(void *));
    if (!item)
        return NULL;
    item->gradients = (const void **)(item + 1);
    item->payloads = (struct gradient_payload **)(item->gradients + ranks);
    return item;
}

struct work_item *work_items_alloc(struct work_items *items,
                                   const struct update_core_action *action) {
    struct work_item *item = items->free_list;
    if (item)
        items->free_list = (struct work_item *)item->task.next;
    else
        item = allocate_item(items);
    if (!item)
        return NULL;
    item->task.block = action->block;
    item->action = *action;
    item->ack_only = item->mean = false;
    item->num_payloads = 0;
    item->status = STATUS_OK;
    item->weights = NULL;
    return item;
}

void work_items_submit(struct work_items *items, struct work_item *item) {
    thread_pool_submit(items->thread_pool, &item->task);
}

void work_items_dispatch(struct work_items *items) {
    thread_pool_dispatch(items->thread_pool);
}

void work_items_wait(struct work_items *items) {
    thread_pool_wait(items->thread_pool);
}

struct work_item *work_items_completed(struct work_items *items) {
    return (struct work_item *)thread_pool_completed(items->thread_pool);
}

void work_items_recycle(struct work_items *items, struct work_item *item) {
    item->task.next = (struct thread_pool_task *)items->free_list;
    items->free_list = item;
}

const struct failure *work_items_failure(const struct work_items *items) {
    return &items->why;
}

int work_items_descriptor(const struct work_items *items) {
    return thread_pool_descriptor(items->thread_pool);
}
