/* SPDX-License-Identifier: Apache-2.0 */
/* The index is an open-addressing table with linear probing. An entry is the
 * row's number, in as many bits as the index has entries, and in the others
 * above them a tag of the id's hash, by which nearly every other id is passed
 * over. Index and rows lie anywhere in memory, so ids are handled in groups,
 * whose index entries and then rows are prefetched while those before are used.
 *
 * Updates gather rows into vectors for the loops of rule.h, which give the same
 * bits as a dense block's.
 *
 * The list of removed rows only grows until it is copied, so a snapshot may
 * hold it: what is appended lies behind what the snapshot reads. */
#include "core/rows/row_table.h"

#include "core/net/shm/buffer.h"

#include <assert.h>
#include <inttypes.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

enum {
    PAGE_BYTES = 64 << 10,
    GROUP = 32,         /* ids whose memory is on its way at once */
    MAX_REACH = 512,    /* bytes of a row that are prefetched */
    VECTOR = 4096,      /* floats of a tensor that are updated at once, */
    CHUNK = 256,        /* and rows, so that they are still in the cache */
    FIRST_ENTRIES = 64, /* of the index; a power of two */
    FIRST_REMOVED = 64,
};
static_assert(!(FIRST_ENTRIES & (FIRST_ENTRIES - 1)), "a power of two");
static_assert(VECTOR >= (int)LAYOUT_MAX_DIM, "a row fits the vectors");
static_assert(sizeof(struct row) % 8 == 0, "rows follow each other aligned");
#define NO_ROW ROW_TABLE_NO_ROW
#define FREE UINT32_MAX /* entry: the index is never full of rows */

/* Of a page. */
struct place {
    char *bytes;
    bool shared; /* false: the page is the table's alone */
};

struct row_table {
    struct row_table_options options;
    uint32_t dim;
    uint16_t admit;
    unsigned slots;
    size_t stride;      /* bytes of a row */
    unsigned page_bits; /* 2^page_bits rows in a page */
    struct buffer **pages;
    struct place *places; /* of each page */
    size_t num_pages, room_pages;
    uint32_t rows, admitted;
    uint32_t *entries; /* [mask + 1] */
    uint32_t mask;
    struct buffer *removed; /* struct row [num_removed]; NULL: none */
    uint32_t num_removed;
};

static struct row *row_of(const struct row_table *table, uint32_t number) {
    char *page = table->places[number >> table->page_bits].bytes;
    uint32_t place = number & ((UINT32_C(1) << table->page_bits) - 1);
    return (struct row *)(page + place * table->stride);
}

static float *row_floats(struct row *row) {
    return (float *)(row + 1);
}

static enum status row_table_no_memory(const struct row_table *table,
                                       struct failure *why) {
    return status_fail(why, FAILURE_NO_MEMORY,
                       "tables with rows of %u floats: no memory for more than "
                       "%" PRIu32 " rows in a partition",
                       table->dim, table->rows);
}

static bool is_admitted(const struct row_table *table, const struct row *row) {
    return row->count >= table->admit;
}

enum status row_table_open(struct row_table **out,
                           const struct row_table_options *options,
                           struct failure *why) {
    struct row_table *table = calloc(1, sizeof *table);
    *out = table;
    if (!table)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a table");
    table->options = *options;
    table->dim = layout_first_table(options->layout, options->stack)->dim;
    table->admit =
        (uint16_t)layout_first_table(options->layout, options->stack)->admit;
    table->slots = rule_slots(options->optimizer);
    table->stride = row_keys_row_bytes(table->dim, table->slots);
    while (table->stride << (table->page_bits + 1) <= PAGE_BYTES)
        table->page_bits++;
    table->mask = FIRST_ENTRIES - 1;
    table->entries = malloc(FIRST_ENTRIES * sizeof *table->entries);
    if (table->entries)
        memset(table->entries, 0xff, FIRST_ENTRIES * sizeof *table->entries);
    if (table->entries)
        return STATUS_OK;
    row_table_close(out);
    return status_fail(why, FAILURE_NO_MEMORY, "no memory for a table");
}

