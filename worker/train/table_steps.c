/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/train/table_steps.h"

#include "core/tensor/row_keys.h"
#include "worker/train/bags.h"

#include <stdlib.h>
#include <string.h>

/* Gradients that were not summed in place. */
struct pushed_rows {
    struct pushed_rows *next;
    uint32_t table;
    size_t count;
    uint64_t *ids;
    float *gradients; /* [count, dim], in the same allocation */
};

static enum status steps_no_memory(struct failure *why) {
    return status_fail(why, FAILURE_NO_MEMORY, "no memory for a table's rows");
}

enum status table_steps_open(struct table_steps *steps,
                             const struct layout *layout, struct failure *why) {
    *steps = (struct table_steps){.layout = layout};
    steps->end = &steps->kept;
    enum status status = row_batch_index_open(&steps->index, layout, why);
    for (int i = 0; !status && i < TABLE_STEPS_LISTS; i++)
        status = row_batch_open(&steps->lists[i].batch, steps->index, why);
    return status;
}

static void drop_kept(struct table_steps *steps) {
    for (struct pushed_rows *next; steps->kept; steps->kept = next) {
        next = steps->kept->next;
        free(steps->kept);
    }
    steps->end = &steps->kept;
}

void table_steps_close(struct table_steps *steps) {
    drop_kept(steps);
    for (int i = 0; i < TABLE_STEPS_LISTS; i++) {
        row_batch_close(&steps->lists[i].batch);
        free(steps->lists[i].lists);
        free(steps->lists[i].ids);
    }
    row_batch_index_close(&steps->index);
}

/* Lists whose batch nobody uses. */
static struct row_lists *free_lists(struct table_steps *steps) {
    struct row_lists *lists = steps->lists;
    while (lists == steps->read || lists == steps->awaited ||
           lists == steps->prepared || lists == steps->summed ||
           lists == steps->sent[0] || lists == steps->sent[1])
        lists++;
    lists->num_lists = lists->num_ids = lists->num_summed = 0;
    row_batch_begin(&lists->batch);
    return lists;
}

static bool note_list(struct row_lists *lists,
                      const struct external_rows *rows) {
    if (!row_batch_grow((void **)&lists->lists, &lists->room_lists,
                        lists->num_lists + 1, sizeof *lists->lists) ||
        !row_batch_grow((void **)&lists->ids, &lists->room_ids,
                        lists->num_ids + rows->count, sizeof *lists->ids))
        return false;
    lists->lists[lists->num_lists++] = (struct id_list){
        .table = rows->table, .count = rows->count, .first_id = lists->num_ids};
    memcpy(lists->ids + lists->num_ids, rows->ids,
           rows->count * sizeof *lists->ids);
    lists->num_ids += rows->count;
    return true;
}

/* The batch of COUNT lists ROWS, *OUT. */
static enum status list_requested(struct table_steps *steps,
                                  const struct external_rows *rows,
                                  uint32_t count, struct row_lists **out,
                                  struct failure *why) {
    struct row_lists *lists = free_lists(steps);
    enum status status = STATUS_OK;
    for (uint32_t i = 0; !status && i < count; i++) {
        if (!rows[i].count)
            continue;
        if (!note_list(lists, &rows[i]))
            return steps_no_memory(why);
        status = row_batch_add(&lists->batch, rows[i].table, rows[i].ids,
                               rows[i].count, why);
    }
    if (!status)
        status = row_batch_finish(&lists->batch, why);
    if (!status)
        *out = lists;
    return status;
}

enum status table_steps_look_up(struct table_steps *steps,
                                const struct external_rows *rows,
                                uint32_t count, struct failure *why) {
    return list_requested(steps, rows, count, &steps->awaited, why);
}

enum status table_steps_prepare(struct table_steps *steps,
                                const struct external_rows *rows,
                                uint32_t count, struct failure *why) {
    return list_requested(steps, rows, count, &steps->prepared, why);
}

void table_steps_begin(struct table_steps *steps) {
    steps->awaited = steps->prepared;
    steps->prepared = NULL;
}

