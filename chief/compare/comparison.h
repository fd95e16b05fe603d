/* SPDX-License-Identifier: Apache-2.0 */
/* The same work by every case, in turns: runs of `capstan local`, or of whoever
 * makes them otherwise. */
#ifndef CAPSTAN_COMPARISON_H
#define CAPSTAN_COMPARISON_H

#include "chief/compare/comparison_command.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/cli/options.h"
#include "proto/config/job/job.h"

#include <jansson.h>

/* How a run ended that was made. */
struct comparison_outcome {
    json_t *object; /* as `capstan local --json` has it, the taker's; NULL: it
                       failed */
    int code;       /* its exit code then */
    char problem[512]; /* and why */
};

/* How runs are made. */
struct comparison_way {
    /* STATUS_CONFIG: this case cannot be. NULL: every run finds out. */
    enum status (*check)(void *context, const struct comparison_asked *asked,
                         struct failure *why);
    /* Another status than STATUS_OK ends the comparison with it; that of a
     * signal among them. */
    enum status (*run)(void *context, const struct comparison_asked *asked,
                       struct comparison_outcome *outcome, struct failure *why);
    void *context;
};

struct comparison_options {
    const struct options *flags; /* borrowed, as the rest */
    const struct job *job;
    struct comparison_batch batch; /* comparison_batch_find's */
    const struct comparison_way *way;
    unsigned members; /* trainers and ps of a cluster that play all runs; 0:
                         each run has its own, here */
    bool here;        /* all of them are on this machine */
    const struct log *log;
};

/* Runs all cases and returns in *RESULT the JSON object of docs/compare.md, the
 * caller's. A case that fails has its reason in there and is no failure of the
 * whole, unless all have failed (STATUS_FAILED, or STATUS_CONFIG where each
 * ended with that). */
enum status comparison_run(json_t **result,
                           const struct comparison_options *options,
                           struct failure *why) MUST_CHECK;

#endif