void row_table_close(struct row_table **where) {
    struct row_table *table = where ? *where : NULL;
    if (!table)
        return;
    for (size_t p = 0; p < table->num_pages; p++)
        buffer_release(&table->pages[p]);
    buffer_release(&table->removed);
    free(table->pages);
    free(table->places);
    free(table->entries);
    free(table);
    *where = NULL;
}

/* The entry of ROW with HASH. Its tag has bits of the hash that neither its
 * place nor its partition has. */
static uint32_t entry_of(const struct row_table *table, uint64_t hash,
                         uint32_t row) {
    return ((uint32_t)(hash >> 16) & ~table->mask) | row;
}

/* The first entry in which a row with HASH may be: with its tag, or free. */
static uint32_t *probable_entry(const struct row_table *table, uint64_t hash,
                                uint32_t at) {
    uint32_t tag = entry_of(table, hash, 0);
    while (table->entries[at &= table->mask] != FREE &&
           (table->entries[at] & ~table->mask) != tag)
        at++;
    return &table->entries[at];
}

/* Where the row of NUMBER's id with HASH is in the index, or the free entry
 * where it would be. */
static uint32_t *find_entry(const struct row_table *table, uint32_t number,
                            uint64_t id, uint64_t hash) {
    for (uint32_t at = (uint32_t)hash;; at++) {
        uint32_t *entry = probable_entry(table, hash, at);
        if (*entry == FREE)
            return entry;
        const struct row *row = row_of(table, *entry & table->mask);
        if (row->id == id && row->table == number)
            return entry;
        at = (uint32_t)(entry - table->entries);
    }
}

static uint32_t row_in_entry(const struct row_table *table,
                             const uint32_t *entry) {
    return *entry == FREE ? NO_ROW : *entry & table->mask;
}

/* Ids whose rows are looked for together. */
struct group {
    size_t first, count; /* of the keys */
    uint64_t hashes[GROUP];
    uint32_t rows[GROUP]; /* perhaps; NO_ROW: probably none */
    bool is_known[GROUP]; /* `rows` is from the caller, `hashes` is not set */
};

/* Looks for the rows of keys, in groups, three of which are on their way: the
 * first is in use, the rows of the second and the index entries of the third
 * are prefetched. */
struct search {
    const struct row_keys *keys;
    const uint32_t *numbers; /* where they probably are; NULL: not known */
    size_t reach; /* how many of a row's first bytes are prefetched */
    struct group groups[3];
    size_t num_groups, begun, found, used;
};

static void prefetch_row(const struct row_table *table, uint32_t number,
                         size_t reach) {
    const char *row = (const char *)row_of(table, number);
    for (const char *line = row - (uintptr_t)row % 64; line < row + reach;
         line += 64)
        __builtin_prefetch(line, 1);
}

static void search_begin(const struct row_table *table, struct search *search) {
    struct group *group = &search->groups[search->begun % 3];
    const struct row_keys *keys = search->keys;
    group->first = search->begun++ * GROUP;
    size_t left = keys->count - group->first;
    group->count = left < GROUP ? left : GROUP;
    for (size_t i = 0; i < group->count; i++) {
        size_t k = group->first + i;
        uint32_t number = search->numbers ? search->numbers[k] : NO_ROW;
        group->is_known[i] = number < table->rows;
        if (group->is_known[i]) {
            group->rows[i] = number;
            prefetch_row(table, number, search->reach);
            continue;
        }
        uint64_t hash = layout_row_hash(keys->tables[k], keys->ids[k]);
        group->hashes[i] = hash;
        __builtin_prefetch(&table->entries[(uint32_t)hash & table->mask]);
    }
}

/* The rows that the first entries with their tags have. */
static void search_find(const struct row_table *table, struct search *search) {
    struct group *group = &search->groups[search->found++ % 3];
    for (size_t i = 0; i < group->count; i++) {
        if (group->is_known[i])
            continue;
        uint64_t hash = group->hashes[i];
        group->rows[i] =
            row_in_entry(table, probable_entry(table, hash, (uint32_t)hash));
        if (group->rows[i] != NO_ROW)
            prefetch_row(table, group->rows[i], search->reach);
    }
}

/* The next group; NULL: that was the last. Rows may be added meanwhile, not
 * removed. */
