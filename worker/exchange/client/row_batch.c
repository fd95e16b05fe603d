/* SPDX-License-Identifier: Apache-2.0 */
/* Ids are made unique by a hash table. Rows are then distributed by table, by
 * the highest bits of their ids and at last to their partitions, which leaves
 * little to sort there. */
#include "worker/exchange/client/row_batch.h"

#include "core/tensor/row_keys.h"
#include "proto/messages/message.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIRST_ROOM = 1024,
    GROUP = 32,         /* ids that are looked for together */
    MAX_BUCKETS = 4096, /* of ids with the same highest bits */
};
static_assert(FIRST_ROOM / 8 * 3 >= GROUP, "an index has room for a group");
#define FREE UINT32_MAX /* entry: the index is never full of rows */

struct row_batch_row {
    uint64_t id;
    uint32_t at; /* where its floats begin; until that is known, its number */
    uint16_t table, order; /* ORDER: of tables, by stack */
};

struct row_batch_index {
    const struct layout *layout;
    uint32_t *entries;          /* [room] */
    struct row_batch_row *rows; /* [most_indexed(room)], as they came, until
                                   they are ordered */
    uint32_t *places; /* [most_indexed(room)]: of each its partition, then its
                         floats */
    uint32_t *counts; /* [num_partitions]: rows, then the last one's end */
    uint32_t *ends;   /* of rows that are distributed: by table or id */
    struct row_keys *keys; /* [num_stacks] */
    uint32_t num_stacks;
    size_t room, size; /* powers of two: SIZE entries are in use */
    uint16_t order;    /* of the table that was added last */
    bool is_by_table;  /* the rows, as they came */
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
    index->ends =
        malloc((layout->num_tables + MAX_BUCKETS) * sizeof *index->ends);
    if (index->counts && index->keys && index->ends)
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
    free(index->ends);
    free(index);
}

enum status row_batch_open(struct row_batch *batch,
                           struct row_batch_index *index, struct failure *why) {
    uint32_t partitions = index->layout->num_partitions;
    *batch = (struct row_batch){.layout = index->layout, .index = index};
    batch->parts = calloc(partitions + 1, sizeof *batch->parts);
    return batch->parts ? STATUS_OK : row_batch_no_memory(why);
}

/* The lists of COUNT places, to BATCH's bytes, which have room then. */
static bool list_places(struct row_batch *batch, uint32_t table, uint64_t first,
                        uint32_t count) {
    const struct layout *layout = batch->layout;
    struct row_keys *keys = calloc(layout->num_stacks, sizeof *keys);
    struct row_keys *own = keys ? &keys[layout->tables[table].stack] : NULL;
    if (own && row_keys_reserve(own, count)) {
        for (own->count = 0; own->count < count; own->count++) {
            own->ids[own->count] = first + own->count;
            own->tables[own->count] = (uint16_t)table;
        }
        batch->bytes = malloc(row_keys_most_bytes(layout, keys));
        if (batch->bytes)
            batch->lists = row_keys_write(layout, keys, batch->bytes);
    }
    if (own)
        row_keys_free(own);
    free(keys);
    return batch->bytes;
}

