/* SPDX-License-Identifier: Apache-2.0 */
/* Sends views (the list of trainers) to the ps, and then to the trainers that
 * they newly list. */
#ifndef CAPSTAN_MEMBERSHIP_BROADCAST_H
#define CAPSTAN_MEMBERSHIP_BROADCAST_H

#include "chief/run.h"

/* Sends a new view to all ps. The trainers that it newly lists get it once
 * every ps has acknowledged it (membership_broadcast_acknowledged). */
void membership_broadcast_view(struct run *run);

/* A ps has acknowledged a view. Once all ps have the newest view, the trainers
 * that it newly lists get it. */
void membership_broadcast_acknowledged(struct run *run);

#endif
