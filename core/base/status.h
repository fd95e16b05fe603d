/* SPDX-License-Identifier: Apache-2.0 */
/* Outcomes. A function that can fail returns an enum status and fills the
 * caller's struct failure: a code for programs, which implies the status, and a
 * text for people: what is wrong, where, what was found, what is allowed, what
 * to do. */
#ifndef CAPSTAN_STATUS_H
#define CAPSTAN_STATUS_H

#include "core/base/failure_codes.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The values are the exit codes of the process. */
enum status {
    STATUS_OK = 0,
    STATUS_FAILED = 1,        /* a retry does not help */
    STATUS_CONFIG = 2,        /* bad configuration */
    STATUS_HUNG_UP = 129,     /* SIGHUP, as SIGTERM below */
    STATUS_INTERRUPTED = 130, /* SIGINT to this process */
    STATUS_RETRY = 138,       /* worth a retry: a peer or a machine failed */
    STATUS_TERMINATED = 143,  /* SIGTERM to this process */
};

/* A cause; failure_codes.h lists them. */
enum failure_code {
    FAILURE_NONE = 0,
#define FAILURE_CODE(number, name, status, meaning) FAILURE_##name = number,
    FAILURE_CODES(FAILURE_CODE)
#undef FAILURE_CODE
};

struct failure {
    enum failure_code code;
    bool reported;   /* another process reports it (status_mark_reported) */
    char text[2048]; /* one or more lines, no final newline */
};

#define MUST_CHECK __attribute__((warn_unused_result))
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))

/* The exit status that CODE implies; STATUS_OK of FAILURE_NONE. */
enum status failure_code_status(enum failure_code code);

/* CODE's stable name, such as "PORT_IN_USE"; "NONE" of FAILURE_NONE. */
const char *failure_code_name(enum failure_code code);

/* Is NUMBER, which another process sent, a code? FAILURE_NONE is none. */
bool failure_code_is_known(uint32_t number);

/* The code of errno value ERROR if it is of the present moment (descriptors,
 * memory or threads are short, a disk fails), so that a retry may succeed, or
 * if it names the cause more closely than OTHERWISE with the same status; else
 * OTHERWISE. */
enum failure_code failure_code_of_errno(int error, enum failure_code otherwise);

/* The code of a process that signal NUMBER ended: HUNG_UP for SIGHUP,
 * INTERRUPTED for SIGINT, TERMINATED for any other. */
enum failure_code failure_code_of_signal(int number);

/* Does a process end with CODE because it received a signal itself? */
bool failure_code_is_signal(enum failure_code code);

/* Fills WHY (may be NULL) and returns CODE's status, so that a failing function
 * ends in `return status_fail(why, FAILURE_JOB_INVALID, "...");`. */
enum status status_fail(struct failure *why, enum failure_code code,
                        const char *format, ...) PRINTF_LIKE(3, 4);

/* Like status_fail with failure_code_of_errno, followed by ": " and the text of
 * ERROR. */
enum status status_errno(struct failure *why, enum failure_code otherwise,
                         int error, const char *format, ...) PRINTF_LIKE(4, 5);

/* Puts "CONTEXT: " before the text in WHY (may be NULL), keeps its code and
 * returns its status, STATUS_FAILED if WHY is NULL. */
enum status status_context(struct failure *why, const char *format, ...)
    PRINTF_LIKE(2, 3);

/* Writes NAMES [COUNT] to LIST (SIZE bytes), with a comma between two and
 * control characters as '?'. If not all fit, how many there are is at the end:
 * "a, b, ... (201 in all)". */
void status_list_names(char *list, size_t size, char *const *names,
                       uint32_t count);

/* Marks WHY (may be NULL) as already reported by the process at fault: the
 * chief, or the one that was signalled. Returns its status, STATUS_FAILED if
 * WHY is NULL. */
enum status status_mark_reported(struct failure *why);

/* How a process of WAIT_STATUS ended: "ended with exit code 1", "was killed by
 * signal 9 (Killed)". */
void status_end_text(int wait_status, char *text, size_t size);

#endif
