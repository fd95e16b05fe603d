/* SPDX-License-Identifier: Apache-2.0 */
/* Reports the death of a launcher's child to the chief of its run. Only the
 * parent knows of it at once; others learn it by missed heartbeats. */
#ifndef CAPSTAN_DEATH_REPORT_H
#define CAPSTAN_DEATH_REPORT_H

#include "core/base/log.h"

#include <stdbool.h>

struct link;
struct link_keys;

/* As whom the keys of a run with a secret know all launchers. */
#define DEATH_REPORT_ROLE "observer"

struct death_report {
    void *zmq;               /* opened with the first report */
    struct link_keys *keys;  /* likewise, of the secret that
                                SECRET_FILE_VARIABLE names; NULL: none */
    struct link *link;       /* to the chief */
    unsigned unacknowledged; /* reports that the chief has not confirmed */
};

/* The child of RECORD (launch_record.h) has ended with WAIT_STATUS; LAST: it is
 * not started again. If it was in a run and had not said goodbye, sends a
 * report to its chief and returns true. Does not block. Starts threads: the
 * process must not fork afterwards.
 */
bool death_report_send(struct death_report *report, int record, int wait_status,
                       bool last, const struct log *log);

/* Waits until the chief has confirmed all reports, at most 2 s, since it may
 * have ended. */
void death_report_flush(struct death_report *report);

/* Drops unconfirmed reports. */
void death_report_close(struct death_report *report);

#endif
