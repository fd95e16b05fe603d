/* SPDX-License-Identifier: Apache-2.0 */
/* A program that is started, heard and waited for, with a deadline; signals to
 * this process end it first. */
#ifndef CAPSTAN_SUBPROCESS_H
#define CAPSTAN_SUBPROCESS_H

#include "chief/launch/children.h"
#include "proto/base/status.h"

#include <stdbool.h>

/* From subprocess_open to subprocess_close the signals of
 * children_add_termination_signals are taken, and SIGUSR1, which does nothing.
 */
struct subprocess_signals {
    int descriptor; /* signalfd */
    struct children_saved_signals saved_signals;
    int caught; /* the first one; 0: none */
};

/* From the main thread of a process without other threads or children.
 * STATUS_RETRY: no descriptor for signals; subprocess_close is due then too. */
enum status subprocess_open(struct subprocess_signals *signals,
                            struct failure *why) MUST_CHECK;

/* Gives the signals back; one that came too late for a program to end by is
 * noted as caught, and does nothing. */
void subprocess_close(struct subprocess_signals *signals);

struct subprocess_options {
    const char *program;    /* a path, or a name to look for in PATH */
    char *const *arguments; /* the first is its name; NULL-terminated */
    double limit;           /* seconds until it gets SIGTERM */
    double kill_after;      /* seconds from there until it gets SIGKILL */
};

struct subprocess_result {
    int code;       /* its exit code, or 128 + n of signal n */
    bool timed_out; /* the limit was over */
    char *output;   /* its standard output, of more than 1 MiB the end; never
                       NULL, the caller's */
    char *errors;   /* likewise its standard error, of more than 16 KiB */
};

/* Runs the program to its end, in a process group of its own and with nothing
 * on standard input. When a signal comes, or the limit is over, it gets
 * SIGTERM, after the patience SIGKILL. STATUS_CONFIG when there is no such
 * program, STATUS_RETRY when the machine refuses; RESULT is then empty. */
enum status subprocess_run(struct subprocess_signals *signals,
                           const struct subprocess_options *options,
                           struct subprocess_result *result,
                           struct failure *why) MUST_CHECK;

/* Frees the texts of RESULT and empties it. */
void subprocess_free_result(struct subprocess_result *result);

/* What went wrong, of the lines in ERRORS: the last one that says so, else the
 * last one, without its time and its "error: "; "" when there is none. */
void subprocess_error_line(const char *errors, char *text, unsigned size);

#endif
