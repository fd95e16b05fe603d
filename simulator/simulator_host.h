/* SPDX-License-Identifier: Apache-2.0 */
/* The cores of a simulated host. Threads share them evenly, as under Linux's
 * fair scheduler: k threads on c cores run at min(1, c/k) of a core's speed
 * (processor sharing). Pure. */
#ifndef CAPSTAN_SIMULATOR_HOST_H
#define CAPSTAN_SIMULATOR_HOST_H

#include "simulator/timeline.h"

#include <stdbool.h>
#include <stdint.h>

struct simulator_host_settings {
    uint32_t cores;             /* >= 1 */
    double parallel_efficiency; /* speed of a core when all are busy, relative
                                   to one busy alone: below 1 if they share
                                   caches and memory */
    uint32_t threads;           /* largest number of threads */
    /* Seconds to wake a sleeping thread: on an idle core, which wakes too;
     * while all cores are busy. */
    double idle_wakeup, busy_wakeup;
};

struct simulator_host;

/* A thread of a process, in its owner's memory. It has one piece of work at a
 * time; the owner queues the rest. */
struct simulator_host_thread {
    struct simulator_host *simulator_host;
    double finish; /* in the host's virtual seconds */
    uint64_t order;
    void (*callback)(void *context);
    void *context;
    bool running;
};

/* Borrows TIMELINE. NULL: no memory. */
struct simulator_host *simulator_host_open(
    struct timeline *timeline, const struct simulator_host_settings *settings);

/* Frees *HOST (may be NULL) and clears it. */
void simulator_host_close(struct simulator_host **host);

/* THREAD, which is not running, computes for SECONDS of a core that is busy
 * alone; then CALLBACK(CONTEXT) is called. Unless this is called from CALLBACK
 * of its previous piece, the thread has slept and is woken first. */
void simulator_host_run(struct simulator_host_thread *thread, double seconds,
                        void (*callback)(void *context), void *context);

/* Seconds for which its cores have been busy, summed over the cores. */
double simulator_host_busy(struct simulator_host *host);

#endif
