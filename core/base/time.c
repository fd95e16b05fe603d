/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/time.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

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

int time_poll_ms(int64_t now, int64_t deadline) {
    if (deadline == TIME_NEVER)
        return -1;
    if (deadline <= now)
        return 0;
    int64_t wait = (deadline - now + TIME_MS - 1) / TIME_MS;
    return wait < INT_MAX ? (int)wait : INT_MAX;
}

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

/* The first version of sched_setattr(2)'s struct sched_attr, which glibc before
 * 2.41 does not declare. */
struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

void time_slice_set(int64_t ns) {
    struct attributes own = {0};
    if (syscall(SYS_sched_getattr, 0, &own, sizeof own, 0) ||
        own.policy != SCHED_OTHER)
        return;
    own.runtime = (uint64_t)ns;
    (void)syscall(SYS_sched_setattr, 0, &own, 0);
}
