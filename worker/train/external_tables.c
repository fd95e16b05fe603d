/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of the caller: rows are looked up between steps; the gradients of a
 * step are pushed, summed by row, when it ends. */
#include "worker/train/external_internal.h"

#include "core/base/time.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static enum status tables_no_memory(struct failure *why) {
    return status_fail(why, FAILURE_NO_MEMORY, "no memory for a table's rows");
}

static bool grow_tables(struct external_tables *all) {
    uint32_t count = all->count + 1;
    struct table *tables =
        reallocarray(all->tables, count, sizeof *all->tables);
    if (tables)
        all->tables = tables;
    struct optimizer_group *groups =
        reallocarray(all->groups, count, sizeof *all->groups);
    if (groups)
        all->groups = groups;
    bool *has = reallocarray(all->has_group, count, sizeof *has);
    if (has)
        all->has_group = has;
    return tables && groups && has;
}

enum status external_declare_table(struct external *external,
                                   const struct table *table, const char *type,
                                   uint32_t *number, struct failure *why) {
    struct external_tables *all = external->tables;
    if (external->declared)
        return status_fail(why, FAILURE_WRONG_CALL,
                           "table \"%s\" is declared after the start",
                           table->name);
    if (!all)
        external->tables = all = calloc(1, sizeof *all);
    if (!all || !grow_tables(all))
        return tables_no_memory(why);
    struct optimizer_group group = {0};
    if (type) {
        enum status status = external_default_group(&group, type, why);
        if (status)
            return status;
    }
    all->tables[all->count] = *table;
    all->groups[all->count] = group;
    all->has_group[all->count] = type != NULL;
    *number = all->count++;
    return STATUS_OK;
}

enum status external_set_table(struct external *external, uint32_t number,
                               const char *key, double value,
                               struct failure *why) {
    struct external_tables *all = external->tables;
    if (!all || number >= all->count || external->declared ||
        !all->has_group[number])
        return status_fail(
            why, FAILURE_WRONG_CALL,
            "\"%s\" of table number %u: set before the start, of "
            "tables with an optimizer of their own",
            key, number);
    enum status status =
        optimizer_group_set(&all->groups[number], key, value, why);
    if (status)
        why->code = FAILURE_WRONG_CALL;
    return status;
}

const struct optimizer_group *external_table_groups(
    const struct external *external, uint32_t *count) {
    *count = external->tables ? external->tables->count : 0;
    return *count ? external->tables->groups : NULL;
}

/* The place of table T's own optimizer among the groups: that of an earlier
 * table with the same, so that their rows are stored together. */
static uint32_t same_group(const struct external_tables *all, uint32_t t) {
    uint32_t u = 0;
    while (u < t &&
           (!all->has_group[u] ||
            memcmp(&all->groups[u], &all->groups[t], sizeof all->groups[t])))
        u++;
    return u + 1;
}

/* A table without an optimizer of its own has a place among the groups, too,
 * which does not count. */
enum status external_add_tables(struct external *external,
                                struct layout *layout, struct failure *why) {
    struct external_tables *all = external->tables;
    for (uint32_t t = 0; all && t < all->count; t++) {
        all->tables[t].optimizer = all->has_group[t] ? same_group(all, t) : 0;
    }
    return all ? layout_add_tables(layout, all->tables, all->count,
                                   LAYOUT_PARTITIONS, why)
               : STATUS_OK;
}

/* The steps need the plan's layout. */
static enum status open_steps(struct external *external,
                              const struct trainer *trainer,
                              struct failure *why) {
    struct external_tables *all = external->tables;
    if (all->open)
        return STATUS_OK;
    all->open = true;
    return table_steps_open(&all->steps, trainer->plan->layout, why);
}

/* The offsets of bags go up from 0 to the number of ids. */
static enum status check_bags(const struct external_rows *rows,
                              const char *name, struct failure *why) {
    const uint32_t *offsets = rows->offsets;
    size_t b = 0;
    if (!offsets && !rows->num_bags)
        return STATUS_OK;
    if (!offsets || rows->combiner > BATCH_SQRTN ||
        (!rows->num_bags && rows->count))
        return status_fail(why, FAILURE_WRONG_CALL,
                           "bags of table \"%s\" without offsets, with an "
                           "unknown combiner, or none of them for %zu ids",
                           name, rows->count);
    while (b < rows->num_bags && offsets[b] <= offsets[b + 1])
        b++;
    if (!offsets[0] && b == rows->num_bags && offsets[b] == rows->count)
        return STATUS_OK;
    return status_fail(why, FAILURE_WRONG_CALL,
                       "bags of table \"%s\": offsets[%zu] is %" PRIu32
                       "; offsets go up from 0 to the number of ids, %zu",
                       name, offsets[0] ? 0 : b, offsets[offsets[0] ? 0 : b],
                       rows->count);
}

