/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/health.h"

#include "core/base/time.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t HEALTH_INTERVAL = TIME_S / 10;
static const double LATE_FRACTION = 0.75;

struct health {
    int64_t filled_at; /* role's thread only */
    pthread_mutex_t mutex;
    int64_t reported_at; /* 0: never, or the loop was left since */
    struct health_report report;
};

static void clear_report(struct health_report *report) {
    *report = (struct health_report){
        .role = report->role,
        .index = report->index,
        .rank = HEALTH_NONE,
        .deadline = {.until = TIME_NEVER},
        .peers = report->peers,
        .capacity = report->capacity,
    };
}

struct health *health_open(const char *role, int index) {
    struct health *health = calloc(1, sizeof *health);
    if (!health)
        return NULL;
    health->report.role = role;
    health->report.index = index;
    pthread_mutex_init(&health->mutex, NULL);
    clear_report(&health->report);
    return health;
}

void health_close(struct health **where) {
    struct health *health = *where;
    *where = NULL;
    if (!health)
        return;
    pthread_mutex_destroy(&health->mutex);
    free(health->report.peers);
    free(health);
}

struct health_report *health_begin(struct health *health, int64_t now) {
    if (!health || now - health->filled_at < HEALTH_INTERVAL ||
        pthread_mutex_trylock(&health->mutex))
        return NULL;
    health->filled_at = health->reported_at = now;
    clear_report(&health->report);
    return &health->report;
}

void health_end(struct health *health) {
    pthread_mutex_unlock(&health->mutex);
}

void health_leave_loop(struct health *health, enum health_state state) {
    if (!health)
        return;
    pthread_mutex_lock(&health->mutex);
    health->reported_at = health->filled_at = 0;
    health->report.state = state;
    health->report.waiting_for[0] = 0;
    health->report.deadline = (struct deadline){.until = TIME_NEVER};
    pthread_mutex_unlock(&health->mutex);
}

int64_t health_silence(struct health *health, int64_t now) {
    pthread_mutex_lock(&health->mutex);
    int64_t reported_at = health->reported_at;
    pthread_mutex_unlock(&health->mutex);
    return !reported_at ? -1 : now > reported_at ? now - reported_at : 0;
}

void health_add_peer(struct health_report *report, struct health_peer peer) {
    if (report->num_peers == report->capacity) {
        uint32_t capacity = report->capacity * 2 + 8;
        struct health_peer *peers =
            realloc(report->peers, capacity * sizeof *peers);
        if (!peers)
            return;
        report->peers = peers;
        report->capacity = capacity;
    }
    report->peers[report->num_peers++] = peer;
}

static double passed_fraction(const struct deadline *deadline, int64_t now) {
    if (deadline->until == TIME_NEVER)
        return -1;
    int64_t whole = deadline->until - deadline->since;
    return whole > 0 ? (double)(now - deadline->since) / (double)whole : 1;
}

void health_add_deadline(struct health_report *report,
                         const struct deadline *deadline, int64_t now) {
    if (passed_fraction(deadline, now) <=
        passed_fraction(&report->deadline, now))
        return;
    snprintf(report->peer, sizeof report->peer, "%s", deadline->peer);
    snprintf(report->limit, sizeof report->limit, "%.*s",
             (int)strcspn(deadline->limit, ","), deadline->limit);
    report->deadline = *deadline;
    report->deadline.peer = report->peer;
    report->deadline.limit = report->limit;
}

const struct health_report *health_lock(struct health *health) {
    pthread_mutex_lock(&health->mutex);
    return &health->report;
}

void health_unlock(struct health *health) {
    pthread_mutex_unlock(&health->mutex);
}

bool health_is_late(const struct health_report *report, int64_t now) {
    return passed_fraction(&report->deadline, now) > LATE_FRACTION;
}

const char *health_state_name(enum health_state state) {
    static const char *const names[] = {
        [HEALTH_JOINING] = "joining",   [HEALTH_JOINED] = "joined",
        [HEALTH_TRAINING] = "training", [HEALTH_FOLLOWING] = "following",
        [HEALTH_ENDING] = "ending",
    };
    return names[state];
}
