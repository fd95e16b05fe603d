/* SPDX-License-Identifier: Apache-2.0 */
/* When a launcher starts a process again: one that a signal ended, or that
 * cannot go on (138), while its run does. */
#ifndef CAPSTAN_RESTARTS_H
#define CAPSTAN_RESTARTS_H

#include "core/base/log.h"

#include <stdbool.h>
#include <stdint.h>

struct restarts {
    unsigned count; /* within 10 minutes */
    int64_t first;  /* of these */
    int64_t started_at;
    int64_t at;   /* when it is started again; TIME_NEVER: it is not */
    bool follows; /* it was started again */
};

/* The process starts now. */
void restarts_begin(struct restarts *restarts);

/* Has the process whose record (launch_record.h) is RECORD, and that has ended
 * with WAIT_STATUS, a run that may go on with another one? Not if it has closed
 * its run, which ended it, nor if a signal ordered its end, nor if its death
 * ends the run. */
bool restarts_apply(const struct restarts *restarts, int record,
                    int wait_status);

/* The exit code for the end of process NAME, of which RECORD and WAIT_STATUS
 * are as above: 0, which is logged, where a signal has ended it once the run
 * that it led was complete. */
int restarts_exit_code(int record, int wait_status, const char *name,
                       const struct log *log);

/* Logs and sets when process NAME, which has ended with WAIT_STATUS, is started
 * again. False: that was done MOST times already, which is logged. */
bool restarts_next(struct restarts *restarts, const char *name, int wait_status,
                   unsigned most, const struct log *log);

/* The launcher itself has ended process NAME: it is started again at once, and
 * that does not count. */
void restarts_now(struct restarts *restarts, const char *name,
                  const struct log *log);

#endif
