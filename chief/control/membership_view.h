/* SPDX-License-Identifier: Apache-2.0 */
/* Views: who trains, from which clock on. A view goes to the ps first; a
 * trainer may start once every ps has the view that lists it, so that nobody
 * is asked by a stranger. Pure. */
#ifndef CAPSTAN_MEMBERSHIP_VIEW_H
#define CAPSTAN_MEMBERSHIP_VIEW_H

#include <stdbool.h>
#include <stdint.h>

/* What a view says of one rank. */
struct membership_view_entry {
    uint64_t incarnation; /* 0: nobody */
    uint64_t from;        /* clock of its first contribution */
    bool live;            /* awaited: neither dead nor out of the loop */
};

/* How INCARNATION is listed, whose first contribution is FROM (0: it waits to
 * be let in), and who has LEFT the loop. */
struct membership_view_entry membership_view_make_entry(uint64_t incarnation,
                                                        uint64_t from,
                                                        bool left);

/* May a trainer of FROM start that has not been TOLD yet, when the oldest view
 * that any ps has is OLDEST and the newest is NEWEST? */
bool membership_view_may_start(uint64_t from, bool reported, uint64_t oldest,
                               uint64_t newest);

#endif
