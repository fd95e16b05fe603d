/* SPDX-License-Identifier: Apache-2.0 */
/* A run that takes no step: for how long, whom it waits for, and what that has
 * cost its trainers. */
#ifndef CAPSTAN_STALL_H
#define CAPSTAN_STALL_H

#include "chief/run.h"

/* Looks whether the run has taken a step, and who is silent if not: run->stall,
 * and run->lost_time when it goes on. Several times a second. */
void stall_update(struct run *run, int64_t now);

/* Seconds without a step, where that is more than usual, and in TEXT why
 * ("waiting for worker 1", "": not known); else 0. */
double stall_seconds(const struct run *run, int64_t now, char *text,
                     size_t size);

#endif
