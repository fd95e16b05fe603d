/* SPDX-License-Identifier: Apache-2.0 */
/* Ids are made unique by a hash table, then distributed to their partitions and
 * sorted there, by table and id. */
#include "worker/exchange/client/row_batch.h"

#include "proto/net/messages/message.h"
#include "proto/tensor/row_keys.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_ROOM = 1024 };
enum { GROUP = 32 }; /* ids that are looked for together */

/* A row's key, so that its row needs not be read; free if it is of another fill
 * than the index. */
struct entry {
    uint64_t id;
    uint32_t row;
    uint16_t table, fill;
};

struct row_batch_row {
    uint64_t id;
    uint32_t at;           /* where its floats begin */
    uint16_t table, order; /* ORDER: of tables, by stack */
};

struct row_batch_index {
    const struct layout *layout;
    struct entry *entries;      /* [room] */
    struct row_batch_row *rows; /* [room], in the order in which they came */
    uint32_t *places;      /* [room]: of each its partition, then its floats */
    uint32_t *counts;      /* [num_partitions]: rows, then the last one's end */
    struct row_keys *keys; /* [num_stacks] */
    uint32_t num_stacks;
    size_t room;          /* a power of two */
    uint16_t fill;        /* the number of the present one */
    uint16_t order;       /* of the table that was added last */
    bool sorted_by_table; /* the rows, as they came */
};

static enum status row_batch_no_memory(struct failure *why) {
    return status_fail(why, FAILURE_NO_MEMORY,
                       "no memory for the rows of a batch");
}

enum status row_batch_index_open(struct row_batch_index **out,
                                 const struct layout *layout,
                                 struct failure *why) {
    struct row_batch_index *index = calloc(1, sizeof *index);
    *out = index;
    if (!index)
        return row_batch_no_memory(why);
    index->layout = layout;
    index->num_stacks = layout->num_stacks;
    index->counts = calloc(layout->num_partitions + 1, sizeof *index->counts);
    index->keys = calloc(layout->num_stacks + 1, sizeof *index->keys);
    if (index->counts && index->keys)
        return STATUS_OK;
    row_batch_index_close(out);
    return row_batch_no_memory(why);
}

void row_batch_index_close(struct row_batch_index **where) {
    struct row_batch_index *index = *where;
    *where = NULL;
    if (!index)
        return;
    for (uint32_t s = 0; index->keys && s < index->num_stacks; s++)
        row_keys_free(&index->keys[s]);
    free(index->keys);
    free(index->entries);
    free(index->rows);
    free(index->places);
    free(index->counts);
    free(index);
}

enum status row_batch_open(struct row_batch *batch,
                           struct row_batch_index *index, struct failure *why) {
    uint32_t partitions = index->layout->num_partitions;
    *batch = (struct row_batch){.layout = index->layout, .index = index};
    batch->parts = calloc(partitions + 1, sizeof *batch->parts);
    return batch->parts ? STATUS_OK : row_batch_no_memory(why);
}

void row_batch_close(struct row_batch *batch) {
    free(batch->parts);
    free(batch->bytes);
    free(batch->weights);
    free(batch->gradients);
    free(batch->positions);
    free(batch->rows);
    *batch = (struct row_batch){0};
}

void row_batch_begin(struct row_batch *batch) {
    struct row_batch_index *index = batch->index;
    batch->num_added = batch->num_rows = batch->floats = 0;
    memset(index->counts, 0,
           batch->layout->num_partitions * sizeof *index->counts);
    index->order = 0;
    index->sorted_by_table = true;
    if (++index->fill)
        return;
    index->fill = 1;
    if (index->room)
        memset(index->entries, 0, index->room * sizeof *index->entries);
}

bool row_batch_grow(void **memory, size_t *room, size_t wanted, size_t size) {
    size_t more = *room ? *room : FIRST_ROOM;
    if (wanted <= *room)
        return true;
    while (more < wanted)
        more *= 2;
    void *grown = realloc(*memory, more * size);
    if (!grown)
        return false;
    *memory = grown;
    *room = more;
    return true;
}

/* Where the row of TABLE's ID is in the index, or the free entry for it. */
static struct entry *find_in_index(const struct row_batch_index *index,
                                   uint32_t table, uint64_t id, uint64_t hash) {
    size_t mask = index->room - 1;
    for (size_t at = hash & mask;; at = (at + 1) & mask) {
        struct entry *entry = &index->entries[at];
        if (entry->fill != index->fill ||
            (entry->id == id && entry->table == table))
            return entry;
    }
}

