/* SPDX-License-Identifier: Apache-2.0 */
/* Pages have rows in the order in which they came. Before writing, an index of
 * one stack of one partition is sorted, not the rows. In sorted values a reader
 * finds a row without an index, and it merges partitions by id, and a delta
 * with its base.
 *
 * A row has the number of the update that touched it last, so a delta needs no
 * list of what changed. A row that was removed and came again was touched since
 * and is among those changed. */
#include "core/store/shard_rows.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((uint64_t)LAYOUT_MAX_PARAMETERS <= SHARD_ROWS &&
                   (uint64_t)LAYOUT_MAX_PARTITIONS <= SHARD_ROWS,
               "keys of parameters and partitions coincide");
_Static_assert((int)LAYOUT_MAX_TABLES <= (int)SHARD_REMOVED &&
                   (int)SHARD_REMOVED + (int)LAYOUT_MAX_TABLES <=
                       (int)SHARD_SINCE,
               "slots of stacks and others coincide");

/* A row and where it is. */
struct sorted_row {
    uint64_t id;
    uint32_t number;
    uint16_t table;
};

static uint32_t rows_per_value(size_t row_bytes) {
    size_t rows = SHARD_ROWS_VALUE_BYTES / row_bytes;
    return rows ? (uint32_t)rows : 1;
}

static int compare_ids(uint32_t t, uint64_t id, uint32_t other_t,
                       uint64_t other) {
    if (t != other_t)
        return t < other_t ? -1 : 1;
    return (id > other) - (id < other);
}

static int compare_sorted(const void *left, const void *right) {
    const struct sorted_row *l = left, *r = right;
    return compare_ids(l->table, l->id, r->table, r->id);
}

static const struct row *row_at(const struct shard_rows_source *rows,
                                uint32_t number) {
    const char *page = buffer_data(rows->pages[number / rows->page_rows]);
    return (const struct row *)(page +
                                number % rows->page_rows * rows->row_bytes);
}

static void count_row(const struct layout *layout, const struct row *row,
                      struct shard_rows_count *counts) {
    counts[row->table].rows++;
    counts[row->table].admitted +=
        row->count >= layout->tables[row->table].admit;
}

/* Rows of a stack, sorted. */
struct sorted_rows {
    struct sorted_row *rows;
    uint32_t count;
};

/* Numbers of updates are compared within 2^31 of each other. */
static int32_t updates_after(const struct row *row, uint64_t since) {
    return (int32_t)(row->touched - (uint32_t)since);
}

/* Those that are to be written; all are counted. */
static bool sort_rows(const struct layout *layout,
                      const struct shard_rows_source *rows,
                      struct shard_rows_count *counts,
                      struct sorted_rows *out) {
    out->rows = malloc(((size_t)rows->rows + 1) * sizeof *out->rows);
    out->count = 0;
    if (!out->rows)
        return false;
    for (uint32_t r = 0; r < rows->rows; r++) {
        const struct row *row = row_at(rows, r);
        count_row(layout, row, counts);
        if (!rows->delta || updates_after(row, rows->since) > 0)
            out->rows[out->count++] =
                (struct sorted_row){row->id, r, row->table};
    }
    qsort(out->rows, out->count, sizeof *out->rows, compare_sorted);
    return true;
}

/* The rows that were removed, as if they were a stack of rows without floats.
 */
static struct shard_rows_source removed_rows(
    const struct shard_rows_source *rows) {
    return (struct shard_rows_source){.pages = &rows->removed,
                                      .num_pages = 1,
                                      .rows = rows->num_removed,
                                      .page_rows = UINT32_MAX,
                                      .row_bytes = sizeof(struct row)};
}

