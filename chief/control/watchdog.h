/* SPDX-License-Identifier: Apache-2.0 */
/* Periodic supervision: deadlines, joiners, and snapshots that are due by time
 * or by step. */
#ifndef CAPSTAN_WATCHDOG_H
#define CAPSTAN_WATCHDOG_H

#include "chief/run.h"

/* Call it first in each loop iteration. If this process itself was suspended
 * since the last call, all deadlines are moved by that time. */
void watchdog_check_own_stall(struct run *run, int64_t now);

/* Checks the deadlines of joining and of steps; requests checkpoints and
 * evaluations that are not in the plan. */
void watchdog_step(struct run *run, int64_t now);

/* SLOT's trainer joined during training and has sent its model spec. */
void watchdog_start_joiner(struct run *run, struct roster_slot *slot);

#endif
