/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of a comparison on this machine, each a `capstan local` of its own. */
#ifndef CAPSTAN_COMPARE_LOCAL_H
#define CAPSTAN_COMPARE_LOCAL_H

#include "chief/compare/compare_runs.h"
#include "chief/launch/subprocess.h"

struct compare_local {
    const struct options *flags; /* borrowed, as the rest */
    const struct job *job;       /* its batch is solved */
    const char *program;         /* capstan itself */
    struct subprocess_signals signals;
};

/* The way to give to compare_runs, from subprocess_open of HERE's signals to
 * subprocess_close. A signal ends the run under way and everything: then the
 * status is the signal's. Call it from the main thread of a process without
 * other threads or children. */
struct compare_runs_runner compare_local_runner(struct compare_local *local);

#endif
