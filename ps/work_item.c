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

static void work_item_record_failure(struct work_items *work_items,
                                     const struct failure *why) {
    pthread_mutex_lock(&work_items->mutex);
    if (!work_items->why.code)
        work_items->why = *why;
    pthread_mutex_unlock(&work_items->mutex);
}

static void work_item_update(struct work_items *work_items,
                             struct work_item *work_item) {
    struct failure why;
    int64_t start = time_now();
    work_item->status = shard_update(work_items->shard, work_item->action.block,
                                     &work_item->round, &why);
    work_item->ns = time_now() - start;
    if (work_item->status)
        work_item_record_failure(work_items, &why);
}

static void run_item(void *context, struct thread_pool_task *task) {
    struct work_items *work_items = context;
    struct work_item *work_item = (struct work_item *)task;
    uint32_t b = work_item->action.block;
    if (work_item->action.kind == UPDATE_CORE_UPDATE)
        work_item_update(work_items, work_item);
    else if (work_item->action.kind == UPDATE_CORE_SUM)
        work_item->sum =
            shard_square_sum(work_items->shard, b, &work_item->round);
    else if (!work_item->ack_only)
        work_item->weights = buffer_hold(shard_tensor(work_items->shard, b, 0));
}

enum status work_items_open(struct work_items **out, struct shard *shard,
                            uint32_t num_ranks, uint32_t threads,
                            struct failure *why) {
    struct work_items *work_items = calloc(1, sizeof *work_items);
    *out = work_items;
    if (!work_items)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for a ps's work items");
    work_items->shard = shard;
    work_items->num_ranks = num_ranks;
    pthread_mutex_init(&work_items->mutex, NULL);
    enum status status = thread_pool_open(&work_items->thread_pool, threads,
                                          run_item, work_items, why);
    if (status)
        work_items_close(out);
    return status;
}

void work_items_close(struct work_items **where) {
    struct work_items *work_items = *where;
    *where = NULL;
    if (!work_items)
        return;
    thread_pool_close(&work_items->thread_pool);
    while (work_items->free_list) {
        struct work_item *work_item = work_items->free_list;
        work_items->free_list = (struct work_item *)work_item->task.next;
        free(work_item);
    }
    pthread_mutex_destroy(&work_items->mutex);
    free(work_items);
}

/* An item, with its two arrays behind it. */
static struct work_item *allocate_item(const struct work_items *work_items) {
    size_t ranks = work_items->num_ranks;
    struct work_item *work_item =
        malloc(sizeof *work_item + 2 * ranks * sizeof(void *));
    if (!work_item)
        return NULL;
    work_item->gradients = (const void **)(work_item + 1);
    work_item->payloads =
        (struct gradient_payload **)(work_item->gradients + ranks);
    return work_item;
}

struct work_item *work_items_alloc(struct work_items *work_items,
                                   const struct update_core_action *action) {
    struct work_item *work_item = work_items->free_list;
    if (work_item)
        work_items->free_list = (struct work_item *)work_item->task.next;
    else
        work_item = allocate_item(work_items);
    if (!work_item)
        return NULL;
    work_item->task.block = action->block;
    work_item->action = *action;
    work_item->ack_only = false;
    work_item->num_payloads = 0;
    work_item->status = STATUS_OK;
    work_item->weights = NULL;
    return work_item;
}

void work_items_submit(struct work_items *work_items,
                       struct work_item *work_item) {
    thread_pool_submit(work_items->thread_pool, &work_item->task);
}

void work_items_dispatch(struct work_items *work_items) {
    thread_pool_dispatch(work_items->thread_pool);
}

void work_items_wait(struct work_items *work_items) {
    thread_pool_wait(work_items->thread_pool);
}

struct work_item *work_items_completed(struct work_items *work_items) {
    return (struct work_item *)thread_pool_completed(work_items->thread_pool);
}

void work_items_recycle(struct work_items *work_items,
                        struct work_item *work_item) {
    work_item->task.next = (struct thread_pool_task *)work_items->free_list;
    work_items->free_list = work_item;
}

const struct failure *work_items_failure(const struct work_items *work_items) {
    return &work_items->why;
}

int work_items_descriptor(const struct work_items *work_items) {
    return thread_pool_descriptor(work_items->thread_pool);
}