/* Those that have not come again, so are not among CHANGED; each once. */
static bool sort_removed(const struct shard_rows_source *removed,
                         uint64_t since, const struct sorted_rows *changed,
                         struct sorted_rows *out) {
    uint32_t count = 0, c = 0;
    out->rows = malloc(((size_t)removed->rows + 1) * sizeof *out->rows);
    out->count = 0;
    if (!out->rows)
        return false;
    for (uint32_t r = 0; r < removed->rows; r++) {
        const struct row *row = row_at(removed, r);
        if (updates_after(row, since) >= 0)
            out->rows[count++] = (struct sorted_row){row->id, r, row->table};
    }
    qsort(out->rows, count, sizeof *out->rows, compare_sorted);
    for (uint32_t r = 0; r < count; r++) {
        const struct sorted_row *row = &out->rows[r];
        while (c < changed->count && compare_sorted(&changed->rows[c], row) < 0)
            c++;
        bool is_there =
            c < changed->count && !compare_sorted(&changed->rows[c], row);
        bool is_twice =
            out->count && !compare_sorted(&out->rows[out->count - 1], row);
        if (!is_there && !is_twice)
            out->rows[out->count++] = *row;
    }
    return true;
}

/* The values of one list; the last has fewer rows than fit. */
static enum status put_values(struct shard_writer *writer, struct shard_key key,
                              const struct shard_rows_source *rows,
                              const struct sorted_rows *sorted, char *value,
                              struct failure *why) {
    uint32_t full = rows_per_value(rows->row_bytes), count = full;
    enum status status = STATUS_OK;
    for (uint32_t r = 0; count == full && !status; r += count, key.offset++) {
        count = sorted->count - r < full ? sorted->count - r : full;
        for (uint32_t i = 0; i < count; i++)
            memcpy(value + i * rows->row_bytes,
                   row_at(rows, sorted->rows[r + i].number), rows->row_bytes);
        status =
            shard_writer_put(writer, key, value, count * rows->row_bytes, why);
    }
    return status;
}

static enum status shard_rows_no_memory(const struct shard_rows_source *rows,
                                        struct failure *why) {
    return status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                       "no memory to sort %" PRIu32 " rows of a table by id",
                       rows->rows);
}

static enum status write_list(struct shard_writer *writer, struct shard_key key,
                              const struct shard_rows_source *rows,
                              const struct sorted_rows *sorted,
                              struct failure *why) {
    uint32_t full = rows_per_value(rows->row_bytes);
    enum status status =
        shard_writer_expect(writer, sorted->count * (uint64_t)rows->row_bytes,
                            sorted->count / full + 1, why);
    if (status)
        return status;
    char *value = malloc(full * rows->row_bytes);
    status = value ? put_values(writer, key, rows, sorted, value, why)
                   : shard_rows_no_memory(rows, why);
    free(value);
    return status;
}

static enum status write_removed(struct shard_writer *writer,
                                 struct shard_key key,
                                 const struct shard_rows_source *rows,
                                 const struct sorted_rows *changed,
                                 struct failure *why) {
    struct shard_rows_source removed = removed_rows(rows);
    struct sorted_rows sorted;
    enum status status = STATUS_OK;
    key.slot |= SHARD_REMOVED;
    if (!sort_removed(&removed, rows->since, changed, &sorted))
        status = shard_rows_no_memory(&removed, why);
    else if (sorted.count)
        status = write_list(writer, key, &removed, &sorted, why);
    free(sorted.rows);
    return status;
}

static enum status write_stack(struct shard_writer *writer,
                               const struct layout *layout,
                               struct shard_key key,
                               const struct shard_rows_source *rows,
                               struct shard_rows_count *counts,
                               struct failure *why) {
    struct sorted_rows sorted;
    enum status status = sort_rows(layout, rows, counts, &sorted)
                             ? write_list(writer, key, rows, &sorted, why)
                             : shard_rows_no_memory(rows, why);
    if (!status && rows->delta)
        status = write_removed(writer, key, rows, &sorted, why);
    free(sorted.rows);
    return status;
}

