/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a program to its end with a deadline and captures its output; a signal
 * to this process ends the program first. */
#ifndef CAPSTAN_SUBPROCESS_H
#define CAPSTAN_SUBPROCESS_H

#include "commands/launch/children.h"
#include "core/base/status.h"

#include <stdbool.h>

/* From subprocess_open to subprocess_close this process takes the signals of
 * children_add_termination_signals, and ignores SIGUSR1. */
struct subprocess_signals {
    int descriptor; /* signalfd */
    struct children_saved_signals saved_signals;
    int caught; /* the first one; 0: none */
};

/* Call it on the main thread of a process without other threads or children.
 * STATUS_RETRY: no descriptor for signals; call subprocess_close even then. */
enum status subprocess_open(struct subprocess_signals *signals,
                            struct failure *why) MUST_CHECK;

/* Restores the signal settings. A signal that arrived after the last program is
 * stored in `caught` and has no other effect. */
void subprocess_close(struct subprocess_signals *signals);

struct subprocess_options {
    const char *program;    /* a path, or a name to look for in PATH */
    char *const *arguments; /* argv, NULL-terminated */
    double limit;           /* seconds until SIGTERM */
    double kill_after;      /* seconds from SIGTERM until SIGKILL */
};

struct subprocess_result {
    int code;       /* exit code, or 128 + n for signal n */
    bool timed_out; /* the limit was exceeded */
    char *output;   /* standard output, the last 1 MiB; never NULL; owned by the
                       caller */
    char *errors;   /* standard error, the last 16 KiB; likewise */
};

/* Runs the program to its end, in a process group of its own and with an empty
 * standard input. On a signal, or after the limit, it gets SIGTERM, and SIGKILL
 * kill_after seconds later. STATUS_CONFIG: the program does not exist;
 * STATUS_RETRY: the system refuses; RESULT is empty then. */
enum status subprocess_run(struct subprocess_signals *signals,
                           const struct subprocess_options *options,
                           struct subprocess_result *result,
                           struct failure *why) MUST_CHECK;

/* Frees and clears the texts of RESULT. */
void subprocess_free_result(struct subprocess_result *result);

/* Copies the line of ERRORS that explains a failure: the last line with an
 * error, without its time and "error: "; else the last line, if possible one
 * that is no information of a log; "" if ERRORS is empty. */
void subprocess_error_line(const char *errors, char *text, unsigned size);

#endif
