/* SPDX-License-Identifier: Apache-2.0 */
/* What threads tell each other under a mutex: one changes it and calls
 * waiter_leave_changed, others wait in a loop until it is as they need. */
#ifndef CAPSTAN_WAITER_H
#define CAPSTAN_WAITER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct waiter {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool cancelled;
};

void waiter_open(struct waiter *waiter);

/* No thread may wait any more. */
void waiter_close(struct waiter *waiter);

/* Takes the mutex, and gives it back. */
void waiter_enter(struct waiter *waiter);
void waiter_leave(struct waiter *waiter);

/* Gives the mutex back and wakes all who wait, to look again. */
void waiter_leave_changed(struct waiter *waiter);

/* The mutex is held, and given back while it waits for a change, until UNTIL
 * (TIME_NEVER: without an end) at the latest. *WAITED (may be NULL) grows by
 * the nanoseconds. False: no further wait, as the time has come or the waiter
 * is cancelled. */
bool waiter_wait(struct waiter *waiter, int64_t until, int64_t *waited);

/* Ends all waits, also later ones; from any thread. */
void waiter_cancel(struct waiter *waiter);

/* From any thread that is not inside. */
bool waiter_is_cancelled(struct waiter *waiter);

#endif
