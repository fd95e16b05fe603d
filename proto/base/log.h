/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines on standard error: time, role and index, then the text. Each line
 * is one write, so that several processes may share a terminal; there a line
 * first clears the progress bar that it lands on. */
#ifndef CAPSTAN_LOG_H
#define CAPSTAN_LOG_H

#include "proto/base/status.h"

#include <stdbool.h>

struct log {
    char source[32]; /* "ps 1", "chief" */
    bool terminal;
    bool quiet; /* warnings and errors only */
};

/* Sets the source's name. INDEX < 0 is left out. */
void log_open(struct log *log, const char *role, int index);

/* LOG may be NULL: nothing is written. */
void log_info(const struct log *log, const char *format, ...) PRINTF_LIKE(2, 3);
void log_warning(const struct log *log, const char *format, ...)
    PRINTF_LIKE(2, 3);
void log_error(const struct log *log, const char *format, ...)
    PRINTF_LIKE(2, 3);

/* Logs WHY as an error and empties it, so that it is logged once. */
void log_failure(const struct log *log, struct failure *why);

#endif