static struct group *search_next(const struct row_table *table,
                                 struct search *search) {
    while (search->begun < search->num_groups &&
           search->begun < search->used + 3)
        search_begin(table, search);
    while (search->found < search->begun && search->found < search->used + 2)
        search_find(table, search);
    return search->used < search->num_groups
               ? &search->groups[search->used++ % 3]
               : NULL;
}

/* Of each row the first USED bytes are. */
static void search_open(struct search *search, const struct row_keys *keys,
                        const uint32_t *numbers, size_t used) {
    search->keys = keys;
    search->numbers = numbers;
    search->reach = used < MAX_REACH ? used : MAX_REACH;
    search->num_groups = (keys->count + GROUP - 1) / GROUP;
    search->begun = search->found = search->used = 0;
}

void row_table_prefetch(const struct row_table *table) {
    for (size_t byte = 0; byte < sizeof *table; byte += 64)
        __builtin_prefetch((const char *)table + byte);
}

void row_table_prefetch_rows(const struct row_table *table,
                             const struct row_keys *keys,
                             const uint32_t *numbers) {
    struct search search;
    search_open(&search, keys, numbers, table->stride);
    if (search.num_groups)
        search_begin(table, &search);
}

/* The row of GROUP's id I, which is ID of table NUMBER; NO_ROW: none, and the
 * hash is set. */
static uint32_t search_row(const struct row_table *table, struct group *group,
                           size_t i, uint32_t number, uint64_t id) {
    if (group->rows[i] != NO_ROW) {
        const struct row *row = row_of(table, group->rows[i]);
        if (row->id == id && row->table == number)
            return group->rows[i];
    }
    if (group->is_known[i])
        group->hashes[i] = layout_row_hash(number, id);
    return row_in_entry(table, find_entry(table, number, id, group->hashes[i]));
}

static void read_row(const struct row_table *table, uint32_t number,
                     uint64_t id, const struct row *row, float *weights) {
    if (row ? !is_admitted(table, row) : table->admit)
        memset(weights, 0, table->dim * sizeof *weights);
    else if (row)
        row_keys_copy_row(weights, row + 1, table->dim);
    else
        layout_init_row(table->options.layout, number, id, table->options.seed,
                        weights);
}

void row_table_lookup(const struct row_table *table,
                      const struct row_keys *keys, uint32_t *numbers,
                      float *weights) {
    struct search search;
    struct group *group;
    search_open(&search, keys, NULL,
                sizeof(struct row) + table->dim * sizeof(float));
    while ((group = search_next(table, &search)))
        for (size_t i = 0; i < group->count; i++, weights += table->dim) {
            size_t k = group->first + i;
            uint64_t id = keys->ids[k];
            uint32_t number = keys->tables[k];
            uint32_t row = search_row(table, group, i, number, id);
            if (numbers)
                numbers[k] = row;
            read_row(table, number, id,
                     row == NO_ROW ? NULL : row_of(table, row), weights);
        }
}

void row_table_at(const struct row_table *table, const struct row_keys *keys,
                  float *out) {
    static const struct row none = {.table = ROW_NO_TABLE};
    for (uint32_t k = 0; k < keys->count; k++, out += ROW_FLOATS) {
        uint64_t place = keys->ids[k];
        const struct row *row =
            place < table->rows ? row_of(table, (uint32_t)place) : &none;
        memcpy(out, row, sizeof *row);
    }
}

static uint64_t hash_of(const struct row *row) {
    return layout_row_hash(row->table, row->id);
}

/* Makes an index of ENTRIES, a power of two, of the rows there are. */
static bool build_index(struct row_table *table, size_t entries) {
    assert(!(entries & (entries - 1)) && entries > table->rows);
    uint32_t *more = malloc(entries * sizeof *more);
    if (!more || entries > UINT32_MAX) {
        free(more);
        return false;
    }
    memset(more, 0xff, entries * sizeof *more);
    free(table->entries);
    table->entries = more;
    table->mask = (uint32_t)entries - 1;
    for (uint32_t r = 0; r < table->rows; r++) {
        const struct row *row = row_of(table, r);
        uint64_t hash = hash_of(row);
        *find_entry(table, row->table, row->id, hash) =
            entry_of(table, hash, r);
    }
    return true;
}

static struct buffer *take_page(const struct row_table *table) {
    size_t bytes = row_table_page_bytes(table);
    return table->options.pool ? buffer_pool_take(table->options.pool, bytes)
                               : buffer_open(bytes, NULL, NULL);
}

