/* SPDX-License-Identifier: Apache-2.0 */
/* What the chief sees to while others work: deadlines, joiners, and what is
 * due by time or by step. */
#ifndef CAPSTAN_WATCHDOG_H
#define CAPSTAN_WATCHDOG_H

#include "chief/run.h"

/* First of all at NOW: if this process stood still since the last time, that
 * time is on nobody's account. No deadline that began before it comes nearer.
 */
void watchdog_check_own_stall(struct run *run, int64_t now);

/* Deadlines of joining and of steps; checkpoints and evaluations that do not
 * stand in the plan. */
void watchdog_step(struct run *run, int64_t now);

/* SLOT's trainer came in the middle of the run and has declared. */
void watchdog_start_joiner(struct run *run, struct roster_slot *slot);

#endif
