/* SPDX-License-Identifier: Apache-2.0 */
/* Items are reused: a free one lies on the free list, and its arrays of one
 * entry a rank lie behind it in the same allocation. The thread pool runs the
 * items of one block in order and never two at once (thread_pool.h), so the
 * shard needs no lock. */
#include "ps/work_item.h"

#include "core/base/time.h"

#include <pthread.h>
#include <stdlib.h>

struct work_items {
    struct work_items_settings settings;
    struct thread_pool *thread_pool;
    struct work_item *free_list; /* linked by task.next */
    uint32_t in_use;
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

static struct unit item_unit(const struct work_items *items,
                             const struct work_item *item) {
    return units_find(&items->settings.units, item->action.block);
}

static void work_item_look_up(struct work_items *items,
                              struct work_item *item) {
    const struct row_lookup *lookup = item->lookup;
    struct row_lookup_part *part = &lookup->parts[item->part];
    float *floats = (float *)buffer_data(lookup->floats) + part->at;
    row_shard_lookup(items->settings.units.rows, part->p, NULL, &part->list,
                     floats);
}

/* What the update has made of a block, which is still in this core's cache. */
static void work_item_histograms(struct work_items *items,
                                 const struct work_item *item) {
    const struct work_items_settings *s = &items->settings;
    const struct shard *shard = s->units.shard;
    uint32_t b = item->action.block;
    if (b >= shard_blocks(shard))
        return;
    const struct block *block = shard_block(shard, b);
    struct histogram_piece piece = {.step = item->action.version,
                                    .offset = block->offset,
                                    .parameter = block->parameter};
    struct histogram histogram;
    if (!histograms_wants(s->histograms, s->layout, piece.parameter,
                          piece.step))
        return;
    if (shard_weights_histogram(shard, b, &histogram))
        histograms_add(s->histograms, &piece, &histogram);
    piece.gradient = true;
    if (shard_gradient_histogram(shard, b, &item->round, &histogram))
        histograms_add(s->histograms, &piece, &histogram);
}

static void work_item_update(struct work_items *items, struct work_item *item) {
    struct failure why;
    struct unit unit = item_unit(items, item);
    item->status = unit.table->update(unit.holder, unit.u, &item->round, &why);
    if (item->status)
        work_item_record_failure(items, &why);
    else if (items->settings.histograms)
        work_item_histograms(items, item);
}

/* Without a mean, or values that were set, the reply is an ack. */
static void work_item_hold(struct work_items *items, struct work_item *item) {
    uint32_t b = item->action.block;
    struct shard *shard = items->settings.units.shard;
    struct buffer *buffer = NULL;
    if (item->mean)
        buffer = shard_mean(shard, b);
    else if (!item->if_set || !shard_is_left(shard, b))
        buffer = shard_tensor(shard, b, 0);
    item->ack_only = !buffer;
    item->weights = buffer ? buffer_hold(buffer) : NULL;
}

static void run_item(void *context, struct thread_pool_task *task) {
    struct work_items *items = context;
    struct work_item *item = (struct work_item *)task;
    struct unit unit = item_unit(items, item);
    if (item->action.kind == UPDATE_CORE_REPLY) {
        if (!item->ack_only)
            work_item_hold(items, item);
        return;
    }
    item->start = time_now();
    if (item->action.kind == UPDATE_CORE_UPDATE)
        work_item_update(items, item);
    else if (item->action.kind == UPDATE_CORE_SUM)
        item->sum = unit.table->square_sum(unit.holder, unit.u, &item->round);
    else
        work_item_look_up(items, item);
    item->ns = time_now() - item->start;
}

static void prefetch_item(void *context, const struct thread_pool_task *task,
                          unsigned ahead) {
    struct work_items *items = context;
    const struct work_item *item = (const struct work_item *)task;
    const struct row_shard *rows = items->settings.units.rows;
    const struct row_list *list = NULL;
    uint32_t p = item_unit(items, item).u;
    if (item->action.kind == UPDATE_CORE_LOOKUP)
        list = &item->lookup->parts[item->part].list;
    else if (item->action.kind == UPDATE_CORE_UPDATE && item->round.parts &&
             item->round.num_parts)
        list = item->round.parts[0].list;
    if (list && ahead == 1)
        row_shard_prefetch_rows(rows, p, list);
    else if (list)
        row_shard_prefetch(rows, p);
}

enum status work_items_open(struct work_items **out,
                            const struct work_items_settings *settings,
                            struct failure *why) {
    struct work_items *items = calloc(1, sizeof *items);
    *out = items;
    if (!items)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for a ps's work items");
    items->settings = *settings;
    pthread_mutex_init(&items->mutex, NULL);
    enum status status =
        thread_pool_open(&items->thread_pool, settings->threads, run_item,
                         prefetch_item, items, why);
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

/* An item, with its arrays behind it. */
static struct work_item *allocate_item(const struct work_items *items) {
    size_t ranks = items->settings.num_ranks;
    struct work_item *item =
        malloc(sizeof *item +
               ranks * (3 * sizeof(void *) + 2 * sizeof(struct row_part)));
    if (!item)
        return NULL;
    item->parts = (struct row_part *)(item + 1);
    item->assigned = item->parts + ranks;
    item->gradients = (const void **)(item->assigned + ranks);
    item->payloads = (struct gradient_payload **)(item->gradients + ranks);
    item->lookups = (struct row_lookup **)(item->payloads + ranks);
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
    items->in_use++;
    item->task.block = action->block;
    item->action = *action;
    item->ack_only = item->mean = item->if_set = false;
    item->num_payloads = 0;
    item->num_lookups = 0;
    item->status = STATUS_OK;
    item->weights = NULL;
    item->lookup = NULL;
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
    items->in_use--;
}

uint32_t work_items_in_use(const struct work_items *items) {
    return items->in_use;
}

const struct failure *work_items_failure(const struct work_items *items) {
    return &items->why;
}

int work_items_descriptor(const struct work_items *items) {
    return thread_pool_descriptor(items->thread_pool);
}
