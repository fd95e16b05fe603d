/* SPDX-License-Identifier: Apache-2.0 */
/* Outcomes. A function that can fail returns an enum status and writes the
 * text for a person into the struct failure its caller lends: what is wrong,
 * where, what was found, what is allowed, what to do. */
#ifndef CAPSTAN_STATUS_H
#define CAPSTAN_STATUS_H

#include <stdarg.h>
#include <stdbool.h>

/* The values are the exit codes of the process. */
enum status {
    STATUS_OK = 0,
    STATUS_FAILED = 1,        /* a retry does not help */
    STATUS_CONFIG = 2,        /* bad configuration */
    STATUS_HUNG_UP = 129,     /* SIGHUP, as SIGTERM below */
    STATUS_INTERRUPTED = 130, /* SIGINT at chief or ps */
    STATUS_RETRY = 138,       /* worth a retry: a peer or a machine failed */
    STATUS_TERMINATED = 143,  /* SIGTERM at chief or ps */
};

struct failure {
    enum status status;
    bool reported;   /* of another, who says it too (status_mark_reported) */
    char text[2048]; /* one or more lines, no final newline */
};

#define MUST_CHECK __attribute__((warn_unused_result))
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))

/* Fills WHY (may be NULL) and returns STATUS, so that a failing function ends
 * in `return status_fail(why, STATUS_CONFIG, "...");`. */
enum status status_fail(struct failure *why, enum status status,
                        const char *format, ...) PRINTF_LIKE(3, 4);

/* STATUS_RETRY where errno value ERROR tells of the machine as it is now
 * (descriptors, memory or threads are short, a disk fails), which may be better
 * at the next try; else OTHERWISE: what is missing or refused stays so. */
enum status status_of_errno(int error, enum status otherwise);

/* Like status_fail with status_of_errno, followed by ": " and the text of
 * ERROR. */
enum status status_errno(struct failure *why, enum status otherwise, int error,
                         const char *format, ...) PRINTF_LIKE(4, 5);

/* Puts "CONTEXT: " before the text in WHY (may be NULL) and returns its
 * status, STATUS_FAILED if WHY is NULL. */
enum status status_context(struct failure *why, const char *format, ...)
    PRINTF_LIKE(2, 3);

/* Marks what is in WHY (may be NULL) as said by who is at fault already: the
 * chief, or whose signal it was. Returns its status, STATUS_FAILED if WHY is
 * NULL. */
enum status status_mark_reported(struct failure *why);

/* What a process ends with whom signal NUMBER ended: SIGHUP, SIGINT, and any
 * other counts as SIGTERM. */
enum status status_of_signal(int number);

#endif
