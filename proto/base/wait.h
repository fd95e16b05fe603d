/* A wait as people are told of it: for whom, since when, until when, and by
 * which setting. */
#ifndef CAPSTAN_WAIT_H
#define CAPSTAN_WAIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct wait {
    const char *peer;     /* "ps 1 at host:port"; borrowed */
    const char *limit;    /* "timeouts.step" */
    int64_t since, until; /* TIME_NEVER: nothing is awaited */
};

/* From SINCE on for at most LONGEST ns. */
struct wait wait_for(const char *peer, const char *limit, int64_t since,
                     int64_t longest);

/* Is it over at NOW, in vain? */
bool wait_over(const struct wait *wait, int64_t now);

/* "waiting for PEER since 12 s, gives up in 18 s (LIMIT)". */
void wait_text(const struct wait *wait, int64_t now, char *text, size_t size);

/* Nanoseconds of silence that are told, of those that count as death at
 * LIMIT. */
int64_t wait_silence(int64_t limit);

#endif
