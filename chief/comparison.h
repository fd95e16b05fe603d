/* `capstan compare JOB.json`: the same work by every case, in turns, each run a
 * `capstan local` of its own. */
#ifndef CAPSTAN_COMPARISON_H
#define CAPSTAN_COMPARISON_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/conf/job.h"
#include "proto/conf/options.h"

#include <jansson.h>

struct comparison_options {
    const struct options *flags; /* borrowed, as the rest */
    const struct job *job;       /* its batch is solved */
    const char *program;         /* capstan itself */
    const struct log *log;
};

/* Runs all cases and returns in *RESULT the JSON object of docs/compare.md, the
 * caller's. A case that fails has its reason in there and is no failure of the
 * whole, unless all have failed (STATUS_FAILED, or STATUS_CONFIG where each
 * ended with that). A signal ends the run under way and everything: then the
 * status is the signal's. Call it from the main thread of a process without
 * other threads or children. */
enum status comparison_run(json_t **result,
                           const struct comparison_options *options,
                           struct failure *why) MUST_CHECK;

#endif
