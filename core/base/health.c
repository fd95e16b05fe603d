/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/health.h"

#include "core/base/time.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t HEALTH_INTERVAL = TIME_S / 10;
static const double LATE_FRACTION = 0.75;

struct health {
    int64_t filled_at; /* role's thread only */
    bool is_chiefs;
    pthread_mutex_t mutex;
    int64_t reported_at; /* 0: never, or the loop was left since */
    struct health_report report;
    char waited_for[sizeof((struct health_report *)0)->waiting_for];
    int64_t waited_since; /* of the last report; 0: it waited for nothing */
    /* Reports of all processes: how many were asked for, and the count that the
     * newest, `answer`, is for. */
    uint64_t asked, answered;
    char *answer;
    struct event_ring events;
};

static void clear_report(struct health_report *report) {
    report->state = HEALTH_JOINING;
    report->run = report->step = report->total_steps = 0;
    report->rank = HEALTH_NONE;
    report->waiting_for[0] = 0;
    report->waiting_since = 0;
    report->deadline = (struct deadline){.until = TIME_NEVER};
    report->num_peers = report->num_samples = 0;
}

struct health *health_open(const char *role, int index) {
    struct health *health = calloc(1, sizeof *health);
    if (!health)
        return NULL;
    health->report.role = role;
    health->report.index = index;
    health->is_chiefs = !strcmp(role, "chief");
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
    free(health->report.samples);
    free(health->answer);
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

struct health_report *health_begin_last(struct health *health) {
    if (!health)
        return NULL;
    pthread_mutex_lock(&health->mutex);
    clear_report(&health->report);
    return &health->report;
}

/* A wait that goes on since an earlier report began there. */
static void date_wait(struct health *health) {
    struct health_report *report = &health->report;
    bool same = !strcmp(report->waiting_for, health->waited_for);
    if (!report->waiting_for[0])
        report->waiting_since = 0;
    else if (!report->waiting_since)
        report->waiting_since = same && health->waited_since
                                    ? health->waited_since
                                    : health->filled_at;
    health->waited_since = report->waiting_since;
    memcpy(health->waited_for, report->waiting_for, sizeof health->waited_for);
}

void health_end(struct health *health) {
    date_wait(health);
    pthread_mutex_unlock(&health->mutex);
}

void health_leave_loop(struct health *health, enum health_state state) {
    if (!health)
        return;
    pthread_mutex_lock(&health->mutex);
    health->reported_at = health->filled_at = 0;
    health->report.state = state;
    health->report.waiting_for[0] = 0;
    health->report.waiting_since = health->waited_since = 0;
    health->report.deadline = (struct deadline){.until = TIME_NEVER};
    pthread_mutex_unlock(&health->mutex);
}

int64_t health_silence(struct health *health, int64_t now) {
    pthread_mutex_lock(&health->mutex);
    int64_t reported_at = health->reported_at;
    pthread_mutex_unlock(&health->mutex);
    return !reported_at ? -1 : now > reported_at ? now - reported_at : 0;
}

void health_note(struct health *health, enum event_kind kind, uint64_t number,
                 const char *role, uint32_t peer) {
    if (health)
        event_ring_add(&health->events,
                       (struct event){time_now(), kind, number, role, peer});
}

unsigned health_events(struct health *health, struct event *events) {
    return event_ring_read(&health->events, events);
}

bool health_is_chiefs(struct health *health) {
    return health->is_chiefs;
}

uint64_t health_ask(struct health *health) {
    pthread_mutex_lock(&health->mutex);
    uint64_t ticket = ++health->asked;
    pthread_mutex_unlock(&health->mutex);
    return ticket;
}

bool health_is_asked(struct health *health) {
    pthread_mutex_lock(&health->mutex);
    bool asked = health->asked > health->answered;
    pthread_mutex_unlock(&health->mutex);
    return asked;
}

void health_answer(struct health *health, char *text) {
    pthread_mutex_lock(&health->mutex);
    free(health->answer);
    health->answer = text;
    health->answered = health->asked;
    pthread_mutex_unlock(&health->mutex);
}

char *health_take_answer(struct health *health, uint64_t ticket) {
    pthread_mutex_lock(&health->mutex);
    char *text = health->answer && health->answered >= ticket
                     ? strdup(health->answer)
                     : NULL;
    pthread_mutex_unlock(&health->mutex);
    return text;
}

/* ITEMS, of SIZE bytes each, with room for one behind COUNT; NULL: no memory,
 * and they stay. */
static void *grow(void *items, uint32_t count, uint32_t *capacity,
                  size_t size) {
    if (count < *capacity)
        return items;
    void *grown = realloc(items, (*capacity * 2 + 8) * size);
    if (grown)
        *capacity = *capacity * 2 + 8;
    return grown;
}

void health_add_peer(struct health_report *report, struct health_peer peer) {
    struct health_peer *peers =
        grow(report->peers, report->num_peers, &report->capacity, sizeof peer);
    if (!peers)
        return;
    report->peers = peers;
    report->peers[report->num_peers++] = peer;
}

void health_add_sample(struct health_report *report, enum metric metric,
                       int64_t rank, double value) {
    struct health_sample *samples =
        grow(report->samples, report->num_samples, &report->samples_capacity,
             sizeof *samples);
    if (samples)
        report->samples = samples;
    if (!samples || isnan(value))
        return;
    if (!strcmp(metric_rows[metric].unit, "seconds"))
        value = fmax(value, 0);
    if (metric_rows[metric].kind == METRIC_COUNTER)
        value = report->counters[metric] =
            fmax(report->counters[metric], value);
    samples[report->num_samples++] =
        (struct health_sample){.metric = metric, .rank = rank, .value = value};
}

double health_sample(const struct health_report *report, enum metric metric) {
    for (uint32_t i = 0; i < report->num_samples; i++)
        if (report->samples[i].metric == metric)
            return report->samples[i].value;
    return NAN;
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
