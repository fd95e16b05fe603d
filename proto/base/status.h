/* SPDX-License-Identifier: Apache-2.0 */
/* Outcomes. A function that can fail returns an enum status and writes a text
 * for people into the caller's struct failure: what is wrong, where, what was
 * found, what is allowed, what to do. */
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
    bool reported;   /* another process reports it (status_mark_reported) */
    char text[2048]; /* one or more lines, no final newline */
};

#define MUST_CHECK __attribute__((warn_unused_result))
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))

/* Fills WHY (may be NULL) and returns STATUS, so that a failing function ends
 * in `return status_fail(why, STATUS_CONFIG, "...");`. */
enum status status_fail(struct failure *why, enum status status,
                        const char *format, ...) PRINTF_LIKE(3, 4);

/* STATUS_RETRY if errno value ERROR is of the present moment (descriptors,
 * memory or threads are short, a disk fails), so that a retry may succeed; else
 * OTHERWISE. */
enum status status_of_errno(int error, enum status otherwise);

/* Like status_fail with status_of_errno, followed by ": " and the text of
 * ERROR. */
enum status status_errno(struct failure *why, enum status otherwise, int error,
                         const char *format, ...) PRINTF_LIKE(4, 5);

/* Puts "CONTEXT: " before the text in WHY (may be NULL) and returns its
 * status, STATUS_FAILED if WHY is NULL. */
enum status status_context(struct failure *why, const char *format, ...)
    PRINTF_LIKE(2, 3);

/* Marks WHY (may be NULL) as already reported by the process at fault: the
 * chief, or the one that was signalled. Returns its status, STATUS_FAILED if
 * WHY is NULL. */
enum status status_mark_reported(struct failure *why);

/* The exit status of a process that signal NUMBER ended: SIGHUP's, SIGINT's,
 * and SIGTERM's for any other. */
enum status status_of_signal(int number);

#endif
