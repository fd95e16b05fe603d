/* SPDX-License-Identifier: Apache-2.0 */
/* Pages have rows in the order in which they came. Before writing, an index of
 * one stack of one partition is sorted, not the rows. In sorted values a reader
 * finds a row without an index, and it merges partitions by id. */
#include "proto/store/shard_rows.h"

#include "proto/store/snapshots.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((uint64_t)LAYOUT_MAX_PARAMETERS <= SHARD_ROWS &&
                   (uint64_t)LAYOUT_MAX_PARTITIONS <= SHARD_ROWS,
               "keys of parameters and partitions coincide");
_Static_assert((int)LAYOUT_MAX_TABLES <= (int)SHARD_ROW,
               "a stack's slot is that of the ledger's row");

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

static const struct row *row_at(const struct snapshots_rows *rows,
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

static struct sorted_row *sort_rows(const struct layout *layout,
                                    const struct snapshots_rows *rows,
                                    struct shard_rows_count *counts) {
    struct sorted_row *sorted =
        malloc(((size_t)rows->rows + 1) * sizeof *sorted);
    if (!sorted)
        return NULL;
    for (uint32_t r = 0; r < rows->rows; r++) {
        const struct row *row = row_at(rows, r);
        sorted[r] = (struct sorted_row){row->id, r, row->table};
        count_row(layout, row, counts);
    }
    qsort(sorted, rows->rows, sizeof *sorted, compare_sorted);
    return sorted;
}

/* The values of one stack; the last has fewer rows than fit. */
static enum status put_values(struct shard_writer *writer, struct shard_key key,
                              const struct snapshots_rows *rows,
                              const struct sorted_row *sorted, char *value,
                              struct failure *why) {
    uint32_t full = rows_per_value(rows->row_bytes), count = full;
    enum status status = STATUS_OK;
    for (uint32_t r = 0; count == full && !status; r += count, key.offset++) {
        count = rows->rows - r < full ? rows->rows - r : full;
        for (uint32_t i = 0; i < count; i++)
            memcpy(value + i * rows->row_bytes,
                   row_at(rows, sorted[r + i].number), rows->row_bytes);
        status =
            shard_writer_put(writer, key, value, count * rows->row_bytes, why);
    }
    return status;
}

static enum status write_stack(struct shard_writer *writer,
                               const struct layout *layout,
                               struct shard_key key,
                               const struct snapshots_rows *rows,
                               struct shard_rows_count *counts,
                               struct failure *why) {
    uint64_t entries = rows->rows / rows_per_value(rows->row_bytes) + 1;
    enum status status = shard_writer_expect(
        writer, rows->rows * (uint64_t)rows->row_bytes, entries, why);
    if (status)
        return status;
    struct sorted_row *sorted = sort_rows(layout, rows, counts);
    char *value = malloc(rows_per_value(rows->row_bytes) * rows->row_bytes);
    if (sorted && value)
        status = put_values(writer, key, rows, sorted, value, why);
    else
        status = status_fail(
            why, FAILURE_TOO_LITTLE_MEMORY,
            "no memory to sort %" PRIu32 " rows of a table by id", rows->rows);
    free(sorted);
    free(value);
    return status;
}

enum status shard_rows_write(struct shard_writer *writer,
                             const struct layout *layout, uint32_t partition,
                             const struct snapshots_rows *rows,
                             struct shard_rows_count *counts,
                             struct failure *why) {
    struct shard_key key = {.parameter = SHARD_ROWS | partition};
    enum status status = STATUS_OK;
    for (; key.slot < layout->num_stacks && !status; key.slot++)
        status = write_stack(writer, layout, key, &rows[key.slot], counts, why);
    return status;
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
    struct shard_key name = {.parameter = SHARD_ROWS | key->partition,
                             .slot = (uint16_t)key->stack};
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