static bool add_page(struct row_table *table) {
    assert(table->num_pages <= table->room_pages);
    if (table->num_pages == table->room_pages) {
        size_t room = table->room_pages ? 2 * table->room_pages : 16;
        struct buffer **pages =
            realloc(table->pages, room * sizeof *table->pages);
        table->pages = pages ? pages : table->pages;
        struct place *places = realloc(table->places, room * sizeof *places);
        table->places = places ? places : table->places;
        if (!pages || !places)
            return false;
        table->room_pages = room;
    }
    struct buffer *page = take_page(table);
    if (!page)
        return false;
    memset(buffer_data(page), 0, row_table_page_bytes(table));
    table->places[table->num_pages].bytes = buffer_data(page);
    table->places[table->num_pages].shared = false;
    table->pages[table->num_pages++] = page;
    return true;
}

static bool unshare_page(struct row_table *table, uint32_t p) {
    assert(p < table->num_pages && table->places[p].shared);
    struct buffer **page = &table->pages[p];
    struct buffer *copy = buffer_is_unique(*page) ? *page : take_page(table);
    if (!copy)
        return false;
    table->places[p].shared = false;
    if (copy == *page)
        return true;
    memcpy(buffer_data(copy), buffer_data(*page), row_table_page_bytes(table));
    buffer_release(page);
    *page = copy;
    table->places[p].bytes = buffer_data(copy);
    return true;
}

/* Makes row NUMBER's page the table's alone. */
static inline bool own_page(struct row_table *table, uint32_t number) {
    uint32_t p = number >> table->page_bits;
    return !table->places[p].shared || unshare_page(table, p);
}

static enum status check_room(struct row_table *table, uint32_t number,
                              struct failure *why) {
    struct row_table_count *count = &table->options.counts[number];
    uint64_t rows = atomic_load_explicit(&count->rows, memory_order_relaxed);
    if (table->rows < NO_ROW - 1 && (!count->most || rows < count->most))
        return STATUS_OK;
    return status_fail(why, FAILURE_TABLE_FULL,
                       "table \"%s\" has %" PRIu64
                       " rows in this process alone, all that its max_rows "
                       "allows: raise it, or set admit or expire",
                       table->options.layout->tables[number].name, rows);
}

/* Adds a row for table NUMBER's ID, which has none, without weights. */
static enum status row_table_add(struct row_table *table, uint32_t number,
                                 uint64_t id, uint64_t hash, uint32_t *place,
                                 struct failure *why) {
    enum status status = check_room(table, number, why);
    if (status)
        return status;
    if ((uint64_t)table->rows * 2 > table->mask &&
        !build_index(table, ((size_t)table->mask + 1) * 2))
        return row_table_no_memory(table, why);
    if (table->rows >> table->page_bits == table->num_pages && !add_page(table))
        return row_table_no_memory(table, why);
    if (!own_page(table, table->rows))
        return row_table_no_memory(table, why);
    /* A search ends at a free entry, so there is always one. */
    assert(table->rows < table->mask);
    *place = table->rows++;
    *row_of(table, *place) = (struct row){.id = id, .table = (uint16_t)number};
    *find_entry(table, number, id, hash) = entry_of(table, hash, *place);
    atomic_fetch_add_explicit(&table->options.counts[number].rows, 1,
                              memory_order_relaxed);
    return STATUS_OK;
}

/* ROW is one more that is admitted (BY 1), or one less (-1). */
static void count_admitted(struct row_table *table, const struct row *row,
                           int by) {
    table->admitted += (uint32_t)by;
    atomic_fetch_add_explicit(&table->options.counts[row->table].admitted,
                              (uint64_t)(int64_t)by, memory_order_relaxed);
}

static void admit_row(struct row_table *table, struct row *row) {
    const struct row_table_options *options = &table->options;
    float *floats = row_floats(row);
    count_admitted(table, row, 1);
    layout_init_row(options->layout, row->table, row->id, options->seed,
                    floats);
    for (unsigned slot = 0; slot < table->slots; slot++)
        for (uint32_t i = 0; i < table->dim; i++)
            floats[(slot + 1) * table->dim + i] =
                rule_slot_start(options->optimizer, slot);
}