/* How many rows there may be: a quarter of the index stays free. */
static size_t most_in_index(const struct row_batch_index *index) {
    return index->room / 4 * 3;
}

/* Room for GROUP more rows than the COUNT there are. */
static bool grow_index(struct row_batch_index *index, size_t count) {
    size_t room = index->room, room_places = room;
    if (!row_batch_grow((void **)&index->rows, &room,
                        (count + GROUP) * 4 / 3 + 1, sizeof *index->rows) ||
        !row_batch_grow((void **)&index->places, &room_places, room,
                        sizeof *index->places))
        return false;
    struct entry *entries = calloc(room, sizeof *entries);
    if (!entries)
        return false;
    free(index->entries);
    index->entries = entries;
    index->room = room;
    for (size_t r = 0; r < count; r++) {
        const struct row_batch_row *row = &index->rows[r];
        *find_in_index(index, row->table, row->id,
                       layout_row_hash(row->table, row->id)) =
            (struct entry){row->id, (uint32_t)r, row->table, index->fill};
    }
    return true;
}

/* The place of TABLE among all, by stack and then number. */
static uint16_t table_order(const struct layout *layout, uint32_t table) {
    uint32_t place = layout->first_stacked[layout->tables[table].stack];
    while (layout->stacked[place] != table)
        place++;
    return (uint16_t)place;
}

static void note_row(struct row_batch *batch, struct entry *entry,
                     struct row_batch_row row, uint64_t hash) {
    struct row_batch_index *index = batch->index;
    uint32_t number = (uint32_t)batch->num_rows++;
    uint32_t partition = layout_partition(batch->layout, hash);
    *entry = (struct entry){row.id, number, row.table, index->fill};
    index->rows[number] = row;
    index->places[number] = partition;
    index->counts[partition]++;
}

/* COUNT ids, at most GROUP, for which there is room. */
static void index_group(struct row_batch *batch, uint32_t table, uint16_t order,
                        const uint64_t *ids, size_t count) {
    const struct row_batch_index *index = batch->index;
    uint32_t *positions = batch->positions + batch->num_added;
    uint64_t hashes[GROUP];
    for (size_t i = 0; i < count; i++) {
        hashes[i] = layout_row_hash(table, ids[i]);
        __builtin_prefetch(&index->entries[hashes[i] & (index->room - 1)]);
    }
    for (size_t i = 0; i < count; i++) {
        struct entry *entry = find_in_index(index, table, ids[i], hashes[i]);
        if (entry->fill != index->fill)
            note_row(batch, entry,
                     (struct row_batch_row){ids[i], (uint32_t)batch->num_rows,
                                            (uint16_t)table, order},
                     hashes[i]);
        positions[i] = entry->row;
    }
    batch->num_added += count;
}

enum status row_batch_add(struct row_batch *batch, uint32_t table,
                          const uint64_t *ids, size_t count,
                          struct failure *why) {
    uint16_t order = table_order(batch->layout, table);
    if (!count)
        return STATUS_OK;
    if (!row_batch_grow((void **)&batch->positions, &batch->room_added,
                        batch->num_added + count, sizeof *batch->positions))
        return row_batch_no_memory(why);
    batch->index->sorted_by_table &= batch->index->order <= order;
    batch->index->order = order;
    for (size_t first = 0; first < count; first += GROUP) {
        size_t group = count - first < GROUP ? count - first : GROUP;
        if (batch->num_rows + group > most_in_index(batch->index) &&
            !grow_index(batch->index, batch->num_rows))
            return row_batch_no_memory(why);
        index_group(batch, table, order, ids + first, group);
    }
    return STATUS_OK;
}

/* What rows are sorted by. */
static inline uint64_t sort_key(const struct row_batch_row *row,
                                bool by_table) {
    return by_table ? row->order : row->id;
}

static inline size_t sorts_before(const struct row_batch_row *a,
                                  const struct row_batch_row *b,
                                  bool by_table) {
    return sort_key(a, by_table) < sort_key(b, by_table);
}

