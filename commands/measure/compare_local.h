/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a comparison on this machine; each run is a `capstan local`. */
#ifndef CAPSTAN_COMPARE_LOCAL_H
#define CAPSTAN_COMPARE_LOCAL_H

#include "commands/launch/children.h"
#include "commands/measure/compare_runs.h"

struct compare_local {
    const struct options *flags; /* borrowed, like all pointers here */
    const struct job *job;       /* with its batch solved */
    const char *program;         /* the capstan binary */
    const struct log *log;       /* of a failed command's last lines; or NULL */
    struct subprocess_signals signals;
};

/* The runner for compare_runs; use it between subprocess_open and
 * subprocess_close of LOCAL's signals. A signal ends the current run and the
 * comparison, with the signal's status. Call it on the main thread of a process
 * without other threads or children. */
struct compare_runs_runner compare_local_runner(struct compare_local *local);

#endif
