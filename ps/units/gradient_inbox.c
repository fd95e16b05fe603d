/* SPDX-License-Identifier: Apache-2.0 */
/* One message may hold several blocks, each updated at its own time. Its
 * payload is reference-counted: one reference for each contribution in it, and
 * one for the handler that reads it. One thread does all this. */
#include "ps/units/gradient_inbox.h"

#include "proto/plan/optimizer_group.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct gradient_payload {
    struct gradient_payload *next; /* in the free list */
    struct link_held held;
    unsigned references;
    struct gradient_origin origin;
    struct group_values {
        bool given;
        double values[OPTIMIZER_VALUES];
    } groups[]; /* [num_groups] */
};

struct inbox_entry {
    struct gradient_payload *gradient_payload; /* NULL: none */
    const void *floats;                        /* NULL: a push without bytes */
    uint32_t size;                             /* of `floats`, in bytes */
    bool counts;                               /* in the divisor of the mean */
    struct link_bytes assigned;                /* rows to set; size 0: none */
};

struct gradient_inbox {
    uint32_t num_blocks, num_ranks, num_groups;
    struct inbox_entry *contributions; /* [num_blocks, num_ranks] */
    struct gradient_payload *free;
};

struct gradient_inbox *gradient_inbox_open(uint32_t num_blocks,
                                           uint32_t num_ranks,
                                           uint32_t num_groups) {
    struct gradient_inbox *inbox = calloc(1, sizeof *inbox);
    if (!inbox)
        return NULL;
    inbox->num_blocks = num_blocks;
    inbox->num_ranks = num_ranks;
    inbox->num_groups = num_groups;
    inbox->contributions = calloc((size_t)num_blocks * num_ranks + 1,
                                  sizeof *inbox->contributions);
    if (!inbox->contributions)
        gradient_inbox_close(&inbox);
    return inbox;
}

void gradient_inbox_close(struct gradient_inbox **where) {
    struct gradient_inbox *inbox = *where;
    *where = NULL;
    if (!inbox)
        return;
    size_t cells = (size_t)inbox->num_blocks * inbox->num_ranks;
    for (size_t i = 0; inbox->contributions && i < cells; i++)
        gradient_inbox_release(inbox, inbox->contributions[i].gradient_payload);
    while (inbox->free) {
        struct gradient_payload *payload = inbox->free;
        inbox->free = payload->next;
        free(payload);
    }
    free(inbox->contributions);
    free(inbox);
}

struct gradient_payload *gradient_inbox_receive(struct gradient_inbox *inbox,
                                                struct link_frame *frame) {
    struct gradient_payload *payload = inbox->free;
    if (payload)
        inbox->free = payload->next;
    else
        payload = malloc(sizeof *payload +
                         inbox->num_groups * sizeof *payload->groups);
    if (!payload)
        return NULL;
    payload->references = 1;
    payload->origin = (struct gradient_origin){0};
    for (uint32_t g = 0; g < inbox->num_groups; g++)
        payload->groups[g].given = false;
    if (link_hold(frame, &payload->held))
        return payload;
    gradient_inbox_release(inbox, payload);
    return NULL;
}

void gradient_inbox_set_origin(struct gradient_payload *payload,
                               struct gradient_origin origin) {
    payload->origin = origin;
}

struct gradient_origin gradient_inbox_origin(
    const struct gradient_payload *payload) {
    return payload->origin;
}

const struct link_bytes *gradient_inbox_payload(
    const struct gradient_payload *payload) {
    return &payload->held.payload;
}

void gradient_inbox_release(struct gradient_inbox *inbox,
                            struct gradient_payload *payload) {
    if (!payload || --payload->references)
        return;
    link_release_held(&payload->held);
    payload->next = inbox->free;
    inbox->free = payload;
}

static struct inbox_entry *block_contributions(
    const struct gradient_inbox *inbox, uint32_t block) {
    return inbox->contributions + (size_t)block * inbox->num_ranks;
}

/* The update core accepts a contribution once, so its place is free. */
void gradient_inbox_add(struct gradient_inbox *inbox, uint32_t block,
                        uint32_t rank, struct gradient_payload *payload,
                        struct link_bytes bytes, bool counts) {
    payload->references++;
    block_contributions(inbox, block)[rank] =
        (struct inbox_entry){.gradient_payload = payload,
                             .floats = bytes.data,
                             .size = (uint32_t)bytes.size,
                             .counts = counts};
}

void gradient_inbox_assign(struct gradient_inbox *inbox, uint32_t block,
                           uint32_t rank, struct link_bytes rows) {
    block_contributions(inbox, block)[rank].assigned = rows;
}

unsigned gradient_inbox_assigned(const struct gradient_inbox *inbox,
                                 uint32_t block, struct link_bytes *rows) {
    const struct inbox_entry *all = block_contributions(inbox, block);
    unsigned count = 0;
    for (uint32_t r = 0; r < inbox->num_ranks; r++)
        if (all[r].gradient_payload && all[r].assigned.size)
            rows[count++] = all[r].assigned;
    return count;
}

static bool gradient_inbox_has_bytes(const struct inbox_entry *contribution) {
    return contribution->gradient_payload && contribution->floats;
}

void gradient_inbox_set_values(struct gradient_payload *payload, uint32_t group,
                               const double *values) {
    payload->groups[group].given = true;
    memcpy(payload->groups[group].values, values,
           sizeof payload->groups[group].values);
}

const double *gradient_inbox_values(const struct gradient_inbox *inbox,
                                    uint32_t block, uint32_t group) {
    const struct inbox_entry *all = block_contributions(inbox, block);
    uint32_t r = 0;
    while (r < inbox->num_ranks && !all[r].gradient_payload)
        r++;
    if (r == inbox->num_ranks || group >= inbox->num_groups ||
        !all[r].gradient_payload->groups[group].given)
        return NULL;
    return all[r].gradient_payload->groups[group].values;
}

unsigned gradient_inbox_gather(const struct gradient_inbox *inbox,
                               uint32_t block, const void **gradients,
                               uint32_t *sizes, uint32_t *ranks) {
    const struct inbox_entry *all = block_contributions(inbox, block);
    unsigned count = 0;
    for (uint32_t r = 0; r < inbox->num_ranks; r++) {
        if (!gradient_inbox_has_bytes(&all[r]))
            continue;
        sizes[count] = all[r].size;
        ranks[count] = r;
        gradients[count++] = all[r].floats;
    }
    return count;
}

uint32_t gradient_inbox_weight(const struct gradient_inbox *inbox,
                               uint32_t block, const uint32_t *weights) {
    const struct inbox_entry *all = block_contributions(inbox, block);
    uint32_t sum = 0;
    for (uint32_t r = 0; r < inbox->num_ranks; r++)
        if (all[r].counts)
            sum += weights ? weights[r] : 1;
    return sum;
}

unsigned gradient_inbox_detach(struct gradient_inbox *inbox, uint32_t block,
                               struct gradient_payload **held) {
    struct inbox_entry *all = block_contributions(inbox, block);
    unsigned count = 0;
    for (uint32_t r = 0; r < inbox->num_ranks; r++) {
        if (all[r].gradient_payload)
            held[count++] = all[r].gradient_payload;
        all[r] = (struct inbox_entry){0};
    }
    return count;
}