/* Up to 4, each at the number of those before it. */
static void sort_few(const struct row_batch_row *rows, size_t count,
                     struct row_batch_row *to, bool by_table) {
    struct row_batch_row few[4];
    size_t places[4] = {0};
    memcpy(few, rows, count * sizeof *few);
    for (size_t j = 1; j < count; j++)
        for (size_t i = 0; i < j; i++) {
            size_t before = sorts_before(&few[j], &few[i], by_table);
            places[i] += before;
            places[j] += 1 - before;
        }
    for (size_t i = 0; i < count; i++)
        to[places[i]] = few[i];
}

/* A branch would be wrong every other time. */
static inline size_t choose_place(size_t first, size_t second,
                                  size_t is_second) {
    return first ^ ((first ^ second) & -is_second);
}

/* Merges the sorted halves of FROM [COUNT] into TO, from both ends at once, so
 * that two chains of comparisons run side by side; in COUNT / 2 steps none
 * leaves its half. */
static void merge_halves(const struct row_batch_row *from, size_t count,
                         struct row_batch_row *to, bool by_table) {
    size_t half = count / 2, low = 0, high = half;
    size_t low_end = half - 1, high_end = count - 1;
    for (size_t i = 0; i < half; i++) {
        size_t is_high = sorts_before(&from[high], &from[low], by_table);
        size_t is_low = sorts_before(&from[high_end], &from[low_end], by_table);
        to[i] = from[choose_place(low, high, is_high)];
        to[count - 1 - i] = from[choose_place(high_end, low_end, is_low)];
        high += is_high;
        low += 1 - is_high;
        low_end -= is_low;
        high_end -= 1 - is_low;
    }
    if (count % 2)
        to[half] = from[high <= high_end ? high : low];
}

/* Sorts ROWS [COUNT], to SPARE if TO_SPARE; both are used. */
static void merge_sort(struct row_batch_row *rows, struct row_batch_row *spare,
                       size_t count, bool by_table, bool to_spare) {
    size_t half = count / 2;
    if (count <= 4) {
        sort_few(rows, count, to_spare ? spare : rows, by_table);
        return;
    }
    merge_sort(rows, spare, half, by_table, !to_spare);
    merge_sort(rows + half, spare + half, count - half, by_table, !to_spare);
    merge_halves(to_spare ? rows : spare, count, to_spare ? spare : rows,
                 by_table);
}

/* Sorts the rows of a partition by table and id. */
static void sort_partition(struct row_batch_row *rows,
                           struct row_batch_row *spare, size_t count,
                           bool sorted_by_table) {
    if (!sorted_by_table)
        merge_sort(rows, spare, count, true, false);
    for (size_t first = 0, end = 0; first < count; first = end) {
        while (end < count && rows[end].order == rows[first].order)
            end++;
        merge_sort(rows + first, spare, end - first, false, false);
    }
}

/* Distributes the rows to their partitions, each with its number in `at`, and
 * sorts them there. */
static bool order_rows(struct row_batch *batch) {
    struct row_batch_index *index = batch->index;
    uint32_t first = 0, partitions = batch->layout->num_partitions;
    if (!row_batch_grow((void **)&batch->rows, &batch->room_rows,
                        batch->num_rows, sizeof *batch->rows))
        return false;
    for (uint32_t p = 0; p < partitions; p++) {
        uint32_t count = index->counts[p];
        index->counts[p] = first;
        first += count;
    }
    for (size_t r = 0; r < batch->num_rows; r++)
        batch->rows[index->counts[index->places[r]]++] = index->rows[r];
    first = 0;
    for (uint32_t p = 0; p < partitions; p++) {
        uint32_t end = index->counts[p];
        if (end > first)
            sort_partition(batch->rows + first, index->rows, end - first,
                           index->sorted_by_table);
        first = end;
    }
    return true;
}

/* Gives each sorted row its floats, and each added id the place of its row. */
static void place_rows(struct row_batch *batch) {
    uint32_t *places = batch->index->places;
    for (size_t r = 0; r < batch->num_rows; r++) {
        struct row_batch_row *row = &batch->rows[r];
        places[row->at] = (uint32_t)batch->floats;
        row->at = (uint32_t)batch->floats;
        batch->floats += batch->layout->tables[row->table].dim;
    }
    for (size_t i = 0; i < batch->num_added; i++)
        batch->positions[i] = places[batch->positions[i]];
}

