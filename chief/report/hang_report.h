/* SPDX-License-Identifier: Apache-2.0 */
/* Who waits for whom: the chief asks every member, waits HEALTH_ANSWER_S
 * seconds and tells what each process does and which did not answer. It does so
 * when it is asked (SIGQUIT, /report), and before a deadline passes, so that
 * the log has the report in front of the end. Nothing waits for it. */
#ifndef CAPSTAN_HANG_REPORT_H
#define CAPSTAN_HANG_REPORT_H

#include "core/base/health.h"
#include "proto/messages/process_report.h"

#include <stdbool.h>
#include <stdint.h>

struct run;
struct roster_slot;

struct run_hang_report {
    uint64_t id;                     /* of the last request */
    int64_t asked_at;                /* 0: no request is under way */
    struct process_report **answers; /* [roster.count], to the last request;
                                        NULL: none yet */
    bool prints;                     /* once it is complete it is logged */
    int64_t asked_for; /* since when the deadline runs for which it was asked
                          last */
    json_t *newest;    /* NULL: there was none */
    int64_t made_at;   /* the newest */
    int64_t logged_at; /* the last one; 0: none */
    bool end_logged;   /* the end of the run is a deadline's, and logged */
};

/* Asks all members and logs what they answer. */
void hang_report_print(struct run *run, int64_t now);

void hang_report_receive(struct run *run, const struct roster_slot *slot,
                         const Capstan__Report *report);

/* Asks, completes and logs what is due at NOW. */
void hang_report_step(struct run *run, int64_t now);

void hang_report_close(struct run *run);

#endif
