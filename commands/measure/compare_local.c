/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/compare_local.h"

#include <stdio.h>
#include <string.h>

enum { LAST_LINES = 30 };
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

/* Returns where the last LAST_LINES lines of TEXT begin that are no information
 * of a log. */
static const char *last_lines(const char *text) {
    const char *starts[LAST_LINES];
    size_t count = 0;
    for (const char *line = text; *line; line += strspn(line, "\n")) {
        size_t length = strcspn(line, "\n");
        if (!log_is_info(line, length))
            starts[count++ % LAST_LINES] = line;
        line += length;
    }
    return count > LAST_LINES ? starts[count % LAST_LINES]
           : count            ? starts[0]
                              : "";
}

/* Logs what a script has printed last, which is not shown otherwise: the reason
 * is one line, and may be another process's. */
static void log_last_lines(const struct log *log, const char *text) {
    for (const char *line = last_lines(text); *line;) {
        size_t length = strcspn(line, "\n");
        if (!log_is_info(line, length))
            log_info(log, "command_output", "| %.*s", (int)length, line);
        line += length;
        line += strspn(line, "\n");
    }
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
        .limit = local->flags->limit,
        .kill_after = timeouts->grace + timeouts->stop + EXTRA_GRACE};
    enum status status = subprocess_run(&local->signals, &child, &result, why);
    compare_arguments_free(&command);
    if (status)
        return status;
    bool fine = !result.code && !result.timed_out;
    outcome->object = fine ? json_loads(result.output, 0, NULL) : NULL;
    int caught = local->signals.caught;
    if (!outcome->object)
        compare_local_record_failure(outcome, &result, child.limit);
    if (!outcome->object && !caught && local->flags->command)
        log_last_lines(local->log, result.errors);
    subprocess_free_result(&result);
    return caught ? status_fail(why, failure_code_of_signal(caught),
                                "ended by signal %d", caught)
                  : STATUS_OK;
}

struct compare_runs_runner compare_local_runner(struct compare_local *local) {
    return (struct compare_runs_runner){.run = compare_local_run,
                                        .context = local};
}
