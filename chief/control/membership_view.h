/* SPDX-License-Identifier: Apache-2.0 */
/* Views: which trainers contribute, and from which clock. A view goes to the ps
 * first. A trainer starts once every ps has the view that lists it, so that no
 * ps refuses it as an unknown peer. Pure. */
#ifndef CAPSTAN_MEMBERSHIP_VIEW_H
#define CAPSTAN_MEMBERSHIP_VIEW_H

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
 * not admitted yet) and which may have LEFT the training loop. */
struct membership_view_entry membership_view_make_entry(uint64_t incarnation,
                                                        uint64_t from,
                                                        bool left);

/* May a trainer with first clock FROM start? REPORTED: it has the view already.
 * OLDEST: the oldest view that any ps has; NEWEST: the current view. */
bool membership_view_may_start(uint64_t from, bool reported, uint64_t oldest,
                               uint64_t newest);

#endif