/* ROW, which is not admitted yet, was pushed by PUSHES more trainers, which may
 * admit it. */
static void count_pushes(struct row_table *table, struct row *row,
                         uint32_t pushes) {
    uint32_t admit = table->admit;
    row->count =
        (uint16_t)(admit - row->count > pushes ? row->count + pushes : admit);
    if (is_admitted(table, row))
        admit_row(table, row);
}

/* The row of GROUP's id I, new if there is none; its page is the table's. *OUT
 * is NULL if its gradient only counts. */
static enum status touch_row(struct row_table *table,
                             const struct row_table_update *update,
                             struct group *group, size_t i, struct row **out,
                             struct failure *why) {
    size_t k = group->first + i;
    uint64_t id = update->keys->ids[k];
    uint32_t of = update->keys->tables[k];
    uint32_t number = search_row(table, group, i, of, id);
    bool is_new = number == NO_ROW;
    enum status status = STATUS_OK;
    if (is_new)
        status = row_table_add(table, of, id, group->hashes[i], &number, why);
    else if (!own_page(table, number))
        status = row_table_no_memory(table, why);
    if (status)
        return status;
    struct row *row = *out = row_of(table, number);
    row->touched = (uint32_t)update->step;
    if (!is_new && is_admitted(table, row))
        return STATUS_OK;
    count_pushes(table, row, update->pushes ? update->pushes[k] : 1);
    if (table->admit)
        *out = NULL;
    return STATUS_OK;
}

/* Rows that an update has found, with their gradients, weights and state. */
struct pending {
    size_t count;
    struct row *rows[CHUNK];
    const char *from[CHUNK]; /* their gradients, at any alignment */
    alignas(64) float gradients[VECTOR];
    alignas(64) float tensors[1 + RULE_MAX_SLOTS][VECTOR];
};

static inline void load_tensors(struct pending *pending, unsigned slots,
                                uint32_t dim) {
    for (size_t i = 0; i < pending->count; i++)
        memcpy(pending->gradients + i * dim, pending->from[i],
               dim * sizeof(float));
    for (unsigned t = 0; t <= slots; t++)
        for (size_t i = 0; i < pending->count; i++)
            memcpy(pending->tensors[t] + i * dim,
                   row_floats(pending->rows[i]) + t * dim, dim * sizeof(float));
}

static inline void store_tensors(const struct pending *pending, unsigned slots,
                                 uint32_t dim) {
    for (unsigned t = 0; t <= slots; t++)
        for (size_t i = 0; i < pending->count; i++)
            memcpy(row_floats(pending->rows[i]) + t * dim,
                   pending->tensors[t] + i * dim, dim * sizeof(float));
}

/* Common widths have loops of their own, without a call for each row. */
static void load_rows(struct pending *pending, unsigned slots, uint32_t dim) {
    switch (dim) {
    case 1:
        load_tensors(pending, slots, 1);
        return;
    case 8:
        load_tensors(pending, slots, 8);
        return;
    case 16:
        load_tensors(pending, slots, 16);
        return;
    default:
        load_tensors(pending, slots, dim);
    }
}

static void store_rows(const struct pending *pending, unsigned slots,
                       uint32_t dim) {
    switch (dim) {
    case 1:
        store_tensors(pending, slots, 1);
        return;
    case 8:
        store_tensors(pending, slots, 8);
        return;
    case 16:
        store_tensors(pending, slots, 16);
        return;
    default:
        store_tensors(pending, slots, dim);
    }
}

