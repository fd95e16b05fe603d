/* SPDX-License-Identifier: Apache-2.0 */
/* The cores of a simulated host. Threads that have something to compute share
 * them evenly, as under Linux's fair scheduler: k threads on c cores run at
 * min(1, c/k) of a core's speed each (processor sharing). Pure. */
#ifndef CAPSTAN_SIMULATOR_HOST_H
#define CAPSTAN_SIMULATOR_HOST_H

#include "simulator/timeline.h"

#include <stdbool.h>
#include <stdint.h>

struct simulator_host_settings {
    uint32_t cores; /* >= 1 */
    double
        parallel_efficiency; /* speed of a core when all are busy, of one that
                    is busy alone: below 1 where they share caches and memory */
    uint32_t threads;        /* that will run on it at most */
    /* Seconds that begin what a thread does after a sleep: where a core is
     * idle, and wakes too; where all are busy. */
    double idle_wakeup, busy_wakeup;
};

struct simulator_host;

/* A thread of a process, in its owner's memory. Its work is one piece at a
 * time; the owner keeps what waits. */
struct simulator_host_thread {
    struct simulator_host *simulator_host;
    double finish; /* in the machine's virtual seconds */
    uint64_t order;
    void (*callback)(void *context);
    void *context;
    bool running;
};

/* Borrows AGENDA. NULL: no memory. */
struct simulator_host *simulator_host_open(
    struct timeline *timeline, const struct simulator_host_settings *settings);

/* Frees *MACHINE (may be NULL) and clears it. */
void simulator_host_close(struct simulator_host **simulator_host);

/* THREAD, which is not running, computes for SECONDS of a core that is busy
 * alone; then THEN(CONTEXT). Unless called from the THEN of its own last piece
 * it has slept, and is woken first. */
void simulator_host_run(struct simulator_host_thread *thread, double seconds,
                        void (*callback)(void *context), void *context);

/* Seconds that its cores have been busy, all of them together, until now. */
double simulator_host_busy(struct simulator_host *simulator_host);

#endif
