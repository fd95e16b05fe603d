/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that a launcher starts, waits for and ends: in one thread, by
 * events, each in a process group of its own, none outliving the launcher. */
#ifndef CAPSTAN_CHILDREN_H
#define CAPSTAN_CHILDREN_H

#include "proto/base/log.h"
#include "proto/base/status.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { CHILDREN_NOT_STARTED = 127 }; /* exit code: there is no such program */

/* How signals were before a launcher took them. */
struct children_saved_signals {
    sigset_t mask;
    struct sigaction child, pipe;
};

/* Adds the signals that end a process here: SIGTERM, SIGINT and, unless it is
 * ignored (nohup), SIGHUP. */
void children_add_termination_signals(sigset_t *signals);

/* Blocks TAKEN, which a signalfd then gives; children can be waited for, and
 * whoever read what this process says may go: writing fails then. */
void children_block_signals(struct children_saved_signals *saved_signals,
                            const sigset_t *blocked);

/* All as it was BEFORE. */
void children_restore_signals(
    const struct children_saved_signals *saved_signals);

struct children {
    int signals; /* signalfd */
    struct children_saved_signals saved_signals;
};

/* Takes the signals of children_add_termination_signals, SIGCHLD and the COUNT
 * signals in MORE until children_close. Call it from the main thread of a
 * process without other threads or children. On failure children_close is still
 * due. */
enum status children_open(struct children *children, const int *more,
                          unsigned count, struct failure *why) MUST_CHECK;

/* Forgets signals that came too late and gives the rest back. */
void children_close(struct children *children);

/* In a child just forked: a process group of its own, nothing on standard
 * input, signals as they were BEFORE, and an end with PARENT. A forked child
 * that cannot become its program is a copy of the parent, whose stack and
 * buffered output are not its own: it leaves with _exit(CHILDREN_NOT_STARTED),
 * here too when PARENT has ended already. */
void children_detach(pid_t parent,
                     const struct children_saved_signals *saved_signals);

struct children_command {
    const char *name;        /* "ps 1", for texts */
    const char *program;     /* a path, or a word to be found in PATH */
    char *const *arguments;  /* argv, NULL-ended */
    bool writes_stdout;      /* to standard output; else to standard error */
    void (*prepare)(void *); /* in the child: its environment */
    void *context;           /* of prepare */
    int record;              /* launch_record.h; -1: none */
    const struct log *log;   /* NULL: silence */
};

/* Starts a child; its standard input is empty. What is no program ends with
 * CHILDREN_NOT_STARTED, and a line says so. STATUS_RETRY: the machine refuses a
 * process. */
enum status children_start(const struct children *children,
                           const struct children_command *start, pid_t *pid,
                           struct failure *why) MUST_CHECK;

/* Waits until DEADLINE for a signal, SIGCHLD among them: its number, or 0 when
 * it is over. One may stand for several children. */
int children_wait(const struct children *children, int64_t deadline);

/* The exit code that WAIT_STATUS is, 128 + n of signal n. */
int children_exit_code(int wait_status);

/* "ended with exit code 1", "was killed by signal 9 (Killed)". */
void children_end_text(int wait_status, char *text, size_t size);

#endif
