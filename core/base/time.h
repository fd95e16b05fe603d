/* SPDX-License-Identifier: Apache-2.0 */
/* Time as a number: nanoseconds of the monotonic clock. Pure cores take it as
 * an argument; only event loops read it. */
#ifndef CAPSTAN_TIME_H
#define CAPSTAN_TIME_H

#include <stdbool.h>
#include <stddef.h>
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

/* Milliseconds from NOW to DEADLINE for poll(2): rounded up, 0 if it has
 * passed, at most INT_MAX, -1 for TIME_NEVER. */
int time_poll_ms(int64_t now, int64_t deadline);

/* A wait with a limit, and its text for people: the peer, since when, until
 * when, by which setting. */
struct deadline {
    const char *peer;     /* "ps 1 at host:port"; borrowed */
    const char *limit;    /* "timeouts.step" */
    int64_t since, until; /* TIME_NEVER: nothing is awaited */
};

/* A wait from SINCE on for at most MAX_DURATION ns. */
struct deadline deadline_start(const char *peer, const char *limit,
                               int64_t since, int64_t max_duration);

/* Has the limit passed at NOW? */
bool deadline_passed(const struct deadline *deadline, int64_t now);

/* "waiting for PEER for 12 s; gives up in 18 s (LIMIT)". */
void deadline_text(const struct deadline *deadline, int64_t now, char *text,
                   size_t size);

/* Nanoseconds of silence after which to warn, if LIMIT ns of silence end the
 * wait. */
int64_t deadline_warn_after(int64_t limit);

/* How long this process stood still between its last loop turn at LAST_TURN (0:
 * none) and NOW: stopped, starved, or on a paused machine. 0: it did not, as a
 * loop takes several turns a second. No deadline counts that time. */
int64_t deadline_stall(int64_t last_turn, int64_t now);

/* Moves SINCE (0: unset), the start of a wait, by a standstill of STALL ns, but
 * not past NOW. */
void deadline_shift(int64_t *since, int64_t stall, int64_t now);

/* How long a thread runs before another one that waits for its processor. A
 * thread that is woken to pass on a message, and asks for short slices, runs at
 * once in place of one that computes; else its message waits until that one's
 * slice is over. Linux 6.12 and later; others do not read it.
 *
 * Sets slices of NS nanoseconds, 100,000 at least, for the calling thread and
 * those that it starts from now on; 0: the kernel's own. Needs no rights; does
 * nothing for a thread of another scheduling policy, or where it is not
 * allowed. */
void time_slice_set(int64_t ns);

#endif
