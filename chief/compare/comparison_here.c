/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/compare/comparison_here.h"

#include <stdio.h>

static const double BESIDES = 5; /* seconds beyond a run's own deadlines */

static void note_failure(struct comparison_outcome *outcome,
                         const struct child_result *result, double limit) {
    char reason[400];
    child_reason(result->errors, reason, sizeof reason);
    outcome->code = result->code;
    if (result->late)
        snprintf(outcome->problem, sizeof outcome->problem,
                 "not over after %g s (--limit)%s%s", limit,
                 reason[0] ? ": " : "", reason);
    else
        snprintf(outcome->problem, sizeof outcome->problem, "%s (exit code %d)",
                 reason[0] ? reason : "it said nothing", result->code);
}

static enum status run(void *context, const struct comparison_asked *asked,
                       struct comparison_outcome *outcome,
                       struct failure *why) {
    struct comparison_here *here = context;
    const struct job_timeouts *timeouts = &here->job->timeouts;
    struct comparison_command command;
    struct child_result result;
    comparison_command_make(&command, here->flags, asked);
    struct child_options child = {.program = here->program,
                                  .arguments = command.words,
                                  .limit = here->flags->compare.limit,
                                  .patience = timeouts->grace + timeouts->stop +
                                              BESIDES};
    enum status status = child_run(&here->signals, &child, &result, why);
    comparison_command_forget(&command);
    if (status)
        return status;
    bool fine = !result.code && !result.late;
    outcome->object = fine ? json_loads(result.output, 0, NULL) : NULL;
    if (!outcome->object)
        note_failure(outcome, &result, child.limit);
    child_forget(&result);
    int caught = here->signals.caught;
    return caught ? status_fail(why, (enum status)(128 + caught),
                                "ended by signal %d", caught)
                  : STATUS_OK;
}

struct comparison_way comparison_here_way(struct comparison_here *here) {
    return (struct comparison_way){.run = run, .context = here};
}
