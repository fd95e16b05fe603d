/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/base/wait.h"

#include "proto/base/time.h"

#include <stdio.h>

static const int64_t LATE = 3 * TIME_S, TURN = TIME_S;

struct wait wait_for(const char *peer, const char *limit, int64_t since,
                     int64_t longest) {
    int64_t most = TIME_NEVER - 1 - since;
    return (struct wait){peer, limit, since,
                         since + (longest < most ? longest : most)};
}

bool wait_over(const struct wait *wait, int64_t now) {
    return wait->until != TIME_NEVER && now >= wait->until;
}

/* Who beats each second is late then. */
int64_t wait_silence(int64_t limit) {
    return limit / 6 > LATE ? limit / 6 : LATE;
}

void wait_text(const struct wait *wait, int64_t now, char *text, size_t size) {
    int64_t left = wait->until > now ? wait->until - now : 0;
    snprintf(text, size, "waiting for %s since %.0f s, gives up in %.0f s (%s)",
             wait->peer, time_to_seconds(now - wait->since),
             time_to_seconds(left), wait->limit);
}

int64_t wait_stood_still(int64_t before, int64_t now) {
    return before && now - before > TURN ? now - before : 0;
}

void wait_move(int64_t *since, int64_t still, int64_t now) {
    if (*since)
        *since = *since + still < now ? *since + still : now;
}
