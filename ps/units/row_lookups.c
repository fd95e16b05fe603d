/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/units/row_lookups.h"

#include <stdlib.h>
#include <string.h>

enum {
    REMEMBERED = 3, /* a trainer asks for the rows of the next two steps before
                       the push of this one leaves */
    MAX_REMEMBERED_ROWS = 1 << 16, /* 14 bytes and an encoded id each */
};

/* What of a rank waits for a partition. */
struct waiting {
    struct row_lookup *lookup; /* NULL: nothing */
    uint32_t part;
};

struct row_lookups {
    uint32_t num_partitions, num_ranks;
    struct waiting *cells;          /* [num_partitions, num_ranks] */
    struct row_lookup **remembered; /* [num_ranks, REMEMBERED]: latest first */
    struct row_lookup *free_list;
};

struct row_lookups *row_lookups_open(uint32_t num_partitions,
                                     uint32_t num_ranks) {
    struct row_lookups *lookups = calloc(1, sizeof *lookups);
    if (!lookups)
        return NULL;
    lookups->num_partitions = num_partitions;
    lookups->num_ranks = num_ranks;
    lookups->cells =
        calloc((size_t)num_partitions * num_ranks + 1, sizeof *lookups->cells);
    lookups->remembered =
        calloc((size_t)num_ranks * REMEMBERED + 1, sizeof(struct row_lookup *));
    if (!lookups->cells || !lookups->remembered)
        row_lookups_close(&lookups);
    return lookups;
}

static void free_parts(struct row_lookup *lookup) {
    for (uint32_t i = 0; i < lookup->room; i++)
        row_list_free(&lookup->parts[i].list);
    free(lookup->parts);
    free(lookup->bytes);
    lookup->parts = NULL;
    lookup->bytes = NULL;
    lookup->room = 0;
    lookup->room_bytes = 0;
}

void row_lookups_close(struct row_lookups **where) {
    struct row_lookups *lookups = *where;
    *where = NULL;
    if (!lookups)
        return;
    size_t cells = (size_t)lookups->num_partitions * lookups->num_ranks;
    size_t remembered = (size_t)lookups->num_ranks * REMEMBERED;
    for (size_t i = 0; lookups->cells && i < cells; i++)
        row_lookups_drop(lookups, lookups->cells[i].lookup);
    for (size_t i = 0; lookups->remembered && i < remembered; i++)
        row_lookups_drop(lookups, lookups->remembered[i]);
    while (lookups->free_list) {
        struct row_lookup *lookup = lookups->free_list;
        lookups->free_list = lookup->next;
        free_parts(lookup);
        free(lookup);
    }
    free(lookups->cells);
    free(lookups->remembered);
    free(lookups);
}

static bool reserve_parts(struct row_lookup *lookup, uint32_t count) {
    if (count <= lookup->room)
        return true;
    struct row_lookup_part *parts =
        realloc(lookup->parts, count * sizeof *parts);
    if (!parts)
        return false;
    memset(parts + lookup->room, 0, (count - lookup->room) * sizeof *parts);
    lookup->parts = parts;
    lookup->room = count;
    return true;
}

static bool copy_bytes(struct row_lookup *lookup, const void *bytes,
                       size_t size) {
    if (size > lookup->room_bytes) {
        free(lookup->bytes);
        lookup->bytes = malloc(size);
        lookup->room_bytes = lookup->bytes ? size : 0;
    }
    if (size && lookup->bytes)
        memcpy(lookup->bytes, bytes, size);
    return !size || lookup->bytes;
}

struct row_lookup *row_lookups_new(struct row_lookups *lookups,
                                   uint32_t num_parts, const void *bytes,
                                   size_t size) {
    struct row_lookup *lookup = lookups->free_list;
    if (lookup)
        lookups->free_list = lookup->next;
    else
        lookup = calloc(1, sizeof *lookup);
    if (!lookup)
        return NULL;
    lookup->references = 1;
    lookup->num_parts = num_parts;
    lookup->num_read = lookup->open_parts = 0;
    lookup->rows = 0;
    if (reserve_parts(lookup, num_parts) && copy_bytes(lookup, bytes, size))
        return lookup;
    row_lookups_drop(lookups, lookup);
    return NULL;
}

