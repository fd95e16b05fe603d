/* SPDX-License-Identifier: Apache-2.0 */
/* One message may hold several blocks, each updated at its own time. Its
 * payload is reference-counted: one reference for each contribution in it, and
 * one for the handler that reads it. One thread does all this. */
#include "ps/dense/gradient_inbox.h"

#include <stdbool.h>
#include <stdlib.h>

struct gradient_payload {
    struct gradient_payload *next; /* in the free list */
    struct link_held held;
    unsigned references;
};

struct contribution {
    struct gradient_payload *gradient_payload; /* NULL: none */
    const void *floats;                        /* NULL: a push without bytes */
};

struct gradient_inbox {
    uint32_t num_blocks, num_ranks;
    struct contribution *contributions; /* [num_blocks, num_ranks] */
    struct gradient_payload *free;
};

struct gradient_inbox *gradient_inbox_open(uint32_t num_blocks,
                                           uint32_t num_ranks) {
    struct gradient_inbox *gradient_inbox = calloc(1, sizeof *gradient_inbox);
    if (!gradient_inbox)
        return NULL;
    gradient_inbox->num_blocks = num_blocks;
    gradient_inbox->num_ranks = num_ranks;
    gradient_inbox->contributions =
        calloc((size_t)num_blocks * num_ranks + 1,
               sizeof *gradient_inbox->contributions);
    if (!gradient_inbox->contributions)
        gradient_inbox_close(&gradient_inbox);
    return gradient_inbox;
}

void gradient_inbox_close(struct gradient_inbox **where) {
    struct gradient_inbox *gradient_inbox = *where;
    *where = NULL;
    if (!gradient_inbox)
        return;
    size_t cells =
        (size_t)gradient_inbox->num_blocks * gradient_inbox->num_ranks;
    for (size_t i = 0; gradient_inbox->contributions && i < cells; i++)
        gradient_inbox_release(
            gradient_inbox, gradient_inbox->contributions[i].gradient_payload);
    while (gradient_inbox->free) {
        struct gradient_payload *gradient_payload = gradient_inbox->free;
        gradient_inbox->free = gradient_payload->next;
        free(gradient_payload);
    }
    free(gradient_inbox->contributions);
    free(gradient_inbox);
}

struct gradient_payload *gradient_inbox_receive(
    struct gradient_inbox *gradient_inbox, struct link_frame *frame) {
    struct gradient_payload *gradient_payload = gradient_inbox->free;
    if (gradient_payload)
        gradient_inbox->free = gradient_payload->next;
    else
        gradient_payload = malloc(sizeof *gradient_payload);
    if (!gradient_payload)
        return NULL;
    gradient_payload->references = 1;
    if (link_hold(frame, &gradient_payload->held))
        return gradient_payload;
    gradient_inbox_release(gradient_inbox, gradient_payload);
    return NULL;
}

const struct link_bytes *gradient_inbox_payload(
    const struct gradient_payload *gradient_payload) {
    return &gradient_payload->held.payload;
}

void gradient_inbox_release(struct gradient_inbox *gradient_inbox,
                            struct gradient_payload *gradient_payload) {
    if (!gradient_payload || --gradient_payload->references)
        return;
    link_release_held(&gradient_payload->held);
    gradient_payload->next = gradient_inbox->free;
    gradient_inbox->free = gradient_payload;
}

static struct contribution *block_contributions(
    const struct gradient_inbox *gradient_inbox, uint32_t block) {
    return gradient_inbox->contributions +
           (size_t)block * gradient_inbox->num_ranks;
}

/* The update core accepts a contribution once, so its place is free. */
void gradient_inbox_add(struct gradient_inbox *gradient_inbox, uint32_t block,
                        uint32_t rank,
                        struct gradient_payload *gradient_payload,
                        const void *floats) {
    gradient_payload->references++;
    block_contributions(gradient_inbox, block)[rank] =
        (struct contribution){gradient_payload, floats};
}

static bool gradient_inbox_has_bytes(const struct contribution *contribution) {
    return contribution->gradient_payload && contribution->floats;
}

unsigned gradient_inbox_gather(const struct gradient_inbox *gradient_inbox,
                               uint32_t block, const void **gradients) {
    const struct contribution *all = block_contributions(gradient_inbox, block);
    unsigned count = 0;
    for (uint32_t r = 0; r < gradient_inbox->num_ranks; r++)
        if (gradient_inbox_has_bytes(&all[r]))
            gradients[count++] = all[r].floats;
    return count;
}

uint32_t gradient_inbox_weight(const struct gradient_inbox *gradient_inbox,
                               uint32_t block, const uint32_t *weights) {
    const struct contribution *all = block_contributions(gradient_inbox, block);
    uint32_t sum = 0;
    for (uint32_t r = 0; r < gradient_inbox->num_ranks; r++)
        if (gradient_inbox_has_bytes(&all[r]))
            sum += weights ? weights[r] : 1;
    return sum;
}

unsigned gradient_inbox_detach(struct gradient_inbox *gradient_inbox,
                               uint32_t block, struct gradient_payload **held) {
    struct contribution *all = block_contributions(gradient_inbox, block);
    unsigned count = 0;
    for (uint32_t r = 0; r < gradient_inbox->num_ranks; r++) {
        if (all[r].gradient_payload)
            held[count++] = all[r].gradient_payload;
        all[r] = (struct contribution){0};
    }
    return count;
}