enum status shard_rows_write(struct shard_writer *writer,
                             const struct layout *layout, uint32_t partition,
                             const struct shard_rows_source *rows,
                             struct shard_rows_count *counts,
                             struct failure *why) {
    struct shard_key key = {.parameter = SHARD_ROWS | partition};
    enum status status = STATUS_OK;
    for (; key.slot < layout->num_stacks && !status; key.slot++)
        status = write_stack(writer, layout, key, &rows[key.slot], counts, why);
    if (status || !rows->delta)
        return status;
    key.slot = SHARD_SINCE;
    status = shard_writer_expect(writer, sizeof rows->since, 1, why);
    return status ? status
                  : shard_writer_put(writer, key, &rows->since,
                                     sizeof rows->since, why);
}

static enum status report_damage(const struct shard_reader *reader,
                                 const struct shard_rows_key *key, size_t value,
                                 const char *wrong, struct failure *why) {
    return status_fail(
        why, FAILURE_CHECKPOINT_DAMAGED,
        "%s: partition %" PRIu32 ", stack %" PRIu32 ", value %zu: %s",
        shard_reader_path(reader), key->partition, key->stack, value, wrong);
}

/* What is wrong with ROW, which follows BEFORE (NULL: none does); NULL:
 * nothing. */
static const char *row_problem(const struct shard_rows_key *key,
                               const struct row *row,
                               const struct row *before) {
    const struct layout *layout = key->layout;
    if (row->table >= layout->num_tables ||
        layout->tables[row->table].stack != key->stack)
        return "a row of no table of this stack";
    if (row->count > layout->tables[row->table].admit)
        return "a row with more pushes than admit it";
    if (layout_partition(layout, layout_row_hash(row->table, row->id)) !=
        key->partition)
        return "a row of another partition";
    if (before &&
        compare_ids(before->table, before->id, row->table, row->id) >= 0)
        return "its rows do not ascend";
    return NULL;
}

/* *BEFORE is the last row of the value before, then this one's. */
static const char *value_problem(const struct shard_rows_key *key,
                                 const struct shard_rows_value *value,
                                 const struct row **before) {
    const char *at = value->rows, *wrong = NULL;
    for (uint32_t r = 0; r < value->count && !wrong; r++) {
        const struct row *row = (const struct row *)at;
        wrong = row_problem(key, row, *before);
        *before = row;
        at += key->row_bytes;
    }
    return wrong;
}

/* Appends a value; one inside a page of LMDB's is not aligned. That is one with
 * few rows, so the last. */
static bool append_value(struct shard_rows *rows, const void *bytes,
                         size_t size) {
    if ((rows->count & (rows->count - 1)) == 0) {
        size_t room = rows->count ? 2 * rows->count : 1;
        struct shard_rows_value *more =
            realloc(rows->values, room * sizeof *more);
        if (!more)
            return false;
        rows->values = more;
    }
    if ((uintptr_t)bytes % 8) {
        rows->copy = malloc(size + 1);
        if (!rows->copy)
            return false;
        memcpy(rows->copy, bytes, size);
        bytes = rows->copy;
    }
    rows->values[rows->count++] =
        (struct shard_rows_value){bytes, (uint32_t)(size / rows->row_bytes)};
    return true;
}

enum status shard_rows_read(struct shard_rows *out, struct shard_reader *reader,
                            const struct shard_rows_key *key,
                            struct failure *why) {
    struct shard_key name = {
        .parameter = SHARD_ROWS | key->partition,
        .slot = (uint16_t)(key->stack | (key->removed ? SHARD_REMOVED : 0))};
    size_t full = rows_per_value(key->row_bytes) * key->row_bytes, bytes = full;
    const struct row *before = NULL;
    *out = (struct shard_rows){.row_bytes = key->row_bytes};
    for (; bytes == full; name.offset++) {
        const void *value;
        enum status status =
            shard_reader_get(reader, name, &value, &bytes, why);
        if (status)
            return status;
        if (bytes > full || bytes % key->row_bytes)
            return report_damage(reader, key, name.offset,
                                 "its size is not that of whole rows", why);
        if (!append_value(out, value, bytes))
            return status_fail(why, FAILURE_NO_MEMORY,
                               "no memory to read a checkpoint's rows");
        const char *wrong =
            value_problem(key, &out->values[out->count - 1], &before);
        if (wrong)
            return report_damage(reader, key, name.offset, wrong, why);
    }
    return STATUS_OK;
}

