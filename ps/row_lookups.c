/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/row_lookups.h"

#include <stdlib.h>

/* What of a rank waits for a partition. */
struct waiting {
    struct row_lookup *lookup; /* NULL: nothing */
    uint32_t part;
};

struct row_lookups {
    uint32_t num_partitions, num_ranks;
    struct waiting *cells; /* [num_partitions, num_ranks] */
    struct row_lookup *free_list;
    struct gradient_inbox *inbox;
};

struct row_lookups *row_lookups_open(uint32_t num_partitions,
                                     uint32_t num_ranks,
                                     struct gradient_inbox *inbox) {
    struct row_lookups *lookups = calloc(1, sizeof *lookups);
    if (!lookups)
        return NULL;
    lookups->num_partitions = num_partitions;
    lookups->num_ranks = num_ranks;
    lookups->inbox = inbox;
    lookups->cells =
        calloc((size_t)num_partitions * num_ranks + 1, sizeof *lookups->cells);
    if (!lookups->cells)
        row_lookups_close(&lookups);
    return lookups;
}

void row_lookups_close(struct row_lookups **where) {
    struct row_lookups *lookups = *where;
    *where = NULL;
    if (!lookups)
        return;
    size_t cells = (size_t)lookups->num_partitions * lookups->num_ranks;
    for (size_t i = 0; lookups->cells && i < cells; i++)
        if (lookups->cells[i].lookup)
            row_lookups_drop(lookups, lookups->cells[i].lookup);
    while (lookups->free_list) {
        struct row_lookup *lookup = lookups->free_list;
        lookups->free_list = lookup->next;
        free(lookup->parts);
        free(lookup);
    }
    free(lookups->cells);
    free(lookups);
}

struct row_lookup *row_lookups_new(struct row_lookups *lookups,
                                   uint32_t num_parts) {
    struct row_lookup *lookup = lookups->free_list;
    if (lookup)
        lookups->free_list = lookup->next;
    else
        lookup = calloc(1, sizeof *lookup);
    if (!lookup)
        return NULL;
    lookup->references = 1;
    lookup->num_parts = num_parts;
    lookup->num_read = 0;
    if (num_parts > lookup->room) {
        free(lookup->parts);
        lookup->parts = malloc(num_parts * sizeof *lookup->parts);
        lookup->room = lookup->parts ? num_parts : 0;
    }
    if (!num_parts || lookup->parts)
        return lookup;
    row_lookups_drop(lookups, lookup);
    return NULL;
}

void row_lookups_drop(struct row_lookups *lookups, struct row_lookup *lookup) {
    if (--lookup->references)
        return;
    gradient_inbox_release(lookups->inbox, lookup->payload);
    lookup->payload = NULL;
    buffer_release(&lookup->floats);
    lookup->next = lookups->free_list;
    lookups->free_list = lookup;
}

void row_lookups_wait(struct row_lookups *lookups, struct row_lookup *lookup,
                      uint32_t p, uint32_t part) {
    struct waiting *cell =
        &lookups->cells[(size_t)p * lookups->num_ranks + lookup->rank];
    if (cell->lookup)
        row_lookups_drop(lookups, cell->lookup);
    *cell = (struct waiting){lookup, part};
    lookup->references++;
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