/* Applies the rule to the pending rows, of which there are none then. */
static enum status apply_rule(struct row_table *table,
                              const struct row_table_update *update,
                              struct pending *pending, struct failure *why) {
    const struct row_table_options *options = &table->options;
    float *weights = pending->tensors[0];
    const void *const sums[] = {pending->gradients};
    bool nonfinite = false;
    struct rule_update of_rule = {.step = update->rule_step,
                                  .rate = update->rate,
                                  .scale = update->scale,
                                  .elements = pending->count * table->dim,
                                  .num_gradients = 1,
                                  .gradients = sums,
                                  .weights = weights,
                                  .weights_out = weights,
                                  .nonfinite = &nonfinite};
    if (!pending->count)
        return STATUS_OK;
    assert(pending->count <= CHUNK && pending->count * table->dim <= VECTOR);
    load_rows(pending, table->slots, table->dim);
    for (unsigned slot = 0; slot < table->slots; slot++) {
        of_rule.state_out[slot] = pending->tensors[slot + 1];
        of_rule.state[slot] = of_rule.state_out[slot];
    }
    rule_apply(options->loops,
               update->optimizer ? update->optimizer : options->optimizer,
               &of_rule);
    if (nonfinite)
        return rule_nonfinite(
            options->layout->tables[pending->rows[0]->table].name, update->step,
            why);
    store_rows(pending, table->slots, table->dim);
    pending->count = 0;
    return STATUS_OK;
}

/* Finds the rows of GROUP, and applies the rule to the pending ones where no
 * more fit the vectors. */
static enum status apply_group(struct row_table *table,
                               const struct row_table_update *update,
                               struct group *group, struct pending *pending,
                               struct failure *why) {
    size_t dim = table->dim, most = VECTOR / dim < CHUNK ? VECTOR / dim : CHUNK;
    const char *gradients = update->gradients;
    for (size_t i = 0; i < group->count; i++) {
        struct row **row = &pending->rows[pending->count];
        enum status status = touch_row(table, update, group, i, row, why);
        if (status)
            return status;
        if (!*row)
            continue;
        pending->from[pending->count] =
            gradients + (group->first + i) * dim * sizeof(float);
        if (++pending->count == most)
            status = apply_rule(table, update, pending, why);
        if (status)
            return status;
    }
    return STATUS_OK;
}

enum status row_table_apply(struct row_table *table,
                            const struct row_table_update *update,
                            struct failure *why) {
    struct search search;
    struct pending pending;
    struct group *group;
    enum status status = STATUS_OK;
    pending.count = 0;
    search_open(&search, update->keys, update->numbers, table->stride);
    while (!status && (group = search_next(table, &search)))
        status = apply_group(table, update, group, &pending, why);
    return status ? status : apply_rule(table, update, &pending, why);
}

/* The row of table NUMBER's ID, new if there is none, and admitted; its page is
 * the table's. */
static enum status admitted_row(struct row_table *table, uint32_t number,
                                uint64_t id, struct row **out,
                                struct failure *why) {
    uint64_t hash = layout_row_hash(number, id);
    uint32_t place = row_in_entry(table, find_entry(table, number, id, hash));
    bool is_new = place == NO_ROW;
    if (is_new) {
        enum status status =
            row_table_add(table, number, id, hash, &place, why);
        if (status)
            return status;
    } else if (!own_page(table, place)) {
        return row_table_no_memory(table, why);
    }
    struct row *row = *out = row_of(table, place);
    if (is_new || !is_admitted(table, row)) {
        row->count = table->admit;
        admit_row(table, row);
    }
    return STATUS_OK;
}

enum status row_table_assign(struct row_table *table,
                             const struct row_keys *keys, const void *floats,
                             uint64_t step, struct failure *why) {
    const char *from = floats;
    size_t bytes = table->dim * sizeof(float);
    for (uint32_t k = 0; k < keys->count; k++, from += bytes) {
        struct row *row = NULL;
        enum status status =
            admitted_row(table, keys->tables[k], keys->ids[k], &row, why);
        if (status)
            return status;
        row->touched = (uint32_t)step;
        memcpy(row_floats(row), from, bytes);
    }
    return STATUS_OK;
}

/* Removes ENTRY, and moves later ones of its chain towards where their search
 * begins (Knuth, TAOCP 6.4, Algorithm R). */
static void close_hole(struct row_table *table, const uint32_t *entry) {
    uint32_t hole = (uint32_t)(entry - table->entries), at = hole;
    while (true) {
        at = (at + 1) & table->mask;
        uint32_t next = table->entries[at];
        if (next == FREE)
            break;
        uint32_t home =
            (uint32_t)hash_of(row_of(table, next & table->mask)) & table->mask;
        if (((at - home) & table->mask) < ((at - hole) & table->mask))
            continue;
        table->entries[hole] = next;
        hole = at;
    }
    table->entries[hole] = FREE;
}