struct row_lists *table_steps_take(struct table_steps *steps) {
    struct row_lists *lists = steps->awaited;
    steps->awaited = NULL;
    if (!steps->read || !steps->read->num_summed)
        steps->read = lists;
    return lists;
}

static struct bags bags_of(const struct external_rows *rows, uint32_t dim) {
    return (struct bags){.count = rows->num_bags,
                         .offsets = rows->offsets,
                         .weights = rows->weights,
                         .combiner = rows->combiner,
                         .dim = dim,
                         .width = dim};
}

/* WEIGHTS of the rows at POSITIONS, or their sums by bag, to VALUES. */
static void copy_list(const struct external_rows *rows, uint32_t dim,
                      const float *weights, const uint32_t *positions) {
    struct bags bags = bags_of(rows, dim);
    if (rows->num_bags) {
        memset(rows->values, 0, rows->num_bags * dim * sizeof(float));
        bags_add_rows(&bags, weights, positions, rows->values);
        return;
    }
    for (size_t k = 0; k < rows->count; k++)
        row_keys_copy_row(rows->values + k * dim, weights + positions[k], dim);
}

void table_steps_copy(const struct table_steps *steps,
                      const struct row_lists *lists,
                      const struct external_rows *rows, uint32_t count) {
    const uint32_t *positions = lists->batch.positions;
    for (uint32_t i = 0; i < count; i++) {
        copy_list(&rows[i], steps->layout->tables[rows[i].table].dim,
                  lists->batch.weights, positions);
        positions += rows[i].count;
    }
}

static bool is_list(const struct row_lists *lists, size_t list,
                    const struct external_rows *rows) {
    const struct id_list *own = &lists->lists[list];
    return own->table == rows->table && own->count == rows->count &&
           !memcmp(lists->ids + own->first_id, rows->ids,
                   rows->count * sizeof *rows->ids);
}

bool table_steps_awaits(const struct table_steps *steps,
                        const struct external_rows *rows, uint32_t count) {
    const struct row_lists *lists = steps->awaited;
    size_t list = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!rows[i].count)
            continue;
        if (!lists || list == lists->num_lists ||
            !is_list(lists, list, &rows[i]))
            return false;
        list++;
    }
    return lists && list == lists->num_lists;
}

void table_steps_drop(struct table_steps *steps) {
    steps->awaited = NULL;
}

/* Adds COUNT rows FROM of DIM floats to those at POSITIONS. */
static void add_gradients(float *to, const uint32_t *positions, size_t count,
                          const float *from, uint32_t dim) {
    for (size_t k = 0; k < count; k++, from += dim) {
        float *restrict row = to + positions[k];
        for (uint32_t d = 0; d < dim; d++)
            row[d] += from[d];
    }
}

/* The list in what was looked up whose gradients ROWS are; NULL: none. */
static struct id_list *find_read(const struct table_steps *steps,
                                 const struct external_rows *rows) {
    const struct row_lists *lists = steps->read;
    if (!lists || steps->kept)
        return NULL;
    for (size_t i = 0; i < lists->num_lists; i++)
        if (!lists->lists[i].summed && is_list(lists, i, rows))
            return &lists->lists[i];
    return NULL;
}

static void sum_list(struct table_steps *steps, struct id_list *list,
                     const struct external_rows *rows) {
    struct row_batch *batch = &steps->read->batch;
    const uint32_t *positions = batch->positions + list->first_id;
    uint32_t dim = steps->layout->tables[rows->table].dim;
    struct bags bags = bags_of(rows, dim);
    if (!steps->read->num_summed++)
        row_batch_clear_gradients(batch);
    list->summed = true;
    if (rows->num_bags)
        bags_add_gradients(&bags, rows->values, positions, batch->gradients);
    else
        add_gradients(batch->gradients, positions, rows->count, rows->values,
                      dim);
}

/* VALUES by id, [count, dim], to GRADIENTS. */
static void copy_gradients(const struct external_rows *rows, uint32_t dim,
                           float *gradients) {
    struct bags bags = bags_of(rows, dim);
    size_t bytes = rows->count * dim * sizeof(float);
    if (!rows->num_bags) {
        memcpy(gradients, rows->values, bytes);
        return;
    }
    memset(gradients, 0, bytes);
    bags_add_gradients(&bags, rows->values, NULL, gradients);
}

