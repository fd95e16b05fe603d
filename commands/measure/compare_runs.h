/* SPDX-License-Identifier: Apache-2.0 */
/* Runs all cases of a comparison, alternating between them, by `capstan local`
 * or another runner. */
#ifndef CAPSTAN_COMPARE_RUNS_H
#define CAPSTAN_COMPARE_RUNS_H

#include "commands/cli/options.h"
#include "commands/launch/children.h"
#include "commands/measure/compare_arguments.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "proto/job/job.h"

#include <jansson.h>

/* The outcome of one run. */
struct compare_runs_outcome {
    json_t *object; /* output of `capstan local --json`, owned by the receiver;
                       NULL: the run failed */
    int code;       /* its exit code if it failed */
    char problem[512]; /* the reason */
};

/* How runs are made. */
struct compare_runs_runner {
    /* STATUS_CONFIG: the case is impossible. NULL: no check before the run. */
    enum status (*check)(void *context,
                         const struct compare_arguments_request *request,
                         struct failure *why);
    /* A status other than STATUS_OK ends the comparison with it, e.g. that of a
     * signal. */
    enum status (*run)(void *context,
                       const struct compare_arguments_request *request,
                       struct compare_runs_outcome *outcome,
                       struct failure *why);
    void *context;
};

struct compare_runs_settings {
    const struct options *flags; /* borrowed, like all pointers here */
    const struct job *job;
    struct compare_batch batch; /* from compare_batch_find */
    const struct compare_runs_runner *runner;
    unsigned members; /* trainers and ps of the cluster that makes all runs; 0:
                         each run starts its own processes here */
    bool local;       /* all of them are on this machine */
    const struct log *log;
};

/* Runs all cases and returns in *RESULT the JSON object of docs/compare.md,
 * owned by the caller. A failed case has its reason in *RESULT. The comparison
 * fails only if all cases fail: STATUS_FAILED, or STATUS_CONFIG if each failed
 * with that. */
enum status compare_runs(json_t **result,
                         const struct compare_runs_settings *options,
                         struct failure *why) MUST_CHECK;

/* Runs a comparison on this machine; each run is a `capstan local`. */
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