void shard_rows_clear(struct shard_rows *rows) {
    free(rows->values);
    free(rows->copy);
    *rows = (struct shard_rows){0};
}

/* Is the row at BYTES before table T's ID? */
static bool is_before(const void *bytes, uint32_t t, uint64_t id) {
    const struct row *row = bytes;
    return compare_ids(row->table, row->id, t, id) < 0;
}

struct shard_rows_place shard_rows_find(const struct shard_rows *rows,
                                        uint32_t t, uint64_t id) {
    size_t low = 0,
           high = rows->count; /* the first with a last row not before */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct shard_rows_value *value = &rows->values[middle];
        const char *at = value->rows;
        /* An empty value is the last one. */
        if (value->count &&
            is_before(at + (value->count - 1) * rows->row_bytes, t, id))
            low = middle + 1;
        else
            high = middle;
    }
    struct shard_rows_place place = {low, 0};
    uint32_t end = low < rows->count ? rows->values[low].count : 0;
    while (place.place < end) {
        uint32_t middle = place.place + (end - place.place) / 2;
        const char *at = rows->values[low].rows;
        if (is_before(at + middle * rows->row_bytes, t, id))
            place.place = middle + 1;
        else
            end = middle;
    }
    return place;
}

const struct row *shard_rows_next(const struct shard_rows *rows,
                                  struct shard_rows_place *place) {
    while (place->value < rows->count &&
           place->place == rows->values[place->value].count)
        *place = (struct shard_rows_place){place->value + 1, 0};
    if (place->value == rows->count)
        return NULL;
    const char *value = rows->values[place->value].rows;
    return (const struct row *)(value + place->place++ * rows->row_bytes);
}

static const struct row *next_of(const struct shard_rows *rows,
                                 struct shard_rows_place *place) {
    return rows ? shard_rows_next(rows, place) : NULL;
}

static struct shard_rows_place find_in(const struct shard_rows *rows,
                                       uint32_t t, uint64_t id) {
    return rows ? shard_rows_find(rows, t, id) : (struct shard_rows_place){0};
}

void shard_rows_seek(struct shard_rows_cursor *cursor,
                     const struct shard_rows_pair *pair, uint32_t t,
                     uint64_t id) {
    cursor->pair = *pair;
    cursor->place = find_in(pair->rows, t, id);
    cursor->removed_place = find_in(pair->removed, t, id);
    cursor->base_place = find_in(pair->base, t, id);
    cursor->row = next_of(pair->rows, &cursor->place);
    cursor->removed = next_of(pair->removed, &cursor->removed_place);
    cursor->base = next_of(pair->base, &cursor->base_place);
}

static int compare_rows(const struct row *left, const struct row *right) {
    return compare_ids(left->table, left->id, right->table, right->id);
}

/* Was the next row of the base removed? */
static bool is_removed(struct shard_rows_cursor *cursor) {
    while (cursor->removed && compare_rows(cursor->removed, cursor->base) < 0)
        cursor->removed = next_of(cursor->pair.removed, &cursor->removed_place);
    return cursor->removed && !compare_rows(cursor->removed, cursor->base);
}

const struct row *shard_rows_step(struct shard_rows_cursor *cursor) {
    while (true) {
        const struct row *row = cursor->row, *base = cursor->base;
        int order = row && base ? compare_rows(row, base) : base ? 1 : -1;
        bool hidden = order > 0 && is_removed(cursor);
        if (order >= 0)
            cursor->base = next_of(cursor->pair.base, &cursor->base_place);
        if (order <= 0)
            cursor->row = next_of(cursor->pair.rows, &cursor->place);
        if (order <= 0)
            return row;
        if (!hidden)
            return base;
    }
}
