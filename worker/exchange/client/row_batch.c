/* SPDX-License-Identifier: Apache-2.0 */
/* Ids are made unique by a hash table, then sorted by radix: by id, by table,
 * and by partition, each pass in linear time and stable. */
#include "worker/exchange/client/row_batch.h"

#include "proto/net/messages/message.h"
#include "proto/tensor/row_keys.h"

#include <stdlib.h>
#include <string.h>

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS, FIRST_ROOM = 1024 };
enum { GROUP = 32 }; /* ids that are looked for together */

/* Of the index: a row's key, so that its row needs not be read. */
struct row_batch_entry {
    uint64_t id;
    uint32_t row; /* 1 + number; 0: none */
    uint16_t table;
};

struct row_batch_row {
    uint64_t id;
    uint32_t partition;
    uint16_t table, order; /* ORDER: of tables, by stack */
    uint32_t at;           /* where its floats begin */
};

static enum status row_batch_no_memory(struct failure *why) {
    return status_fail(why, FAILURE_NO_MEMORY,
                       "no memory for the rows of a batch");
}

enum status row_batch_open(struct row_batch *batch, const struct layout *layout,
                           struct failure *why) {
    *batch = (struct row_batch){.layout = layout};
    batch->parts = calloc(layout->num_partitions + 1, sizeof *batch->parts);
    return batch->parts ? STATUS_OK : row_batch_no_memory(why);
}

void row_batch_close(struct row_batch *batch) {
    free(batch->parts);
    free(batch->bytes);
    free(batch->weights);
    free(batch->gradients);
    free(batch->positions);
    free(batch->rows);
    free(batch->sorted);
    free(batch->index);
    *batch = (struct row_batch){0};
}

