/* SPDX-License-Identifier: Apache-2.0 */
/* What a process of a run does, what it waits for and what it did last: made
 * from its health, sent to the chief that asks, printed for people or as JSON.
 * Every form has the same facts. */
#ifndef CAPSTAN_PROCESS_REPORT_H
#define CAPSTAN_PROCESS_REPORT_H

#include "core/base/health.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "proto/messages/control.pb-c.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PROCESS_REPORT_LINE = 2048 };

struct process_report {
    char name[64];     /* "worker 1" */
    char address[300]; /* "": not known */
    uint32_t pid;      /* 0: not known */
    int64_t rank;      /* or HEALTH_NONE */
    char missing[128]; /* why nothing below is known; "": it is */
    char state[16];
    uint64_t step;
    char waiting_for[512]; /* "": nothing */
    double waiting;        /* seconds */
    char deadline[128];    /* "": none */
    unsigned num_events;
    struct process_report_event {
        double age; /* seconds */
        char text[EVENT_TEXT];
    } events[EVENT_RING_SIZE]; /* the newest first */
};

/* This process's role, at NOW. */
void process_report_of_health(struct process_report *report,
                              struct health *health, int64_t now);

/* Packs the report of HEALTH as the answer to request ID and calls SEND with
 * it. */
void process_report_send(struct health *health, uint64_t id, int64_t now,
                         void (*send)(void *context, Capstan__Control *control),
                         void *context);

/* STATUS_FAILED names the first field of MESSAGE that no report of a process
 * has. */
enum status process_report_check(const Capstan__Report *message,
                                 struct failure *why) MUST_CHECK;

/* Fills in what MESSAGE, which process_report_check has passed, tells. */
void process_report_take(struct process_report *report,
                         const Capstan__Report *message);

/* A new object; NULL: no memory. */
json_t *process_report_json(const struct process_report *report);

/* False: OBJECT is none. */
bool process_report_of_json(struct process_report *report,
                            const json_t *object);

/* "worker 1 (host:port, pid 7): training, step 311, waiting for ...". */
void process_report_line(const struct process_report *report, char *text,
                         size_t size);

/* Logs the line of HEALTH's process as the event hang_report. */
void process_report_log(const struct log *log, struct health *health,
                        int64_t now);

/* The object of a report of several processes, whose ARRAY is taken. */
json_t *process_report_object(json_t *array);

/* The same of the roles of this process, HEALTHS[COUNT]. */
json_t *process_report_of_roles(struct health *const *healths, unsigned count,
                                int64_t now);

/* Calls LINE for each process of OBJECT. False: it is none. */
bool process_report_each_line(const json_t *object,
                              void (*line)(void *context, const char *text),
                              void *context);

#endif
