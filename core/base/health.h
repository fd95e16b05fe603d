/* SPDX-License-Identifier: Apache-2.0 */
/* What a role tells of itself while it runs: its state, its step, its peers and
 * the deadline that is closest. The role's thread fills in the report, ten
 * times a second at most; the thread that serves it reads it. Neither waits for
 * the other for longer than one report takes to write or to read, and the
 * role's thread only where it leaves its loop. */
#ifndef CAPSTAN_HEALTH_H
#define CAPSTAN_HEALTH_H

#include "core/base/event_ring.h"
#include "core/base/metric.h"
#include "core/base/time.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HEALTH_NONE = -1 }; /* of an index or a rank */

enum health_state {
    HEALTH_JOINING,   /* not all members have joined; a member: not welcomed */
    HEALTH_JOINED,    /* not all weights are there */
    HEALTH_TRAINING,  /* or, of an evaluator, evaluating */
    HEALTH_FOLLOWING, /* an evaluator that waits for a checkpoint */
    HEALTH_ENDING,
};

struct health_peer {
    const char *role; /* a literal */
    uint32_t index;
    char address[300]; /* host:port, or "": none is known */
    int64_t last_seen; /* time of its last message; 0: not known */
    const char *state; /* a literal, as the chief sees it; NULL: not known */
    uint64_t step;     /* that it has reached; 0: not known */
    /* Of a trainer, since its start; all 0: not known. */
    struct {
        double input, compute, waiting, training;
    } seconds;
};

struct health_sample {
    enum metric metric;
    int64_t rank; /* of a metric by rank, else HEALTH_NONE */
    double value;
};

struct health_report {
    const char *role; /* a literal */
    int index;        /* or HEALTH_NONE */
    enum health_state state;
    uint64_t run;          /* 0: none joined */
    int64_t rank;          /* or HEALTH_NONE */
    uint64_t step;         /* that the run, or here the role, has completed */
    uint64_t total_steps;  /* 0: not known; UINT64_MAX: without an end */
    char waiting_for[512]; /* "": nothing */
    /* Since when it waits; 0: health_end sets it, to the first report with the
     * same text. */
    int64_t waiting_since;
    /* Of all deadlines that were added the one of which the largest fraction
     * has passed; `until` TIME_NEVER: there is none. Its strings are below. */
    struct deadline deadline;
    char peer[512], limit[64];
    struct health_peer *peers; /* [num_peers] */
    uint32_t num_peers, capacity;
    struct health_sample *samples; /* [num_samples] */
    uint32_t num_samples, samples_capacity;
    double counters[METRIC_COUNT]; /* the highest values since the start */
};

struct health;

/* ROLE (a literal) INDEX (HEALTH_NONE: it has none). NULL: no memory. */
struct health *health_open(const char *role, int index);

/* Frees *HEALTH (may be NULL) and clears it. */
void health_close(struct health **health);

/* Role's thread: the report to fill in at NOW, empty, until health_end. NULL:
 * it is not due, it is being read, or HEALTH is NULL. */
struct health_report *health_begin(struct health *health, int64_t now);
void health_end(struct health *health);

/* Role's thread, out of its loop: as health_begin, but it is always due and
 * waits for who reads. Its silence still says nothing. NULL: HEALTH is. */
struct health_report *health_begin_last(struct health *health);

/* Role's thread: it leaves its loop, for the end or for long work, in STATE,
 * waiting for nothing. Until its next report, which is due at once, its silence
 * says nothing. HEALTH may be NULL. */
void health_leave_loop(struct health *health, enum health_state state);

/* Any thread: the time since the last report at NOW; -1: there is none yet, or
 * the role's thread has left its loop. */
int64_t health_silence(struct health *health, int64_t now);

/* Any thread: an event for the ring, now; NUMBER and the peer as of struct
 * event. HEALTH may be NULL. */
void health_note(struct health *health, enum event_kind kind, uint64_t number,
                 const char *role, uint32_t peer);

/* The ring's events, as event_ring_read. */
unsigned health_events(struct health *health, struct event *events);

/* Is it the chief's? */
bool health_is_chiefs(struct health *health);

/* Any thread: asks the chief's thread for a report of all processes, which it
 * gives within HEALTH_ANSWER_S seconds; a ticket for health_answer. */
enum { HEALTH_ANSWER_S = 2 };
uint64_t health_ask(struct health *health);

/* Chief's thread: was a report asked for since the last one was given? */
bool health_is_asked(struct health *health);

/* Chief's thread: the report asked for until now; TEXT is malloc's, and
 * HEALTH's from now on. */
void health_answer(struct health *health, char *text);

/* A copy of the report for TICKET, which the caller frees; NULL: it is not
 * there. */
char *health_take_answer(struct health *health, uint64_t ticket);

/* Adds a peer; its strings are copied except ROLE and STATE. Without memory it
 * is left out. */
void health_add_peer(struct health_report *report, struct health_peer peer);

/* Adds METRIC's VALUE, nothing for a NAN; of a counter that has been higher the
 * highest; of seconds since what came after the report's time 0. RANK:
 * HEALTH_NONE unless it is by rank. Without memory it is left out. */
void health_add_sample(struct health_report *report, enum metric metric,
                       int64_t rank, double value);

/* METRIC's value, not by rank; NAN: there is none. */
double health_sample(const struct health_report *report, enum metric metric);

/* DEADLINE replaces the report's if more of it has passed at NOW. Its strings
 * are copied; its limit up to the first comma. */
void health_add_deadline(struct health_report *report,
                         const struct deadline *deadline, int64_t now);

/* Any thread: views the report until health_unlock. */
const struct health_report *health_lock(struct health *health);
void health_unlock(struct health *health);

/* Has more than three quarters of the time until the report's deadline passed
 * at NOW? */
bool health_is_late(const struct health_report *report, int64_t now);

/* "joining", "joined", "training", ... */
const char *health_state_name(enum health_state state);

#endif
