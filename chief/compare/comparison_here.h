/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of a comparison on this machine, each a `capstan local` of its own. */
#ifndef CAPSTAN_COMPARISON_HERE_H
#define CAPSTAN_COMPARISON_HERE_H

#include "chief/compare/comparison.h"
#include "chief/launch/child.h"

struct comparison_here {
    const struct options *flags; /* borrowed, as the rest */
    const struct job *job;       /* its batch is solved */
    const char *program;         /* capstan itself */
    struct child_signals signals;
};

/* The way to give to comparison_run, from child_open of HERE's signals to
 * child_close. A signal ends the run under way and everything: then the status
 * is the signal's. Call it from the main thread of a process without other
 * threads or children. */
struct comparison_way comparison_here_way(struct comparison_here *here);

#endif