static bool reserve_floats(struct row_batch *batch) {
    size_t bytes = (batch->floats * sizeof(float) + 63) / 64 * 64;
    if (batch->floats <= batch->room_floats)
        return true;
    free(batch->weights);
    free(batch->gradients);
    batch->weights = aligned_alloc(64, bytes);
    batch->gradients = aligned_alloc(64, bytes);
    batch->room_floats =
        batch->weights && batch->gradients ? bytes / sizeof(float) : 0;
    return batch->room_floats;
}

static enum status row_batch_too_large(const struct row_batch *batch,
                                       size_t rows, uint32_t floats,
                                       struct failure *why) {
    return status_fail(
        why, FAILURE_JOB_TOO_LARGE,
        "a batch has %zu rows of %zu floats in one of %u partitions, more "
        "than the %d MiB of a message: lower "
        "train_micro_batch_size_per_gpu, or dim",
        rows, floats / rows, batch->layout->num_partitions,
        MESSAGE_MAX_PAYLOAD >> 20);
}

/* Fills the lists of the index with the rows FIRST to END - 1. */
static bool list_part(struct row_batch *batch, size_t first, size_t end) {
    const struct layout *layout = batch->layout;
    struct row_keys *keys = batch->index->keys;
    for (uint32_t s = 0; s < layout->num_stacks; s++) {
        keys[s].count = 0;
        if (!row_keys_reserve(&keys[s], end - first))
            return false;
    }
    for (size_t r = first; r < end; r++) {
        const struct row_batch_row *row = &batch->rows[r];
        struct row_keys *list = &keys[layout->tables[row->table].stack];
        list->ids[list->count] = row->id;
        list->tables[list->count++] = row->table;
    }
    return true;
}

/* Writes the lists of PART, which has the rows FIRST to END - 1. */
static enum status write_part(struct row_batch *batch, size_t first, size_t end,
                              struct row_batch_part *part,
                              struct failure *why) {
    const struct layout *layout = batch->layout;
    const struct row_batch_row *last = &batch->rows[end - 1];
    const struct row_keys *keys = batch->index->keys;
    if (!list_part(batch, first, end) ||
        !row_batch_grow((void **)&batch->bytes, &batch->room_bytes,
                        batch->lists + row_keys_most_bytes(layout, keys), 1))
        return row_batch_no_memory(why);
    part->first_float = batch->rows[first].at;
    part->floats =
        last->at + layout->tables[last->table].dim - part->first_float;
    part->first_byte = batch->lists;
    part->bytes =
        (uint32_t)row_keys_write(layout, keys, batch->bytes + batch->lists);
    batch->lists += part->bytes;
    return part->bytes + part->floats * sizeof(float) > MESSAGE_MAX_PAYLOAD
               ? row_batch_too_large(batch, end - first, part->floats, why)
               : STATUS_OK;
}

static enum status write_parts(struct row_batch *batch, struct failure *why) {
    enum status status = STATUS_OK;
    uint32_t partitions = batch->layout->num_partitions, first = 0;
    memset(batch->parts, 0, partitions * sizeof *batch->parts);
    batch->lists = 0;
    for (uint32_t p = 0; !status && p < partitions; p++) {
        uint32_t end = batch->index->counts[p];
        if (end > first)
            status = write_part(batch, first, end, &batch->parts[p], why);
        first = end;
    }
    return status;
}

enum status row_batch_finish(struct row_batch *batch, struct failure *why) {
    if (!order_rows(batch))
        return row_batch_no_memory(why);
    place_rows(batch);
    if (!reserve_floats(batch))
        return row_batch_no_memory(why);
    return write_parts(batch, why);
}

void row_batch_clear_gradients(struct row_batch *batch) {
    if (batch->floats)
        memset(batch->gradients, 0, batch->floats * sizeof(float));
}

enum status row_batch_add_rows(struct row_batch *batch,
                               const struct row_batch *from,
                               struct failure *why) {
    enum status status = STATUS_OK;
    for (size_t r = 0; !status && r < from->num_rows; r++)
        status = row_batch_add(batch, from->rows[r].table, &from->rows[r].id, 1,
                               why);
    return status;
}

size_t row_batch_add_gradients(struct row_batch *batch, size_t first,
                               const struct row_batch *from) {
    for (size_t r = 0; r < from->num_rows; r++) {
        const struct row_batch_row *row = &from->rows[r];
        float *to = batch->gradients + batch->positions[first + r];
        for (uint32_t d = 0; d < batch->layout->tables[row->table].dim; d++)
            to[d] += from->gradients[row->at + d];
    }
    return first + from->num_rows;
}
