/* SPDX-License-Identifier: Apache-2.0 */
/* A wait as people are told of it: for whom, since when, until when, and by
 * which setting. */
#ifndef CAPSTAN_DEADLINE_H
#define CAPSTAN_DEADLINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct deadline {
    const char *peer;     /* "ps 1 at host:port"; borrowed */
    const char *limit;    /* "timeouts.step" */
    int64_t since, until; /* TIME_NEVER: nothing is awaited */
};

/* From SINCE on for at most LONGEST ns. */
struct deadline deadline_start(const char *peer, const char *limit,
                               int64_t since, int64_t max_duration);

/* Is it over at NOW, in vain? */
bool deadline_passed(const struct deadline *deadline, int64_t now);

/* "waiting for PEER since 12 s, gives up in 18 s (LIMIT)". */
void deadline_text(const struct deadline *deadline, int64_t now, char *text,
                   size_t size);

/* Nanoseconds of silence that are told, of those that count as death at
 * LIMIT. */
int64_t deadline_warn_after(int64_t limit);

/* A loop takes several turns a second. Of the time from its last turn, at
 * BEFORE (0: none), to NOW, what the process stood still: stopped, starved, or
 * with a machine that was; 0: it did not. That time counts for nobody's
 * silence. */
int64_t deadline_stall(int64_t last_turn, int64_t now);

/* Moves SINCE (0: unset), at which a wait began before a standstill of STILL,
 * past it, to NOW at most. */
void deadline_shift(int64_t *since, int64_t stall, int64_t now);

#endif
