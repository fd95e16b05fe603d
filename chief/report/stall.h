/* SPDX-License-Identifier: Apache-2.0 */
/* Detects stalls: how long the run has taken no step, which peer it waits for,
 * and how much training time that has cost. */
#ifndef CAPSTAN_STALL_H
#define CAPSTAN_STALL_H

#include "chief/run.h"

/* Checks for progress and updates run->stall, and run->lost_time when a stall
 * ends. Call it several times a second. */
void stall_update(struct run *run, int64_t now);

/* Seconds without a step if that is unusual, else 0. TEXT gets the cause
 * ("waiting for worker 1", "": unknown). */
double stall_seconds(const struct run *run, int64_t now, char *text,
                     size_t size);

#endif
