/* SPDX-License-Identifier: Apache-2.0 */
/* A message may bring blocks of which each is updated at its own time, so its
 * payload is counted: one holder for each contribution that lies in it, and one
 * for who is just reading it. One thread does all of that. */
#include "ps/dense/parcels.h"

#include <stdbool.h>
#include <stdlib.h>

struct parcel {
    struct parcel *next; /* when free */
    struct link_held held;
    unsigned holders;
};

struct contribution {
    struct parcel *parcel; /* NULL: none */
    const void *floats;    /* NULL: without bytes */
};

struct parcels {
    uint32_t num_blocks, num_ranks;
    struct contribution *contributions; /* [num_blocks, num_ranks] */
    struct parcel *free;
};

struct parcels *parcels_open(uint32_t num_blocks, uint32_t num_ranks) {
    struct parcels *parcels = calloc(1, sizeof *parcels);
    if (!parcels)
        return NULL;
    parcels->num_blocks = num_blocks;
    parcels->num_ranks = num_ranks;
    parcels->contributions = calloc((size_t)num_blocks * num_ranks + 1,
                                    sizeof *parcels->contributions);
    if (!parcels->contributions)
        parcels_close(&parcels);
    return parcels;
}

void parcels_close(struct parcels **where) {
    struct parcels *parcels = *where;
    *where = NULL;
    if (!parcels)
        return;
    size_t cells = (size_t)parcels->num_blocks * parcels->num_ranks;
    for (size_t i = 0; parcels->contributions && i < cells; i++)
        parcels_let_go(parcels, parcels->contributions[i].parcel);
    while (parcels->free) {
        struct parcel *parcel = parcels->free;
        parcels->free = parcel->next;
        free(parcel);
    }
    free(parcels->contributions);
    free(parcels);
}

struct parcel *parcels_take(struct parcels *parcels, struct link_frame *frame) {
    struct parcel *parcel = parcels->free;
    if (parcel)
        parcels->free = parcel->next;
    else
        parcel = malloc(sizeof *parcel);
    if (!parcel)
        return NULL;
    parcel->holders = 1;
    if (link_keep(frame, &parcel->held))
        return parcel;
    parcels_let_go(parcels, parcel);
    return NULL;
}

const struct link_bytes *parcels_payload(const struct parcel *parcel) {
    return &parcel->held.payload;
}

void parcels_let_go(struct parcels *parcels, struct parcel *parcel) {
    if (!parcel || --parcel->holders)
        return;
    link_let_go(&parcel->held);
    parcel->next = parcels->free;
    parcels->free = parcel;
}

static struct contribution *contributions_of(const struct parcels *parcels,
                                             uint32_t block) {
    return parcels->contributions + (size_t)block * parcels->num_ranks;
}

/* The exchange takes a contribution once, so there is none in its place. */
void parcels_contribute(struct parcels *parcels, uint32_t block, uint32_t rank,
                        struct parcel *parcel, const void *floats) {
    parcel->holders++;
    contributions_of(parcels, block)[rank] =
        (struct contribution){parcel, floats};
}

static bool has_bytes(const struct contribution *contribution) {
    return contribution->parcel && contribution->floats;
}

unsigned parcels_gather(const struct parcels *parcels, uint32_t block,
                        const void **gradients) {
    const struct contribution *all = contributions_of(parcels, block);
    unsigned count = 0;
    for (uint32_t r = 0; r < parcels->num_ranks; r++)
        if (has_bytes(&all[r]))
            gradients[count++] = all[r].floats;
    return count;
}

uint32_t parcels_weight(const struct parcels *parcels, uint32_t block,
                        const uint32_t *weights) {
    const struct contribution *all = contributions_of(parcels, block);
    uint32_t sum = 0;
    for (uint32_t r = 0; r < parcels->num_ranks; r++)
        if (has_bytes(&all[r]))
            sum += weights ? weights[r] : 1;
    return sum;
}

unsigned parcels_hand_over(struct parcels *parcels, uint32_t block,
                           struct parcel **held) {
    struct contribution *all = contributions_of(parcels, block);
    unsigned count = 0;
    for (uint32_t r = 0; r < parcels->num_ranks; r++) {
        if (all[r].parcel)
            held[count++] = all[r].parcel;
        all[r] = (struct contribution){0};
    }
    return count;
}
