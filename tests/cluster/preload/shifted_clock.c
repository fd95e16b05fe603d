/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded before the C library: the monotonic clock is SHIFTED seconds ahead, as
 * that of a host that was started earlier. What waits until a time of it does
 * so until the same moment. */
#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

enum { SHIFTED = 1000 };

#define SHOWN __attribute__((visibility("default")))

SHOWN int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next)
        next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT,
                                                            "clock_gettime");
    int result = next(id, now);
    if (!result && id == CLOCK_MONOTONIC)
        now->tv_sec += SHIFTED;
    return result;
}

SHOWN int pthread_cond_clockwait(pthread_cond_t *condition,
                                 pthread_mutex_t *mutex, clockid_t id,
                                 const struct timespec *until) {
    int (*next)(pthread_cond_t *, pthread_mutex_t *, clockid_t,
                const struct timespec *) =
        (int (*)(pthread_cond_t *, pthread_mutex_t *, clockid_t,
                 const struct timespec *))dlsym(RTLD_NEXT,
                                                "pthread_cond_clockwait");
    struct timespec at = *until;
    if (id == CLOCK_MONOTONIC)
        at.tv_sec -= SHIFTED;
    return next(condition, mutex, id, &at);
}
