/* SPDX-License-Identifier: Apache-2.0 */
/* What the network passes, measured before the first view: rank 0 and one ps
 * send each other bytes while nobody trains, so that no two pairs meet on a
 * link. One pair speaks for all, as the bound takes every host's link to be
 * alike. */
#ifndef CAPSTAN_BANDWIDTH_PROBE_H
#define CAPSTAN_BANDWIDTH_PROBE_H

#include "chief/run.h"

/* Is all about the network known that will be? Asks for a measurement when the
 * rate was not given and every ps and trainer is listed with a host of its own,
 * and gives up waiting after a second. */
bool bandwidth_probe_is_done(struct run *run, int64_t now);

/* Gbit/s that all trainers together passed to and from ps 0 at once, when each
 * has told its share; NAN: not known. Asked in a series alone. */
double bandwidth_probe_aggregate_gbits(const struct run *run);

/* Rank 0's answer, or each trainer's; what is out of range, or was not asked
 * for, is left. */
void bandwidth_probe_receive(struct run *run, const struct roster_slot *slot,
                             const Capstan__Measured *measured);

#endif