struct row_lookup *row_lookups_hold(struct row_lookup *lookup) {
    lookup->references++;
    return lookup;
}

void row_lookups_drop(struct row_lookups *lookups, struct row_lookup *lookup) {
    if (!lookup || --lookup->references)
        return;
    buffer_release(&lookup->floats);
    if (lookup->rows > MAX_REMEMBERED_ROWS ||
        lookup->room_bytes > sizeof(uint64_t) * MAX_REMEMBERED_ROWS)
        free_parts(lookup);
    lookup->next = lookups->free_list;
    lookups->free_list = lookup;
}

void row_lookups_remember(struct row_lookups *lookups,
                          struct row_lookup *lookup) {
    struct row_lookup **last =
        lookups->remembered + (size_t)lookup->rank * REMEMBERED;
    if (lookup->rows > MAX_REMEMBERED_ROWS)
        return;
    row_lookups_drop(lookups, last[REMEMBERED - 1]);
    memmove(last + 1, last, (REMEMBERED - 1) * sizeof(struct row_lookup *));
    last[0] = row_lookups_hold(lookup);
}

/* The part of LOOKUP for partition P; NULL: none. */
static const struct row_lookup_part *find_part(const struct row_lookup *lookup,
                                               uint32_t p, uint32_t probable) {
    const struct row_lookup_part *parts = lookup->parts;
    uint32_t first = 0, end = lookup->num_parts;
    if (probable < end && parts[probable].p == p)
        return &parts[probable];
    while (first < end) {
        uint32_t middle = first + (end - first) / 2;
        if (parts[middle].p == p)
            return &parts[middle];
        if (parts[middle].p < p)
            first = middle + 1;
        else
            end = middle;
    }
    return NULL;
}

struct row_lookup *row_lookups_find(const struct row_lookups *lookups,
                                    uint32_t rank, uint32_t p,
                                    const struct row_part *pushed,
                                    uint32_t *part) {
    struct row_lookup **last = lookups->remembered + (size_t)rank * REMEMBERED;
    for (unsigned i = 0; i < REMEMBERED && last[i]; i++) {
        const struct row_lookup_part *of = find_part(last[i], p, *part);
        if (!of ||
            pushed->size != of->list.size + of->list.floats * sizeof(float) ||
            memcmp(pushed->bytes, of->bytes, of->list.size) != 0)
            continue;
        *part = (uint32_t)(of - last[i]->parts);
        return last[i];
    }
    return NULL;
}

void row_lookups_wait(struct row_lookups *lookups, struct row_lookup *lookup,
                      uint32_t p, uint32_t part) {
    struct waiting *cell =
        &lookups->cells[(size_t)p * lookups->num_ranks + lookup->rank];
    if (cell->lookup)
        row_lookups_end_part(cell->lookup);
    row_lookups_drop(lookups, cell->lookup);
    *cell = (struct waiting){row_lookups_hold(lookup), part};
    lookup->open_parts++;
}

void row_lookups_end_part(struct row_lookup *lookup) {
    if (!--lookup->open_parts)
        buffer_release(&lookup->floats);
}

struct row_lookup *row_lookups_take(struct row_lookups *lookups, uint32_t p,
                                    uint32_t rank, uint64_t seq,
                                    uint32_t *part) {
    struct waiting *cell =
        &lookups->cells[(size_t)p * lookups->num_ranks + rank];
    struct row_lookup *lookup = cell->lookup;
    if (!lookup || lookup->seq != seq)
        return NULL;
    *part = cell->part;
    *cell = (struct waiting){0};
    return lookup;
}
