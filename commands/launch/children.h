/* SPDX-License-Identifier: Apache-2.0 */
/* Child processes of a launcher: starts, waits for and ends them by events in
 * one thread. Each has a process group of its own, and none outlives the
 * launcher. */
#ifndef CAPSTAN_CHILDREN_H
#define CAPSTAN_CHILDREN_H

#include "core/base/log.h"
#include "core/base/status.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { CHILDREN_NOT_STARTED = 127 }; /* exit code: the program does not exist */

/* Signal settings from before the launcher changed them. */
struct children_saved_signals {
    sigset_t mask;
    struct sigaction child, pipe;
};

/* Adds the signals that end a process: SIGTERM, SIGINT and, unless it is
 * ignored (nohup), SIGHUP. */
void children_add_termination_signals(sigset_t *signals);

struct children {
    int signals; /* signalfd */
    struct children_saved_signals saved_signals;
};

/* Takes the signals of children_add_termination_signals, SIGCHLD and the COUNT
 * signals in MORE until children_close. Call it on the main thread of a process
 * without other threads or children. Call children_close even after a failure.
 */
enum status children_open(struct children *children, const int *more,
                          unsigned count, struct failure *why) MUST_CHECK;

/* Discards pending signals and restores the settings. */
void children_close(struct children *children);

struct children_command {
    const char *name;        /* "ps 1", for texts */
    const char *program;     /* a path, or a name to find in PATH */
    char *const *arguments;  /* argv, NULL-terminated */
    bool writes_stdout;      /* to standard output, else to standard error */
    void (*prepare)(void *); /* runs in the child, to set its environment */
    void *context;           /* for prepare */
    int record;              /* launch_record.h; -1: none */
    const struct log *log;   /* NULL: log nothing */
};

/* Starts a child with an empty standard input. If the program does not exist,
 * logs the reason and the child ends with CHILDREN_NOT_STARTED. STATUS_RETRY:
 * the system refuses a process. */
enum status children_start(const struct children *children,
                           const struct children_command *start, pid_t *pid,
                           struct failure *why) MUST_CHECK;

/* Waits for a signal, SIGCHLD included, until DEADLINE; returns its number, or
 * 0 after the deadline. One SIGCHLD may stand for several children. */
int children_wait(const struct children *children, int64_t deadline);

/* Has PID ended? Then kills what is left of its process group, and WAIT_STATUS
 * is its end. */
bool children_reap(pid_t pid, int *wait_status);

/* The exit code for WAIT_STATUS; 128 + n for signal n. */
int children_exit_code(int wait_status);

/* Programs that run to their end, one at a time, with a deadline and their
 * output captured; a signal to this process ends the program first. From
 * subprocess_open to subprocess_close this process takes the signals of
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
