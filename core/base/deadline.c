/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/deadline.h"

#include "core/base/time.h"

#include <stdio.h>

static const int64_t MIN_SILENCE = 3 * TIME_S, MAX_TURN = TIME_S;

struct deadline deadline_start(const char *peer, const char *limit,
                               int64_t since, int64_t max_duration) {
    int64_t most = TIME_NEVER - 1 - since;
    return (struct deadline){peer, limit, since,
                             since +
                                 (max_duration < most ? max_duration : most)};
}

bool deadline_passed(const struct deadline *deadline, int64_t now) {
    return deadline->until != TIME_NEVER && now >= deadline->until;
}

/* A peer that sends a heartbeat each second is late by then. */
int64_t deadline_warn_after(int64_t limit) {
    return limit / 6 > MIN_SILENCE ? limit / 6 : MIN_SILENCE;
}

void deadline_text(const struct deadline *deadline, int64_t now, char *text,
                   size_t size) {
    int64_t left = deadline->until > now ? deadline->until - now : 0;
    snprintf(text, size, "waiting for %s for %.0f s; gives up in %.0f s (%s)",
             deadline->peer, time_to_seconds(now - deadline->since),
             time_to_seconds(left), deadline->limit);
}

int64_t deadline_stall(int64_t last_turn, int64_t now) {
    return last_turn && now - last_turn > MAX_TURN ? now - last_turn : 0;
}

void deadline_shift(int64_t *since, int64_t stall, int64_t now) {
    if (*since)
        *since = *since + stall < now ? *since + stall : now;
}
