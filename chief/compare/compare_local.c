/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/compare/compare_local.h"

#include <stdio.h>

static const double EXTRA_GRACE =
    5; /* seconds in addition to a run's own deadlines */

static void compare_local_record_failure(struct compare_runs_outcome *outcome,
                                         const struct subprocess_result *result,
                                         double limit) {
    char reason[400];
    subprocess_error_line(result->errors, reason, sizeof reason);
    outcome->code = result->code;
    if (result->timed_out)
        snprintf(outcome->problem, sizeof outcome->problem,
                 "not over after %g s (--limit)%s%s", limit,
                 reason[0] ? ": " : "", reason);
    else
        snprintf(outcome->problem, sizeof outcome->problem, "%s (exit code %d)",
                 reason[0] ? reason : "it printed nothing", result->code);
}

static enum status compare_local_run(
    void *context, const struct compare_arguments_request *request,
    struct compare_runs_outcome *outcome, struct failure *why) {
    struct compare_local *local = context;
    const struct job_timeouts *timeouts = &local->job->timeouts;
    struct compare_arguments command;
    struct subprocess_result result;
    compare_arguments_build(&command, local->flags, request);
    struct subprocess_options child = {
        .program = local->program,
        .arguments = command.argv,
        .limit = local->flags->compare.limit,
        .kill_after = timeouts->grace + timeouts->stop + EXTRA_GRACE};
    enum status status = subprocess_run(&local->signals, &child, &result, why);
    compare_arguments_free(&command);
    if (status)
        return status;
    bool fine = !result.code && !result.timed_out;
    outcome->object = fine ? json_loads(result.output, 0, NULL) : NULL;
    if (!outcome->object)
        compare_local_record_failure(outcome, &result, child.limit);
    subprocess_free_result(&result);
    int caught = local->signals.caught;
    return caught ? status_fail(why, failure_code_of_signal(caught),
                                "ended by signal %d", caught)
                  : STATUS_OK;
}

struct compare_runs_runner compare_local_runner(struct compare_local *local) {
    return (struct compare_runs_runner){.run = compare_local_run,
                                        .context = local};
}