static struct row *removed_of(const struct row_table *table) {
    return table->removed ? buffer_data(table->removed) : NULL;
}

/* Replaces the list by one with room for ROOM rows; false: no memory. */
static bool copy_removed(struct row_table *table, size_t room) {
    struct buffer *copy = buffer_open(room * sizeof(struct row), NULL, NULL);
    if (!copy)
        return false;
    if (table->num_removed)
        memcpy(buffer_data(copy), removed_of(table),
               table->num_removed * sizeof(struct row));
    buffer_release(&table->removed);
    table->removed = copy;
    return true;
}

/* By table and id, the latest update first, within 2^31 of each other. */
static int compare_removed(const void *left, const void *right) {
    const struct row *l = left, *r = right;
    if (l->table != r->table)
        return l->table < r->table ? -1 : 1;
    if (l->id != r->id)
        return l->id < r->id ? -1 : 1;
    int32_t after = (int32_t)(l->touched - r->touched);
    return (after < 0) - (after > 0);
}

/* Keeps each row once, of those that were removed repeatedly. */
static void merge_removed(struct row_table *table) {
    struct row *rows = removed_of(table);
    uint32_t count = 0;
    if (!rows)
        return;
    qsort(rows, table->num_removed, sizeof *rows, compare_removed);
    for (uint32_t r = 0; r < table->num_removed; r++)
        if (!count || rows[count - 1].table != rows[r].table ||
            rows[count - 1].id != rows[r].id)
            rows[count++] = rows[r];
    table->num_removed = count;
}

/* Makes room for one more; the list then doubles at least, so that merging is
 * rare. False: no memory. */
static bool reserve_removed(struct row_table *table) {
    size_t room =
        table->removed ? buffer_bytes(table->removed) / sizeof(struct row) : 0;
    if (table->num_removed < room)
        return true;
    if (!copy_removed(table, room ? room : FIRST_REMOVED))
        return false;
    merge_removed(table);
    return table->num_removed <= room / 2 ||
           copy_removed(table, 2 * room + FIRST_REMOVED);
}

static void add_removed(struct row_table *table, const struct row *row,
                        uint64_t step) {
    assert(table->num_removed <
           buffer_bytes(table->removed) / sizeof(struct row));
    removed_of(table)[table->num_removed++] = (struct row){
        .id = row->id, .table = row->table, .touched = (uint32_t)step};
}

struct buffer *row_table_removed(const struct row_table *table,
                                 uint32_t *count) {
    *count = table->num_removed;
    return table->removed;
}

/* Without memory for a copy the list stays, which does no harm. */
void row_table_forget_removed(struct row_table *table, uint64_t step) {
    uint32_t count = 0, before = table->num_removed, left = 0;
    const struct row *rows = removed_of(table);
    for (uint32_t r = 0; r < before; r++)
        left += (int32_t)(rows[r].touched - (uint32_t)step) >= 0;
    if (left == before || !copy_removed(table, before))
        return;
    struct row *kept = removed_of(table);
    for (uint32_t r = 0; r < before; r++)
        if ((int32_t)(kept[r].touched - (uint32_t)step) >= 0)
            kept[count++] = kept[r];
    table->num_removed = count;
}

enum status row_table_restore_removed(struct row_table *table,
                                      const struct row *row, uint64_t step,
                                      struct failure *why) {
    if (!table->options.lists_removed)
        return STATUS_OK;
    if (!reserve_removed(table))
        return row_table_no_memory(table, why);
    add_removed(table, row, step);
    return STATUS_OK;
}

/* Removes row NUMBER in update STEP; the last row takes its place. False: no
 * memory. */
static bool remove_row(struct row_table *table, uint32_t number,
                       uint64_t step) {
    assert(number < table->rows);
    uint32_t last = table->rows - 1;
    bool is_listed = table->options.lists_removed;
    if (!own_page(table, number) || !own_page(table, last) ||
        (is_listed && !reserve_removed(table)))
        return false;
    struct row *row = row_of(table, number), *other = row_of(table, last);
    if (is_listed)
        add_removed(table, row, step);
    if (is_admitted(table, row))
        count_admitted(table, row, -1);
    atomic_fetch_add_explicit(&table->options.counts[row->table].expired, 1,
                              memory_order_relaxed);
    atomic_fetch_sub_explicit(&table->options.counts[row->table].rows, 1,
                              memory_order_relaxed);
    close_hole(table, find_entry(table, row->table, row->id, hash_of(row)));
    if (number != last) {
        uint64_t hash = hash_of(other);
        *find_entry(table, other->table, other->id, hash) =
            entry_of(table, hash, number);
        memcpy(row, other, table->stride);
    }
    memset(other, 0, table->stride);
    table->rows--;
    assert(table->num_pages == (table->rows >> table->page_bits) + 1);
    if (!(table->rows & ((UINT32_C(1) << table->page_bits) - 1)))
        buffer_release(&table->pages[--table->num_pages]);
    return true;
}

