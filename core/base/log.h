/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines on standard error: date and local time, role and index, then the
 * text. With CAPSTAN_JSON_LOG=1 in the environment, a JSON object on each line,
 * with the event's name as well (docs/log.md). Each line is one write of at
 * most PIPE_BUF bytes, so that several processes may share a terminal or a
 * pipe; on a terminal a line first clears the progress bar that it lands on. If
 * nothing reads a full pipe or terminal for a second, lines are left out and
 * counted, so that a run does not stop with its reader. */
#ifndef CAPSTAN_LOG_H
#define CAPSTAN_LOG_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>

#define LOG_JSON_VARIABLE "CAPSTAN_JSON_LOG"
/* Set if the chief logs to the same terminal: `capstan local` started both. */
#define LOG_TOGETHER_VARIABLE "CAPSTAN_TOGETHER"

struct log {
    char role[32]; /* "ps" */
    int index;     /* below 0: none */
    bool json;
    bool terminal; /* a person reads it: no lines of JSON */
    bool together; /* log_detail writes only lines of JSON */
    bool quiet;    /* of information only events waiting_for_... */
    bool silent;   /* nothing at all */
};

enum log_format { LOG_FORMAT_UNSET, LOG_FORMAT_TEXT, LOG_FORMAT_JSON };

/* Are lines of logs that are opened now JSON? */
bool log_is_json(void);

/* Sets the variable, for this process and those that it starts; UNSET leaves it
 * as it is. Call before any thread exists. */
void log_set_format(enum log_format format);

/* INDEX < 0 is left out. */
void log_open(struct log *log, const char *role, int index);

/* LOG may be NULL: nothing is written. EVENT names what happened: a literal in
 * snake_case that docs/log.md lists, whatever the text says about it. */
void log_info(const struct log *log, const char *event, const char *format, ...)
    PRINTF_LIKE(3, 4);
/* The same of what is as planned, and no news beside the chief's lines. */
void log_detail(const struct log *log, const char *event, const char *format,
                ...) PRINTF_LIKE(3, 4);
void log_warning(const struct log *log, const char *event, const char *format,
                 ...) PRINTF_LIKE(3, 4);
void log_error(const struct log *log, const char *event, const char *format,
               ...) PRINTF_LIKE(3, 4);

/* Writes TEXT, which moves the cursor of a terminal; nothing if the terminal is
 * stopped. */
void log_draw(const char *text);

/* The ending of a noun of which there are COUNT: "s", or nothing of 1. */
const char *log_plural(uint64_t count);

/* Is LINE, of LENGTH bytes, plain text that log_info has written, of any
 * process? */
bool log_is_info(const char *line, size_t length);

/* Logs WHY as the error "failed" and empties it, so that it is logged once. */
void log_failure(const struct log *log, struct failure *why);

/* The same for a process that has no role: "error: " and the text, which keeps
 * its lines. */
void log_failure_of_command(struct failure *why);

#endif
