/* SPDX-License-Identifier: Apache-2.0 */
/* Who trains, as a view lists it: told to the ps, and by them to who may start.
 */
#ifndef CAPSTAN_MEMBERSHIP_BROADCAST_H
#define CAPSTAN_MEMBERSHIP_BROADCAST_H

#include "chief/run.h"

/* A new view to all ps; trainers that it newly lists get it once every ps has
 * it (membership_broadcast_acknowledged). */
void membership_broadcast_view(struct run *run);

/* A ps has acknowledged a view: once all have the newest, trainers that it
 * newly lists get it. */
void membership_broadcast_acknowledged(struct run *run);

#endif