/* All partitions have the same list. */
enum status row_batch_places(struct row_batch *batch,
                             const struct layout *layout, uint32_t table,
                             uint64_t first, uint32_t count,
                             struct failure *why) {
    uint32_t partitions = layout->num_partitions, floats = count * ROW_FLOATS;
    *batch = (struct row_batch){.layout = layout, .places = true};
    batch->parts = calloc(partitions + 1, sizeof *batch->parts);
    batch->weights = calloc((size_t)partitions * floats + 1, sizeof(float));
    if (!batch->parts || !batch->weights ||
        !list_places(batch, table, first, count)) {
        row_batch_close(batch);
        return row_batch_no_memory(why);
    }
    for (uint32_t p = 0; p < partitions; p++)
        batch->parts[p] =
            (struct row_batch_part){.bytes = (uint32_t)batch->lists,
                                    .first_float = p * floats,
                                    .floats = floats};
    return STATUS_OK;
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

/* How many rows an index of SIZE entries may have: most of it stays free, so
 * that most ids are in the first entry that they may have. */
static size_t most_indexed(size_t size) {
    return size / 8 * 3;
}

/* Entries for COUNT rows and a group more. */
static size_t index_size(size_t count) {
    size_t size = FIRST_ROOM;
    while (most_indexed(size) < count + GROUP)
        size *= 2;
    return size;
}

/* Uses SIZE entries, all free. */
static void clear_index(struct row_batch_index *index, size_t size) {
    index->size = size;
    if (size)
        memset(index->entries, 0xff, size * sizeof *index->entries);
}

void row_batch_begin(struct row_batch *batch) {
    struct row_batch_index *index = batch->index;
    size_t size = index_size(batch->num_rows); /* as many as the last time */
    clear_index(index, size < index->room ? size : index->room);
    batch->num_added = batch->num_rows = batch->floats = 0;
    memset(index->counts, 0,
           batch->layout->num_partitions * sizeof *index->counts);
    index->order = 0;
    index->is_by_table = true;
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

/* An entry is the row's number, in the bits of this mask, and above them a tag
 * of the id's hash, by which nearly every other id is passed over. */
static uint32_t index_mask(const struct row_batch_index *index) {
    return (uint32_t)index->size - 1;
}

static uint32_t tag_of(const struct row_batch_index *index, uint64_t hash) {
    return (uint32_t)(hash >> 24) & ~index_mask(index);
}

/* Where the row of TABLE's ID is in the index, or the free entry for it. */
static uint32_t *find_in_index(const struct row_batch_index *index,
                               uint32_t table, uint64_t id, uint64_t hash) {
    uint32_t mask = index_mask(index), tag = tag_of(index, hash);
    for (uint32_t at = (uint32_t)hash & mask;; at = (at + 1) & mask) {
        uint32_t *entry = &index->entries[at];
        if (*entry == FREE)
            return entry;
        if ((*entry & ~mask) != tag)
            continue;
        const struct row_batch_row *row = &index->rows[*entry & mask];
        if (row->id == id && row->table == table)
            return entry;
    }
}

/* Has memory for an index of SIZE entries. */
static bool reserve_index(struct row_batch_index *index, size_t size) {
    size_t rows = most_indexed(size);
    if (size <= index->room)
        return true;
    struct row_batch_row *more =
        realloc(index->rows, rows * sizeof *index->rows);
    index->rows = more ? more : index->rows;
    uint32_t *places =
        more ? realloc(index->places, rows * sizeof *places) : NULL;
    index->places = places ? places : index->places;
    uint32_t *entries =
        places ? realloc(index->entries, size * sizeof *entries) : NULL;
    index->entries = entries ? entries : index->entries;
    index->room = entries ? size : index->room;
    return entries;
}

/* Room for GROUP more rows than the COUNT there are. */
static bool grow_index(struct row_batch_index *index, size_t count) {
    size_t size = index_size(count);
    if (!reserve_index(index, size))
        return false;
    clear_index(index, size);
    for (size_t r = 0; r < count; r++) {
        const struct row_batch_row *row = &index->rows[r];
        uint64_t hash = layout_row_hash(row->table, row->id);
        *find_in_index(index, row->table, row->id, hash) =
            tag_of(index, hash) | (uint32_t)r;
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

/* The number of ROW's id with HASH, which is added if it is new. */
static uint32_t row_number(struct row_batch *batch, struct row_batch_row row,
                           uint64_t hash) {
    struct row_batch_index *index = batch->index;
    uint32_t *entry = find_in_index(index, row.table, row.id, hash);
    if (*entry == FREE) {
        uint32_t partition = layout_partition(batch->layout, hash);
        row.at = (uint32_t)batch->num_rows++;
        *entry = tag_of(index, hash) | row.at;
        index->rows[row.at] = row;
        index->places[row.at] = partition;
        index->counts[partition]++;
    }
    return *entry & index_mask(index);
}

/* COUNT ids, at most GROUP, for which there is room. Most are in the first
 * entry that they may have; the others, new ones among them, are listed and
 * looked for after that, so that no branch depends on which they are. */
static void index_group(struct row_batch *batch, uint32_t table, uint16_t order,
                        const uint64_t *ids, size_t count) {
    const struct row_batch_index *index = batch->index;
    assert(count <= GROUP &&
           batch->num_rows + count <= most_indexed(index->size));
    uint32_t *positions = batch->positions + batch->num_added;
    uint32_t mask = index_mask(index), others[GROUP], num_others = 0;
    uint64_t hashes[GROUP];
    for (size_t i = 0; i < count; i++) {
        hashes[i] = layout_row_hash(table, ids[i]);
        __builtin_prefetch(&index->entries[hashes[i] & mask]);
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t entry = index->entries[hashes[i] & mask];
        uint32_t number = entry & mask & -(uint32_t)(entry != FREE);
        const struct row_batch_row *row = &index->rows[number];
        positions[i] = number;
        others[num_others] = i;
        num_others +=
            (entry == FREE) | (row->id != ids[i]) | (row->table != table);
    }
    for (uint32_t o = 0; o < num_others; o++) {
        uint32_t i = others[o];
        positions[i] = row_number(
            batch,
            (struct row_batch_row){
                .id = ids[i], .table = (uint16_t)table, .order = order},
            hashes[i]);
    }
    batch->num_added += count;
}

enum status row_batch_add(struct row_batch *batch, uint32_t table,
                          const uint64_t *ids, size_t count,
                          struct failure *why) {
    assert(table < batch->layout->num_tables);
    uint16_t order = table_order(batch->layout, table);
    if (!count)
        return STATUS_OK;
    if (!row_batch_grow((void **)&batch->positions, &batch->room_added,
                        batch->num_added + count, sizeof *batch->positions))
        return row_batch_no_memory(why);
    batch->index->is_by_table &= batch->index->order <= order;
    batch->index->order = order;
    for (size_t first = 0; first < count; first += GROUP) {
        size_t group = count - first < GROUP ? count - first : GROUP;
        if (batch->num_rows + group > most_indexed(batch->index->size) &&
            !grow_index(batch->index, batch->num_rows))
            return row_batch_no_memory(why);
        index_group(batch, table, order, ids + first, group);
    }
    return STATUS_OK;
}

/* Rows are sorted by table, in the order of the stacks, and id. */
static inline size_t sorts_before(const struct row_batch_row *a,
                                  const struct row_batch_row *b) {
    return (a->order < b->order) | ((a->order == b->order) & (a->id < b->id));
}

/* Up to 4, each at the number of those before it. */
static void sort_few(const struct row_batch_row *rows, size_t count,
                     struct row_batch_row *to) {
    struct row_batch_row few[4];
    size_t places[4] = {0};
    memcpy(few, rows, count * sizeof *few);
    for (size_t j = 1; j < count; j++)
        for (size_t i = 0; i < j; i++) {
            size_t before = sorts_before(&few[j], &few[i]);
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
                         struct row_batch_row *to) {
    size_t half = count / 2, low = 0, high = half;
    size_t low_end = half - 1, high_end = count - 1;
    for (size_t i = 0; i < half; i++) {
        size_t is_high = sorts_before(&from[high], &from[low]);
        size_t is_low = sorts_before(&from[high_end], &from[low_end]);
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
                       size_t count, bool to_spare) {
    size_t half = count / 2;
    if (count <= 4) {
        sort_few(rows, count, to_spare ? spare : rows);
        return;
    }
    merge_sort(rows, spare, half, !to_spare);
    merge_sort(rows + half, spare + half, count - half, !to_spare);
    merge_halves(to_spare ? rows : spare, count, to_spare ? spare : rows);
}

/* Sorts ROWS [COUNT] if they are nearly sorted; false: they were not, and are
 * now in some other order. */
static bool insertion_sort(struct row_batch_row *rows, size_t count) {
    size_t moves = 0;
    for (size_t i = 1; i < count && moves <= 2 * count; i++) {
        struct row_batch_row row = rows[i];
        size_t to = i;
        for (; to && sorts_before(&row, &rows[to - 1]); to--)
            rows[to] = rows[to - 1];
        moves += i - to;
        rows[to] = row;
    }
    return moves <= 2 * count;
}

/* Distributes ROWS [COUNT] to TO by their tables, of which MASK + 1 are, or by
 * the MASK bits of their ids above SHIFT; equal ones stay in order. */
static inline void distribute(const struct row_batch_row *rows, size_t count,
                              uint32_t *ends, struct row_batch_row *to,
                              bool by_table, unsigned shift, uint32_t mask) {
    uint32_t first = 0;
    memset(ends, 0, ((size_t)mask + 1) * sizeof *ends);
    for (size_t r = 0; r < count; r++)
        ends[by_table ? rows[r].order : rows[r].id >> shift & mask]++;
    for (uint32_t b = 0; b <= mask; b++) {
        uint32_t more = ends[b];
        ends[b] = first;
        first += more;
    }
    for (size_t r = 0; r < count; r++)
        to[ends[by_table ? rows[r].order : rows[r].id >> shift & mask]++] =
            rows[r];
}

/* Distributes ROWS [COUNT], of one table, by the highest bits in which their
 * ids differ: by so many that few of a partition have the same, if the ids lie
 * evenly and are not too many. */
static void distribute_by_id(const struct row_batch_row *rows, size_t count,
                             uint32_t partitions, uint32_t *ends,
                             struct row_batch_row *to) {
    uint64_t buckets = 2, differ = 0;
    unsigned shift = 0;
    while (buckets < MAX_BUCKETS && buckets * partitions < count * 8)
        buckets *= 2;
    for (size_t r = 1; r < count; r++)
        differ |= rows[r].id ^ rows[0].id;
    while (differ >> shift >= buckets) /* at most 62 times: there are 2 */
        shift++;
    distribute(rows, count, ends, to, false, shift, (uint32_t)buckets - 1);
}

static void distribute_tables_by_id(const struct row_batch *batch,
                                    const struct row_batch_row *rows,
                                    struct row_batch_row *to) {
    for (size_t first = 0, end = 0; first < batch->num_rows; first = end) {
        while (end < batch->num_rows && rows[end].order == rows[first].order)
            end++;
        distribute_by_id(rows + first, end - first,
                         batch->layout->num_partitions, batch->index->ends,
                         to + first);
    }
}

static void distribute_to_partitions(const struct row_batch *batch,
                                     const struct row_batch_row *rows,
                                     struct row_batch_row *to) {
    const struct row_batch_index *index = batch->index;
    uint32_t first = 0;
    for (uint32_t p = 0; p < batch->layout->num_partitions; p++) {
        uint32_t count = index->counts[p];
        index->counts[p] = first;
        first += count;
    }
    assert(first == batch->num_rows);
    for (size_t r = 0; r < batch->num_rows; r++)
        to[index->counts[index->places[rows[r].at]]++] = rows[r];
}

/* Orders the rows by partition, table and id; `at` is still their number. */
static bool order_rows(struct row_batch *batch) {
    struct row_batch_index *index = batch->index;
    uint32_t first = 0;
    if (!row_batch_grow((void **)&batch->rows, &batch->room_rows,
                        batch->num_rows, sizeof *batch->rows))
        return false;
    struct row_batch_row *rows = index->rows, *spare = batch->rows;
    if (!index->is_by_table) {
        distribute(rows, batch->num_rows, index->ends, spare, true, 0,
                   batch->layout->num_tables - 1);
        rows = batch->rows;
        spare = index->rows;
    }
    distribute_tables_by_id(batch, rows, spare);
    distribute_to_partitions(batch, spare, rows);
    for (uint32_t p = 0; p < batch->layout->num_partitions; p++) {
        uint32_t count = index->counts[p] - first;
        if (count > 1 && !insertion_sort(rows + first, count))
            merge_sort(rows + first, spare, count, false);
        first += count;
    }
    if (batch->num_rows && rows != batch->rows)
        memcpy(batch->rows, rows, batch->num_rows * sizeof *rows);
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
    assert(first < end && end <= batch->num_rows);
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

/* Behind the last row of partition P, whose rows begin at FIRST. */
static size_t part_end(const struct row_batch *batch, uint32_t p,
                       size_t first) {
    const struct row_batch_part *part = &batch->parts[p];
    uint32_t end = part->bytes ? part->first_float + part->floats : 0;
    while (first < batch->num_rows && batch->rows[first].at < end)
        first++;
    return first;
}

/* Both have their rows in one order, partition by partition. */
void row_batch_copy_rows(struct row_batch *batch,
                         const struct row_batch *from) {
    size_t to = 0, next = 0;
    for (uint32_t p = 0; p < batch->layout->num_partitions; p++) {
        size_t to_end = part_end(batch, p, to), end = part_end(from, p, next);
        while (to < to_end && next < end) {
            const struct row_batch_row *row = &batch->rows[to];
            const struct row_batch_row *other = &from->rows[next];
            bool before = sorts_before(row, other);
            bool after = sorts_before(other, row);
            if (!before && !after)
                memcpy(batch->weights + row->at, from->gradients + other->at,
                       batch->layout->tables[row->table].dim * sizeof(float));
            to += !after;
            next += !before;
        }
        to = to_end;
        next = end;
    }
}

size_t row_batch_add_gradients(struct row_batch *batch, size_t first,
                               const struct row_batch *from) {
    assert(first + from->num_rows <= batch->num_added);
    for (size_t r = 0; r < from->num_rows; r++) {
        const struct row_batch_row *row = &from->rows[r];
        float *to = batch->gradients + batch->positions[first + r];
        for (uint32_t d = 0; d < batch->layout->tables[row->table].dim; d++)
            to[d] += from->gradients[row->at + d];
    }
    return first + from->num_rows;
}
