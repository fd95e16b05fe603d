/* SPDX-License-Identifier: Apache-2.0 */
/* Sends views (the list of trainers) to the ps, and then to the trainers that
 * they newly list. */
#ifndef CAPSTAN_MEMBERSHIP_BROADCAST_H
#define CAPSTAN_MEMBERSHIP_BROADCAST_H

#include "chief/run.h"

#include <stdbool.h>
#include <stdint.h>

/* The entry of one rank in a view. */
struct membership_view_entry {
    uint64_t incarnation; /* 0: none */
    uint64_t from;        /* clock of its first contribution */
    bool live; /* its contributions are awaited: it is neither dead nor out of
                  the loop */
};

/* The entry of a trainer with INCARNATION, whose first contribution is FROM (0:
 * not admitted yet) and which may have FINISHED. */
struct membership_view_entry membership_view_make_entry(uint64_t incarnation,
                                                        uint64_t from,
                                                        bool finished);

/* May a trainer with first clock FROM start? REPORTED: it has the view already.
 * OLDEST: the oldest view that any ps has; NEWEST: the current view. */
bool membership_view_may_start(uint64_t from, bool reported, uint64_t oldest,
                               uint64_t newest);

/* Sends a new view to all ps. The trainers that it newly lists get it once
 * every ps has acknowledged it (membership_broadcast_acknowledged). */
void membership_broadcast_view(struct run *run);

/* A ps has acknowledged a view. Once all ps have the newest view, the trainers
 * that it newly lists get it. */
void membership_broadcast_acknowledged(struct run *run);

#endif
