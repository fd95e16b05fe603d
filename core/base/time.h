/* SPDX-License-Identifier: Apache-2.0 */
/* Time as a number: nanoseconds of the monotonic clock. Pure cores take it as
 * an argument; only event loops read it. */
#ifndef CAPSTAN_TIME_H
#define CAPSTAN_TIME_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define TIME_US INT64_C(1000)
#define TIME_MS INT64_C(1000000)
#define TIME_S INT64_C(1000000000)
#define TIME_NEVER INT64_MAX

/* Nanoseconds since an arbitrary start; never decreases. */
int64_t time_now(void);

/* Seconds of the calendar (Unix time), for logs and event files. */
double time_calendar(void);

/* SECONDS (>= 0, may be huge) as nanoseconds, at most TIME_NEVER. */
int64_t time_from_seconds(double seconds);

/* NANOSECONDS as seconds. */
double time_to_seconds(int64_t nanoseconds);

/* pthread_cond_wait until UNTIL (TIME_NEVER: without an end) at the latest;
 * false then. */
bool time_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                    int64_t until);

/* Milliseconds from NOW to DEADLINE for poll(2): rounded up, 0 if it has
 * passed, at most INT_MAX, -1 for TIME_NEVER. */
int time_poll_ms(int64_t now, int64_t deadline);

#endif
