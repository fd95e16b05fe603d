/* SPDX-License-Identifier: Apache-2.0 */
/* Lines for people, on standard error: time, role and index, then the text.
 * One write a line, so that several processes may share a terminal; there a
 * line first clears the progress bar it lands on. */
#ifndef CAPSTAN_LOG_H
#define CAPSTAN_LOG_H

#include "proto/base/status.h"

#include <stdbool.h>

struct log {
    char source[32]; /* "ps 1", "chief" */
    bool terminal;
    bool quiet; /* no info, only what is wrong */
};

/* Names the speaker. INDEX < 0 is left out. */
void log_open(struct log *log, const char *role, int index);

/* LOG may be NULL: silence. */
void log_info(const struct log *log, const char *format, ...) PRINTF_LIKE(2, 3);
void log_warning(const struct log *log, const char *format, ...)
    PRINTF_LIKE(2, 3);
void log_error(const struct log *log, const char *format, ...)
    PRINTF_LIKE(2, 3);

/* WHY as an error, and empties it: it has been said. */
void log_failure(const struct log *log, struct failure *why);

#endif
