/* SPDX-License-Identifier: Apache-2.0 */
/* The cores of a simulated host. Threads that have something to compute share
 * them evenly, as under Linux's fair scheduler: k threads on c cores run at
 * min(1, c/k) of a core's speed each (processor sharing). Pure. */
#ifndef CAPSTAN_MACHINE_H
#define CAPSTAN_MACHINE_H

#include "simulator/agenda.h"

#include <stdbool.h>
#include <stdint.h>

struct machine_settings {
    uint32_t cores;   /* >= 1 */
    double crowded;   /* speed of a core when all are busy, of one that is busy
                         alone: below 1 where they share caches and memory */
    uint32_t threads; /* that will run on it at most */
    /* Seconds that begin what a thread does after a sleep: where a core is
     * idle, and wakes too; where all are busy. */
    double wake, turn;
};

struct machine;

/* A thread of a process, in its owner's memory. Its work is one piece at a
 * time; the owner keeps what waits. */
struct machine_thread {
    struct machine *machine;
    double finish; /* in the machine's virtual seconds */
    uint64_t order;
    void (*then)(void *context);
    void *context;
    bool running;
};

/* Borrows AGENDA. NULL: no memory. */
struct machine *machine_open(struct agenda *agenda,
                             const struct machine_settings *settings);

/* Frees *MACHINE (may be NULL) and clears it. */
void machine_close(struct machine **machine);

/* THREAD, which is not running, computes for SECONDS of a core that is busy
 * alone; then THEN(CONTEXT). Unless called from the THEN of its own last piece
 * it has slept, and is woken first. */
void machine_run(struct machine_thread *thread, double seconds,
                 void (*then)(void *context), void *context);

/* Seconds that its cores have been busy, all of them together, until now. */
double machine_busy(struct machine *machine);

#endif