static enum status check_lists(const struct external *external,
                               const struct external_rows *rows, uint32_t count,
                               struct failure *why) {
    const struct external_tables *all = external->tables;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; !status && i < count; i++) {
        if (!all || rows[i].table >= all->count || !external->started ||
            external->finished || (rows[i].count && !rows[i].ids))
            return status_fail(why, FAILURE_WRONG_CALL,
                               "rows of a table that was not declared, or not "
                               "between start and end");
        status = check_bags(&rows[i], all->tables[rows[i].table].name, why);
    }
    return status;
}

/* Sends the awaited lookup; AHEAD: for the step after this one. */
static void send_awaited(struct external *external, struct trainer *trainer,
                         bool ahead) {
    struct external_tables *all = external->tables;
    all->awaited_clock = trainer->clock + ahead;
    exchange_lookup(trainer->exchange, all->awaited_clock, ahead, 0,
                    &all->steps.awaited->batch);
}

/* Rows that were asked for ahead may not come before this step's push. */
static enum status check_order(const struct external *external,
                               const struct trainer *trainer, uint32_t count,
                               struct failure *why) {
    const struct external_tables *all = external->tables;
    if (count && all->steps.awaited && all->awaited_clock > trainer->clock)
        return status_fail(why, FAILURE_WRONG_CALL,
                           "rows are looked up, or asked for ahead again, "
                           "after those of the next step were asked for ahead: "
                           "the step ends first");
    return STATUS_OK;
}

/* A lookup that was begun ahead is awaited, also if it has brought other rows
 * than those which are wanted now, or those of a step that had no lookup. */
static bool await_others(struct external *external, struct trainer *trainer,
                         const struct external_rows *rows, uint32_t count,
                         int64_t until) {
    struct external_tables *all = external->tables;
    pthread_mutex_lock(&external->mutex);
    bool others = count && all->steps.awaited &&
                  (all->awaited_clock < trainer->clock ||
                   !table_steps_awaits(&all->steps, rows, count));
    pthread_mutex_unlock(&external->mutex);
    if (!others)
        return true;
    if (!exchange_wait_rows(trainer->exchange, until))
        return false;
    pthread_mutex_lock(&external->mutex);
    table_steps_drop(&all->steps);
    pthread_mutex_unlock(&external->mutex);
    return true;
}

/* Asks ahead for what is prepared; none else is awaited. */
static void send_prepared(struct external *external, struct trainer *trainer) {
    struct table_steps *steps = &external->tables->steps;
    if (!steps->prepared)
        return;
    table_steps_begin(steps);
    send_awaited(external, trainer, true);
}

static enum status prepare_lookup(struct external *external,
                                  struct trainer *trainer,
                                  const struct external_rows *rows,
                                  uint32_t count, struct failure *why) {
    struct table_steps *steps = &external->tables->steps;
    enum status status = open_steps(external, trainer, why);
    if (!status)
        status = check_order(external, trainer, count, why);
    if (!status && steps->prepared)
        status = status_fail(why, FAILURE_WRONG_CALL,
                             "rows are asked for ahead twice in a step");
    if (!status)
        status = table_steps_prepare(steps, rows, count, why);
    if (!status && !steps->awaited)
        send_prepared(external, trainer);
    return status;
}

enum external_result external_prefetch(struct external *external,
                                       const struct external_rows *rows,
                                       uint32_t count) {
    struct trainer *trainer = external_enter(external);
    struct failure why;
    if (!trainer)
        return EXTERNAL_OVER;
    enum status status = check_lists(external, rows, count, &why);
    bool past_end = external_is_past_end(external);
    pthread_mutex_lock(&external->mutex);
    if (!status && count && !past_end)
        status = prepare_lookup(external, trainer, rows, count, &why);
    pthread_mutex_unlock(&external->mutex);
    if (status)
        external_report(trainer, &why);
    external_leave(external);
    return status ? EXTERNAL_OVER : EXTERNAL_DONE;
}