enum status table_steps_add(struct table_steps *steps,
                            const struct external_rows *rows,
                            struct failure *why) {
    uint32_t dim = steps->layout->tables[rows->table].dim;
    size_t floats = rows->count * dim;
    size_t bytes = rows->count * sizeof(uint64_t);
    if (!rows->count)
        return STATUS_OK;
    struct id_list *list = find_read(steps, rows);
    if (list) {
        sum_list(steps, list, rows);
        return STATUS_OK;
    }
    struct pushed_rows *kept =
        malloc(sizeof *kept + bytes + floats * sizeof(float));
    if (!kept)
        return steps_no_memory(why);
    *kept = (struct pushed_rows){.table = rows->table, .count = rows->count};
    kept->ids = (uint64_t *)(kept + 1);
    kept->gradients = (float *)(kept->ids + rows->count);
    memcpy(kept->ids, rows->ids, bytes);
    copy_gradients(rows, dim, kept->gradients);
    *steps->end = kept;
    steps->end = &kept->next;
    return STATUS_OK;
}

/* Adds to BATCH the ids of the lists that are summed in place, and of those
 * kept. */
static enum status add_ids(const struct table_steps *steps,
                           struct row_batch *batch, struct failure *why) {
    const struct row_lists *read = steps->read;
    enum status status = STATUS_OK;
    for (size_t i = 0; !status && read && i < read->num_lists; i++) {
        const struct id_list *list = &read->lists[i];
        if (list->summed)
            status =
                row_batch_add(batch, list->table, read->ids + list->first_id,
                              list->count, why);
    }
    for (const struct pushed_rows *p = steps->kept; !status && p; p = p->next)
        status = row_batch_add(batch, p->table, p->ids, p->count, why);
    return status ? status : row_batch_finish(batch, why);
}

/* The sums of LIST, made in place, to those of BATCH at POSITIONS. */
static void move_sums(const struct row_lists *read, const struct id_list *list,
                      uint32_t dim, struct row_batch *batch,
                      const uint32_t *positions) {
    const uint32_t *from = read->batch.positions + list->first_id;
    for (size_t k = 0; k < list->count; k++)
        memcpy(batch->gradients + positions[k], read->batch.gradients + from[k],
               dim * sizeof(float));
}

/* To a batch of its own: the sums made in place, then what was kept. */
static enum status sum_kept(struct table_steps *steps, struct row_batch *batch,
                            struct failure *why) {
    const struct row_lists *read = steps->read;
    const struct table *tables = steps->layout->tables;
    enum status status = add_ids(steps, batch, why);
    if (status)
        return status;
    row_batch_clear_gradients(batch);
    const uint32_t *positions = batch->positions;
    for (size_t i = 0; read && i < read->num_lists; i++) {
        const struct id_list *list = &read->lists[i];
        if (!list->summed)
            continue;
        move_sums(read, list, tables[list->table].dim, batch, positions);
        positions += list->count;
    }
    for (const struct pushed_rows *p = steps->kept; p; p = p->next) {
        add_gradients(batch->gradients, positions, p->count, p->gradients,
                      tables[p->table].dim);
        positions += p->count;
    }
    return STATUS_OK;
}

enum status table_steps_sum(struct table_steps *steps, struct row_batch **batch,
                            struct failure *why) {
    struct row_lists *lists = steps->read;
    enum status status = STATUS_OK;
    *batch = NULL;
    steps->prepared = NULL;
    if (steps->kept || (lists && lists->num_summed)) {
        if (steps->kept || lists->num_summed < lists->num_lists) {
            lists = free_lists(steps);
            status = sum_kept(steps, &lists->batch, why);
        }
        steps->summed = lists;
        *batch = &lists->batch;
    }
    steps->read = NULL;
    drop_kept(steps);
    return status;
}

void table_steps_sent(struct table_steps *steps) {
    if (!steps->summed)
        return;
    steps->sent[1] = steps->sent[0];
    steps->sent[0] = steps->summed;
    steps->summed = NULL;
}
