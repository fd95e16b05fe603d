/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/waiter.h"

#include "core/base/time.h"

#include <errno.h>
#include <time.h>

void waiter_open(struct waiter *waiter) {
    pthread_mutex_init(&waiter->mutex, NULL);
    pthread_cond_init(&waiter->changed, NULL);
    waiter->cancelled = false;
}

void waiter_close(struct waiter *waiter) {
    pthread_mutex_destroy(&waiter->mutex);
    pthread_cond_destroy(&waiter->changed);
}

void waiter_enter(struct waiter *waiter) {
    pthread_mutex_lock(&waiter->mutex);
}

void waiter_leave(struct waiter *waiter) {
    pthread_mutex_unlock(&waiter->mutex);
}

void waiter_leave_changed(struct waiter *waiter) {
    pthread_cond_broadcast(&waiter->changed);
    pthread_mutex_unlock(&waiter->mutex);
}

bool waiter_wait(struct waiter *waiter, int64_t until, int64_t *waited) {
    struct timespec at = {until / TIME_S, until % TIME_S};
    int64_t start = time_now();
    if (waiter->cancelled)
        return false;
    int error = until == TIME_NEVER
                    ? pthread_cond_wait(&waiter->changed, &waiter->mutex)
                    : pthread_cond_clockwait(&waiter->changed, &waiter->mutex,
                                             CLOCK_MONOTONIC, &at);
    if (waited)
        *waited += time_now() - start;
    return error != ETIMEDOUT && !waiter->cancelled;
}

void waiter_cancel(struct waiter *waiter) {
    waiter_enter(waiter);
    waiter->cancelled = true;
    waiter_leave_changed(waiter);
}

bool waiter_is_cancelled(struct waiter *waiter) {
    waiter_enter(waiter);
    bool cancelled = waiter->cancelled;
    waiter_leave(waiter);
    return cancelled;
}
