/* SPDX-License-Identifier: Apache-2.0 */
/* The chief's deadlines: of joining, of steps, of restoring and finishing, and
 * of heartbeats. */
#ifndef CAPSTAN_WATCHDOG_H
#define CAPSTAN_WATCHDOG_H

#include "chief/run.h"
#include "core/base/health.h"

/* Call it first in each loop iteration. If this process itself was suspended
 * since the last call, all deadlines are moved by that time. */
void watchdog_check_own_stall(struct run *run, int64_t now);

/* Adds the deadlines that run at NOW and, before training, what the run waits
 * for. */
void watchdog_report(const struct run *run, struct health_report *report,
                     int64_t now);

/* Warns of what a deadline will end, and ends the run when one has passed. */
void watchdog_step(struct run *run, int64_t now);

#endif
