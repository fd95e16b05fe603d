/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded before the C library: each second the clock of the calendar jumps, by
 * two hours ahead and two hours back in turn. */
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

enum { HOUR = 3600 };

#define SHOWN __attribute__((visibility("default")))

static int next_gettime(clockid_t id, struct timespec *now) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next)
        next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT,
                                                            "clock_gettime");
    return next(id, now);
}

SHOWN int clock_gettime(clockid_t id, struct timespec *now) {
    struct timespec started;
    int result = next_gettime(id, now);
    if (result || id != CLOCK_REALTIME)
        return result;
    next_gettime(CLOCK_MONOTONIC, &started);
    now->tv_sec += started.tv_sec % 2 ? HOUR : -HOUR;
    return 0;
}

SHOWN int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec jumped;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &jumped);
    now->tv_sec = jumped.tv_sec;
    now->tv_usec = jumped.tv_nsec / 1000;
    return 0;
}

SHOWN time_t time(time_t *now) {
    struct timespec jumped;
    clock_gettime(CLOCK_REALTIME, &jumped);
    if (now)
        *now = jumped.tv_sec;
    return jumped.tv_sec;
}
