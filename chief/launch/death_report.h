/* SPDX-License-Identifier: Apache-2.0 */
/* What a launcher tells the chief of a run when one of its children has died:
 * how, and in whose name. Only who started a process can say so at once; for
 * all others its silence does. */
#ifndef CAPSTAN_DEATH_REPORT_H
#define CAPSTAN_DEATH_REPORT_H

#include "proto/base/log.h"

#include <stdbool.h>

struct link;

struct death_report {
    void *zmq;               /* with the first that is sent */
    struct link *link;       /* to the chief */
    unsigned unacknowledged; /* deaths that it has not confirmed */
};

/* The child of RECORD (launch_record.h) has ended with WAIT_STATUS: its chief
 * is told, if it was in a run and had not said goodbye; true when the word is
 * on its way. Waits for nothing. Starts threads: no process may be started by
 * fork afterwards. */
bool death_report_send(struct death_report *report, int record, int wait_status,
                       const struct log *log);

/* Waits until the chief has heard all, 2 s at most: it may have ended. */
void death_report_flush(struct death_report *report);

/* Drops what was not heard. */
void death_report_close(struct death_report *report);

#endif