static enum status begin_lookup(struct external *external,
                                struct trainer *trainer,
                                const struct external_rows *rows,
                                uint32_t count, struct failure *why) {
    enum status status = open_steps(external, trainer, why);
    if (!status)
        status =
            table_steps_look_up(&external->tables->steps, rows, count, why);
    if (!status)
        send_awaited(external, trainer, false);
    return status;
}

/* The awaited rows are here. Those of the next step, if they are prepared, are
 * asked for first. */
static void take_rows(struct external *external, struct trainer *trainer,
                      const struct external_rows *rows, uint32_t count) {
    struct table_steps *steps = &external->tables->steps;
    const struct row_lists *lists = table_steps_take(steps);
    send_prepared(external, trainer);
    table_steps_copy(steps, lists, rows, count);
}

enum external_result external_lookup(struct external *external,
                                     const struct external_rows *rows,
                                     uint32_t count, int64_t until) {
    struct trainer *trainer = external_enter(external);
    struct failure why;
    enum external_result result = EXTERNAL_OVER;
    if (!trainer)
        return result;
    enum status status = check_lists(external, rows, count, &why);
    if (!status)
        status = check_order(external, trainer, count, &why);
    if (!status && !await_others(external, trainer, rows, count, until)) {
        result = external_late(external, until);
        external_leave(external);
        return result;
    }
    pthread_mutex_lock(&external->mutex);
    if (!status && count && !external->tables->steps.awaited)
        status = begin_lookup(external, trainer, rows, count, &why);
    pthread_mutex_unlock(&external->mutex);
    if (status) {
        external_report(trainer, &why);
    } else if (!count || exchange_wait_rows(trainer->exchange, until)) {
        pthread_mutex_lock(&external->mutex);
        if (count)
            take_rows(external, trainer, rows, count);
        pthread_mutex_unlock(&external->mutex);
        result = EXTERNAL_DONE;
    } else {
        result = external_late(external, until);
    }
    external_leave(external);
    return result;
}

enum external_result external_push_rows(struct external *external,
                                        const struct external_rows *rows,
                                        uint32_t count) {
    struct trainer *trainer = external_enter(external);
    struct failure why;
    if (!trainer)
        return EXTERNAL_OVER;
    enum status status = check_lists(external, rows, count, &why);
    if (external_is_past_end(external))
        count = 0;
    pthread_mutex_lock(&external->mutex);
    if (!status && external->tables)
        status = open_steps(external, trainer, &why);
    for (uint32_t i = 0; !status && i < count; i++)
        status = table_steps_add(&external->tables->steps, &rows[i], &why);
    pthread_mutex_unlock(&external->mutex);
    if (status)
        external_report(trainer, &why);
    external_leave(external);
    return status ? EXTERNAL_OVER : EXTERNAL_DONE;
}

/* The contribution of a step without rows is that of its tensors. */
enum status external_flush_rows(struct external *external,
                                struct trainer *trainer, struct failure *why) {
    struct external_tables *all = external->tables;
    enum contribution kind = external->last_kind;
    if (!all)
        return STATUS_OK;
    struct row_batch *batch = NULL;
    pthread_mutex_lock(&external->mutex);
    enum status status = open_steps(external, trainer, why);
    if (!status)
        status = table_steps_sum(&all->steps, &batch, why);
    pthread_mutex_unlock(&external->mutex);
    if (kind == CONTRIBUTION_FULL && !batch)
        kind = CONTRIBUTION_ZERO;
    if (kind == CONTRIBUTION_ZERO && batch)
        kind = CONTRIBUTION_FULL;
    if (status ||
        !exchange_push_rows(trainer->exchange, trainer->clock + 1, kind,
                            kind == CONTRIBUTION_FULL ? batch : NULL))
        return status;
    pthread_mutex_lock(&external->mutex);
    table_steps_sent(&all->steps);
    all->has_pushed = true;
    pthread_mutex_unlock(&external->mutex);
    if (kind != CONTRIBUTION_FULL)
        return STATUS_OK;
    pthread_mutex_lock(&trainer->mutex);
    trainer->progress.rows += batch->num_rows;
    trainer->progress.row_bytes += exchange_row_bytes(trainer->exchange, batch);
    pthread_mutex_unlock(&trainer->mutex);
    return STATUS_OK;
}

bool external_settle_rows(struct external *external, struct trainer *trainer,
                          int64_t until) {
    return !external->tables || !external->tables->has_pushed ||
           exchange_wait_pushed(trainer->exchange, until);
}
