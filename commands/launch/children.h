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

/* Blocks the signals in BLOCKED, to be read from a signalfd. Sets SIGCHLD so
 * that children can be waited for, and ignores SIGPIPE: if the reader of this
 * process's output goes, writes fail. */
void children_block_signals(struct children_saved_signals *saved_signals,
                            const sigset_t *blocked);

/* Restores the settings in SAVED_SIGNALS. */
void children_restore_signals(
    const struct children_saved_signals *saved_signals);

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

/* Call it in a child after fork: gives it a process group of its own, no
 * standard input, the signal settings in SAVED_SIGNALS, and an end when PARENT
 * dies. A forked child that cannot exec shares the parent's stack and buffered
 * output, so it leaves with _exit(CHILDREN_NOT_STARTED); here too if PARENT has
 * already died. */
void children_detach(pid_t parent,
                     const struct children_saved_signals *saved_signals);

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

#endif
