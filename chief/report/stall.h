/* SPDX-License-Identifier: Apache-2.0 */
/* Detects stalls: how long the run has taken no step, which peer it waits for,
 * and how much training time that has cost. */
#ifndef CAPSTAN_STALL_H
#define CAPSTAN_STALL_H

#include "chief/control/roster.h"

#include <stddef.h>
#include <stdint.h>

struct run;

/* Training time lost by waiting for peers that sent no heartbeats. */
struct run_wait_loss {
    double seconds, longest;
    char peer[64]; /* of the longest wait */
};

/* How long the run has been at its current step, and a peer that missed its
 * heartbeats meanwhile. */
struct run_stall {
    uint64_t step;
    int64_t since;
    const struct roster_slot *silent; /* or NULL */
    uint32_t waiting;                 /* live trainers that wait for it */
    struct run_wait_loss lost;
};

/* Checks for progress and updates run->stall, and run->stall.lost when a stall
 * ends. Call it several times a second. */
void stall_update(struct run *run, int64_t now);

/* Seconds without a step if that is unusual, else 0. TEXT gets the cause
 * ("waiting for worker 1", "": unknown). */
double stall_seconds(const struct run *run, int64_t now, char *text,
                     size_t size);

#endif