void row_batch_begin(struct row_batch *batch) {
    batch->num_added = batch->num_rows = batch->floats = 0;
    if (batch->index)
        memset(batch->index, 0, batch->room_rows * sizeof *batch->index);
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
static struct row_batch_entry *find_index(const struct row_batch *batch,
                                          uint32_t table, uint64_t id,
                                          uint64_t hash) {
    size_t mask = batch->room_rows - 1;
    for (size_t at = hash & mask;; at = (at + 1) & mask) {
        struct row_batch_entry *entry = &batch->index[at];
        if (!entry->row || (entry->id == id && entry->table == table))
            return entry;
    }
}

/* How many rows there may be: a quarter of the index stays free. */
static size_t row_batch_most(const struct row_batch *batch) {
    return batch->room_rows / 4 * 3;
}

/* Room for GROUP more rows than there are. */
static bool grow_rows(struct row_batch *batch) {
    size_t room = batch->room_rows;
    if (!row_batch_grow((void **)&batch->rows, &room,
                        (batch->num_rows + GROUP) * 4 / 3 + 1,
                        sizeof *batch->rows))
        return false;
    struct row_batch_row *sorted =
        realloc(batch->sorted, room * sizeof *sorted);
    batch->sorted = sorted ? sorted : batch->sorted;
    struct row_batch_entry *index = calloc(room, sizeof *index);
    if (!sorted || !index) {
        free(index);
        return false;
    }
    free(batch->index);
    batch->index = index;
    batch->room_rows = room;
    for (size_t r = 0; r < batch->num_rows; r++) {
        const struct row_batch_row *row = &batch->rows[r];
        *find_index(batch, row->table, row->id,
                    layout_row_hash(row->table, row->id)) =
            (struct row_batch_entry){row->id, (uint32_t)r + 1, row->table};
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

/* COUNT ids, at most GROUP, for which there is room. */
static void note_group(struct row_batch *batch, uint32_t table, uint16_t order,
                       const uint64_t *ids, size_t count) {
    uint64_t hashes[GROUP];
    for (size_t i = 0; i < count; i++) {
        hashes[i] = layout_row_hash(table, ids[i]);
        __builtin_prefetch(&batch->index[hashes[i] & (batch->room_rows - 1)]);
    }
    for (size_t i = 0; i < count; i++) {
        struct row_batch_entry *entry =
            find_index(batch, table, ids[i], hashes[i]);
        if (!entry->row) {
            batch->rows[batch->num_rows++] = (struct row_batch_row){
                .id = ids[i],
                .partition = layout_partition(batch->layout, hashes[i]),
                .table = (uint16_t)table,
                .order = order};
            *entry = (struct row_batch_entry){ids[i], (uint32_t)batch->num_rows,
                                              (uint16_t)table};
        }
        batch->positions[batch->num_added++] = entry->row - 1;
    }
}

enum status row_batch_add(struct row_batch *batch, uint32_t table,
                          const uint64_t *ids, size_t count,
                          struct failure *why) {
    uint16_t order = table_order(batch->layout, table);
    if (!row_batch_grow((void **)&batch->positions, &batch->room_added,
                        batch->num_added + count, sizeof *batch->positions))
        return row_batch_no_memory(why);
    for (size_t first = 0; first < count; first += GROUP) {
        size_t group = count - first < GROUP ? count - first : GROUP;
        if (batch->num_rows + group > row_batch_most(batch) &&
            !grow_rows(batch))
            return row_batch_no_memory(why);
        note_group(batch, table, order, ids + first, group);
    }
    return STATUS_OK;
}

/* Digit D of a row's place: of its id, then of its table, then partition. */
enum { ID_DIGITS = (64 + DIGIT_BITS - 1) / DIGIT_BITS, TABLE_DIGITS = 2 };
enum { ALL_DIGITS = ID_DIGITS + TABLE_DIGITS + 2 };

static uint32_t digit(const struct row_batch_row *row, unsigned d) {
    if (d < ID_DIGITS)
        return (uint32_t)(row->id >> (d * DIGIT_BITS)) & (DIGITS - 1);
    if (d < ID_DIGITS + TABLE_DIGITS)
        return (uint32_t)row->order >> ((d - ID_DIGITS) * DIGIT_BITS) &
               (DIGITS - 1);
    return row->partition >> ((d - ID_DIGITS - TABLE_DIGITS) * DIGIT_BITS) &
           (DIGITS - 1);
}

/* One pass of a radix sort from FROM to TO. */
static void sort_by_digit(const struct row_batch_row *from,
                          struct row_batch_row *to, size_t count, unsigned d) {
    uint32_t places[DIGITS] = {0}, sum = 0;
    for (size_t i = 0; i < count; i++)
        places[digit(&from[i], d)]++;
    for (uint32_t v = 0; v < DIGITS; v++) {
        uint32_t here = places[v];
        places[v] = sum;
        sum += here;
    }
    for (size_t i = 0; i < count; i++)
        to[places[digit(&from[i], d)]++] = from[i];
}

/* The digits in which rows differ: bit d is digit d. */
static uint32_t differing_digits(const struct row_batch *batch) {
    struct row_batch_row differ = {0};
    uint32_t digits = 0;
    for (size_t r = 1; r < batch->num_rows; r++) {
        differ.id |= batch->rows[r].id ^ batch->rows[0].id;
        differ.order |= batch->rows[r].order ^ batch->rows[0].order;
        differ.partition |= batch->rows[r].partition ^ batch->rows[0].partition;
    }
    for (unsigned d = 0; d < ALL_DIGITS; d++)
        digits |= (uint32_t)(digit(&differ, d) > 0) << d;
    return digits;
}

/* Rows carry their number in `at` while they are sorted. */
static void order_rows(struct row_batch *batch) {
    uint32_t digits = differing_digits(batch);
    for (size_t r = 0; r < batch->num_rows; r++)
        batch->rows[r].at = (uint32_t)r;
    for (unsigned d = 0; d < ALL_DIGITS; d++) {
        struct row_batch_row *from = batch->rows;
        if (!(digits >> d & 1))
            continue;
        sort_by_digit(from, batch->sorted, batch->num_rows, d);
        batch->rows = batch->sorted;
        batch->sorted = from;
    }
}

/* Gives each sorted row its floats, and each added id the place of its row. The
 * index, which no one needs any more, has that by number. */
static void place_rows(struct row_batch *batch) {
    for (size_t r = 0; r < batch->num_rows; r++) {
        struct row_batch_row *row = &batch->rows[r];
        batch->index[row->at].row = (uint32_t)batch->floats;
        row->at = (uint32_t)batch->floats;
        batch->floats += batch->layout->tables[row->table].dim;
    }
    for (size_t i = 0; i < batch->num_added; i++)
        batch->positions[i] = batch->index[batch->positions[i]].row;
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

/* Writes the lists of the rows FIRST to END - 1, one partition's. */
static enum status write_part(struct row_batch *batch, size_t first, size_t end,
                              struct row_keys *keys, size_t *used,
                              struct failure *why) {
    const struct layout *layout = batch->layout;
    struct row_batch_part *part = &batch->parts[batch->rows[first].partition];
    const struct row_batch_row *last = &batch->rows[end - 1];
    for (uint32_t s = 0; s < layout->num_stacks; s++)
        keys[s].count = 0;
    for (size_t r = first; r < end; r++) {
        const struct row_batch_row *row = &batch->rows[r];
        struct row_keys *list = &keys[layout->tables[row->table].stack];
        if (!row_keys_reserve(list, list->count + 1))
            return row_batch_no_memory(why);
        list->ids[list->count] = row->id;
        list->tables[list->count++] = row->table;
    }
    unsigned char form;
    size_t bytes = row_keys_bytes(layout, keys, &form);
    part->first_float = batch->rows[first].at;
    part->floats =
        last->at + layout->tables[last->table].dim - part->first_float;
    part->first_byte = *used;
    part->bytes = (uint32_t)bytes;
    if (bytes + part->floats * sizeof(float) > MESSAGE_MAX_PAYLOAD)
        return status_fail(
            why, FAILURE_JOB_TOO_LARGE,
            "a batch has %zu rows of %zu floats in one of %u partitions, more "
            "than the %d MiB of a message: lower "
            "train_micro_batch_size_per_gpu, or dim",
            end - first, (size_t)part->floats / (end - first),
            layout->num_partitions, MESSAGE_MAX_PAYLOAD >> 20);
    if (!row_batch_grow((void **)&batch->bytes, &batch->room_bytes,
                        *used + bytes, 1))
        return row_batch_no_memory(why);
    row_keys_write(layout, keys, form, batch->bytes + *used, bytes);
    *used += bytes;
    return STATUS_OK;
}

static enum status write_parts(struct row_batch *batch, struct failure *why) {
    const struct layout *layout = batch->layout;
    struct row_keys *keys = calloc(layout->num_stacks, sizeof *keys);
    enum status status = keys ? STATUS_OK : row_batch_no_memory(why);
    size_t used = 0, end;
    memset(batch->parts, 0, layout->num_partitions * sizeof *batch->parts);
    for (size_t first = 0; !status && first < batch->num_rows; first = end) {
        uint32_t partition = batch->rows[first].partition;
        for (end = first;
             end < batch->num_rows && batch->rows[end].partition == partition;)
            end++;
        status = write_part(batch, first, end, keys, &used, why);
    }
    for (uint32_t s = 0; keys && s < layout->num_stacks; s++)
        row_keys_free(&keys[s]);
    free(keys);
    batch->lists = used;
    return status;
}

enum status row_batch_finish(struct row_batch *batch, struct failure *why) {
    order_rows(batch);
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
