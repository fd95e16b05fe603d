/* SPDX-License-Identifier: Apache-2.0 */
/* The same work by every case, in turns: runs of `capstan local`, or of whoever
 * makes them otherwise. */
#ifndef CAPSTAN_COMPARE_RUNS_H
#define CAPSTAN_COMPARE_RUNS_H

#include "chief/compare/compare_arguments.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/cli/options.h"
#include "proto/config/job/job.h"

#include <jansson.h>

/* How a run ended that was made. */
struct compare_runs_outcome {
    json_t *object; /* as `capstan local --json` has it, the taker's; NULL: it
                       failed */
    int code;       /* its exit code then */
    char problem[512]; /* and why */
};

/* How runs are made. */
struct compare_runs_runner {
    /* STATUS_CONFIG: this case cannot be. NULL: every run finds out. */
    enum status (*check)(void *context,
                         const struct compare_arguments_request *request,
                         struct failure *why);
    /* Another status than STATUS_OK ends the comparison with it; that of a
     * signal among them. */
    enum status (*run)(void *context,
                       const struct compare_arguments_request *request,
                       struct compare_runs_outcome *outcome,
                       struct failure *why);
    void *context;
};

struct compare_runs_settings {
    const struct options *flags; /* borrowed, as the rest */
    const struct job *job;
    struct compare_batch batch; /* compare_batch_find's */
    const struct compare_runs_runner *runner;
    unsigned members; /* trainers and ps of a cluster that play all runs; 0:
                         each run has its own, here */
    bool local;       /* all of them are on this machine */
    const struct log *log;
};

/* Runs all cases and returns in *RESULT the JSON object of docs/compare.md, the
 * caller's. A case that fails has its reason in there and is no failure of the
 * whole, unless all have failed (STATUS_FAILED, or STATUS_CONFIG where each
 * ended with that). */
enum status compare_runs(json_t **result,
                         const struct compare_runs_settings *options,
                         struct failure *why) MUST_CHECK;

#endif