/* A row that cannot be removed now is removed the next time. Numbers of updates
 * are compared within 2^31 of each other. */
uint64_t row_table_expire(struct row_table *table, uint64_t before,
                          uint64_t step) {
    uint32_t rows = table->rows, limit = (uint32_t)before;
    for (uint32_t r = table->rows; r-- > 0;)
        if ((int32_t)(row_of(table, r)->touched - limit) < 0 &&
            !remove_row(table, r, step))
            break;
    return rows - table->rows;
}

uint64_t row_table_rows(const struct row_table *table, uint64_t *admitted) {
    *admitted = table->admitted;
    return table->rows;
}

size_t row_table_row_bytes(const struct row_table *table) {
    return table->stride;
}

uint32_t row_table_page_rows(const struct row_table *table) {
    return UINT32_C(1) << table->page_bits;
}

size_t row_table_page_bytes(const struct row_table *table) {
    return table->stride << table->page_bits;
}

size_t row_table_num_pages(const struct row_table *table) {
    return table->num_pages;
}

struct buffer *const *row_table_pages(struct row_table *table, size_t *count) {
    *count = table->num_pages;
    for (size_t p = 0; p < table->num_pages; p++)
        table->places[p].shared = true;
    return table->pages;
}

static bool is_of_stack(const struct row_table *table, const struct row *row) {
    const struct layout *layout = table->options.layout;
    return row->table < layout->num_tables &&
           layout->tables[row->table].stack == table->options.stack &&
           row->count <= table->admit;
}

enum status row_table_restore(struct row_table *table, const void *bytes,
                              uint32_t rows, uint32_t partition,
                              struct failure *why) {
    const char *from = bytes;
    const struct layout *layout = table->options.layout;
    for (uint32_t r = 0; r < rows; r++, from += table->stride) {
        const struct row *row = (const struct row *)from;
        uint64_t hash = hash_of(row);
        uint32_t place;
        if (!is_of_stack(table, row))
            return status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                               "a row of table %u, which is not of its stack",
                               row->table);
        if (layout_partition(layout, hash) != partition ||
            *find_entry(table, row->table, row->id, hash) != FREE)
            continue;
        enum status status =
            row_table_add(table, row->table, row->id, hash, &place, why);
        if (status)
            return status;
        memcpy(row_of(table, place), from, table->stride);
        if (is_admitted(table, row))
            count_admitted(table, row, 1);
    }
    return STATUS_OK;
}

enum status row_table_open_held(struct row_table **out,
                                const struct row_table_options *options,
                                struct buffer *const *pages, size_t count,
                                uint32_t rows, struct failure *why) {
    enum status status = row_table_open(out, options, why);
    struct row_table *table = *out;
    size_t entries = FIRST_ENTRIES;
    if (status)
        return status;
    assert(rows <= (uint64_t)count << table->page_bits);
    table->pages = calloc(count + 1, sizeof *table->pages);
    table->places = calloc(count + 1, sizeof *table->places);
    if (table->pages && table->places) {
        table->room_pages = count + 1;
        table->rows = rows;
        for (; table->num_pages < count; table->num_pages++) {
            table->pages[table->num_pages] =
                buffer_hold(pages[table->num_pages]);
            table->places[table->num_pages].bytes =
                buffer_data(pages[table->num_pages]);
            table->places[table->num_pages].shared = true;
        }
    }
    while (entries / 2 < rows)
        entries *= 2;
    if (table->room_pages && build_index(table, entries))
        return STATUS_OK;
    status = row_table_no_memory(table, why);
    row_table_close(out);
    return status;
}
