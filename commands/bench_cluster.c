/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/bench_cluster.h"

#include "commands/launch/launch.h"
#include "worker/models/model.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Long enough for restoring, writing and a figure of gigabytes. */
static const double STEP_TIMEOUT = 3600, STOP = 5, GRACE = 30;
static const double JOIN_TIMEOUT = 600; /* docs/job.md's default */
static const json_int_t STEPS = INT64_C(1000000000000000);
static const double NEVER_S = 1e9;

static json_t *describe_job(const char *checkpoints, double join) {
    json_t *job = json_pack(
        "{s:{s:[i,i]}, s:{s:[s,s]}, s:I, s:i, s:{s:s, s:{s:f}}, s:{s:s, s:s},"
        " s:s, s:i, s:{s:f, s:f, s:f, s:f}}",
        "model", "layers", 1, 1, "data", "train", "/images", "/labels", "steps",
        STEPS, "train_micro_batch_size_per_gpu", 1, "optimizer", "type", "SGD",
        "params", "lr", 1e-3, "strategy", "type", "ps", "staleness", "inf",
        "chief", "coordinate", "steps_per_print", 1000000000, "timeouts",
        "step", STEP_TIMEOUT, "stop", STOP, "grace", GRACE, "join", join);
    if (job && checkpoints)
        json_object_set_new(job, "checkpoint",
                            json_pack("{s:s, s:s, s:f}", "dir", checkpoints,
                                      "resume", "never", "every_seconds",
                                      NEVER_S));
    return job;
}

enum status bench_cluster_job(struct job **out, const struct options *options,
                              struct failure *why) {
    char path[PATH_MAX];
    const char *checkpoints = options->checkpoint_dir;
    *out = NULL;
    if (checkpoints && checkpoints[0] != '/' && realpath(".", path)) {
        size_t used = strlen(path);
        snprintf(path + used, sizeof path - used, "/%s", checkpoints);
        checkpoints = path;
    }
    json_t *job = describe_job(checkpoints, options->join_timeout > 0
                                                ? options->join_timeout
                                                : JOIN_TIMEOUT);
    char *text = job ? json_dumps(job, JSON_COMPACT) : NULL;
    enum status status =
        text ? job_parse(out, text, &model_schemas, why)
             : status_fail(why, FAILURE_NO_MEMORY, "no memory for a job");
    free(text);
    json_decref(job);
    return status;
}

/* WORDS without --alone, which applies to this process only: the processes that
 * it starts are a cluster. The caller frees the list. */
static char **cluster_arguments(char *const *words) {
    size_t count = 0, used = 0;
    while (words[count])
        count++;
    char **filtered = calloc(count + 1, sizeof *filtered);
    for (size_t i = 0; filtered && i < count; i++)
        if (strcmp(words[i], "--alone"))
            filtered[used++] = words[i];
    return filtered;
}

enum status bench_cluster_run(const struct options *options,
                              const struct process_settings *settings,
                              const struct log *log, int *exit_code,
                              struct failure *why) {
    char program[4096] = "";
    char **words = cluster_arguments(options->words);
    struct launch_settings launch = {.program = program,
                                     .address =
                                         process_settings_address(settings),
                                     .verb = "bench",
                                     .writers = LAUNCH_STDOUT_WORKERS,
                                     .arguments_for_all = true,
                                     .num_ps = options->num_ps,
                                     .num_workers = 1,
                                     .run_arguments = words,
                                     .grace = GRACE,
                                     .stop = STOP,
                                     .log = log};
    launch_program(program, sizeof program);
    enum status status =
        words ? launch_run(&launch, exit_code, why)
              : status_fail(why, FAILURE_NO_MEMORY, "no memory for a command");
    free(words);
    return status;
}
