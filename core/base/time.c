/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/time.h"

#include <errno.h>
#include <limits.h>
#include <time.h>

int64_t time_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * TIME_S + now.tv_nsec;
}

double time_calendar(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

int64_t time_from_seconds(double seconds) {
    double nanoseconds = seconds * 1e9;
    return nanoseconds < 9e18 ? (int64_t)nanoseconds : TIME_NEVER;
}

double time_to_seconds(int64_t nanoseconds) {
    return (double)nanoseconds * 1e-9;
}

bool time_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                    int64_t until) {
    struct timespec at = {until / TIME_S, until % TIME_S};
    if (until == TIME_NEVER)
        return !pthread_cond_wait(cond, mutex);
    return pthread_cond_clockwait(cond, mutex, CLOCK_MONOTONIC, &at) !=
           ETIMEDOUT;
}

int time_poll_ms(int64_t now, int64_t deadline) {
    if (deadline == TIME_NEVER)
        return -1;
    if (deadline <= now)
        return 0;
    int64_t wait = (deadline - now + TIME_MS - 1) / TIME_MS;
    return wait < INT_MAX ? (int)wait : INT_MAX;
}
