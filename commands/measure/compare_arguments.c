/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/compare_arguments.h"

#include "commands/cli/cli_flag.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void compare_arguments_add(struct compare_arguments *command,
                                  const char *format, ...) PRINTF_LIKE(2, 3);
static void compare_arguments_add(struct compare_arguments *command,
                                  const char *format, ...) {
    va_list arguments;
    char **argv = reallocarray(command->argv, command->count + 2, sizeof *argv);
    if (!argv)
        return;
    command->argv = argv;
    va_start(arguments, format);
    if (vasprintf(&argv[command->count], format, arguments) >= 0)
        command->count++;
    va_end(arguments);
    argv[command->count] = NULL;
}

static void compare_arguments_set(struct compare_arguments *command,
                                  const char *format, ...) PRINTF_LIKE(2, 3);
static void compare_arguments_set(struct compare_arguments *command,
                                  const char *format, ...) {
    char setting[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(setting, sizeof setting, format, arguments);
    va_end(arguments);
    if (!command->overrides_only)
        compare_arguments_add(command, "--set");
    compare_arguments_add(command, "%s", setting);
}

/* Sets the batch of a replica; a run derives the whole batch from its replicas.
 */
static void set_batch(struct compare_arguments *command,
                      const struct compare_batch *batch) {
    if (!batch->micro)
        return;
    compare_arguments_set(command, "train_batch_size=null");
    compare_arguments_set(command, "train_micro_batch_size_per_gpu=%" PRIu32,
                          batch->micro);
    compare_arguments_set(command, "gradient_accumulation_steps=%" PRIu32,
                          batch->accumulation);
}

static void set_strategy(struct compare_arguments *command,
                         const struct aggregate_runs_case *spec) {
    static const char *const staleness[COST_MODEL_MODES] = {
        [COST_MODEL_PS] = "0",
        [COST_MODEL_PS_ASYNC] = "inf",
        [COST_MODEL_RING] = "null"};
    compare_arguments_set(command, "strategy.type=%s",
                          spec->mode == COST_MODEL_RING ? "allreduce" : "ps");
    compare_arguments_set(command, "strategy.staleness=%s",
                          staleness[spec->mode]);
}

static void set_all(struct compare_arguments *command,
                    const struct options *flags,
                    const struct compare_arguments_request *request) {
    static const char *const off[] = {"checkpoint", "tensorboard", "metrics",
                                      "export", "compare"};
    for (unsigned i = 0; i < sizeof off / sizeof *off; i++)
        compare_arguments_set(command, "%s=null", off[i]);
    /* Also where the environment names a run. */
    compare_arguments_set(command, "mlflow.tracking_uri=");
    if (!command->overrides_only && !flags->command)
        compare_arguments_set(command, "chief=coordinate");
    set_strategy(command, &request->spec);
    set_batch(command, &request->batch);
    if (request->steps)
        compare_arguments_set(command, "steps=%" PRIu64, request->steps);
    if (!request->tests && !flags->command)
        compare_arguments_set(command, "data.test=null");
}

void compare_arguments_overrides(
    struct compare_arguments *command, const struct options *flags,
    const struct compare_arguments_request *request) {
    *command = (struct compare_arguments){.overrides_only = true};
    for (unsigned i = 0; i < flags->num_sets; i++)
        compare_arguments_add(command, "%s", flags->sets[i]);
    set_all(command, flags, request);
}

/* A command has no link of its own. */
static void add_handed(struct compare_arguments *command,
                       const struct options *flags, double link_gbits) {
    struct options handed = *flags;
    handed.link_gbits = flags->command ? 0 : link_gbits;
    char *words = cli_flag_handed(&handed, CLI_COMMAND_COMPARE);
    for (char *word = words; word && *word; word += strlen(word) + 1)
        compare_arguments_add(command, "%s", word);
    free(words);
}

void compare_arguments_build(struct compare_arguments *command,
                             const struct options *flags,
                             const struct compare_arguments_request *request) {
    const struct aggregate_runs_case *spec = &request->spec;
    char *const *word = flags->command;
    *command = (struct compare_arguments){0};
    compare_arguments_add(command, "capstan");
    compare_arguments_add(command, "local");
    compare_arguments_add(command, "--json");
    compare_arguments_add(command, "--ps=%u", spec->ps);
    compare_arguments_add(command, "--workers=%u", spec->workers);
    add_handed(command, flags, spec->link_gbits);
    set_all(command, flags, request);
    /* What follows "--" would be a command. */
    if (flags->job)
        compare_arguments_add(command, "%s%s", flags->job[0] == '-' ? "./" : "",
                              flags->job);
    if (word)
        compare_arguments_add(command, "--");
    for (; word && *word; word++)
        compare_arguments_add(command, "%s", *word);
}

void compare_arguments_free(struct compare_arguments *command) {
    for (unsigned i = 0; i < command->count; i++)
        free(command->argv[i]);
    free(command->argv);
    *command = (struct compare_arguments){0};
}

/* Trainers that share a machine have one device each; a trainer that is alone
 * on its machine, or in a cluster, may have more. */
enum status compare_batch_find(struct compare_batch *out, const struct job *job,
                               uint32_t trainers, bool local,
                               struct failure *why) {
    bool single = job->device == JOB_DEVICE_CPU || job->devices == 1 ||
                  (local && trainers > 1);
    struct job solved = *job;
    *out = (struct compare_batch){0};
    if (job->model.type == JOB_EXTERNAL)
        return STATUS_OK;
    if (job->train_batch_size && !single)
        return job_check_batch(job, trainers, why);
    enum status status = job_solve_batch(&solved, trainers, why);
    if (!status)
        *out = (struct compare_batch){solved.micro_batch, solved.accumulation};
    return status;
}

static uint32_t compare_batch_count(const json_t *object, const char *key) {
    json_int_t value = json_integer_value(json_object_get(object, key));
    return value > 0 && value <= UINT32_MAX ? (uint32_t)value : 0;
}

void compare_batch_update(struct compare_batch *batch, const json_t *run) {
    struct compare_batch found = {compare_batch_count(run, "micro_batch"),
                                  compare_batch_count(run, "accumulation")};
    if (!batch->micro && found.micro && found.accumulation)
        *batch = found;
}

double compare_batch_samples(const struct compare_batch *batch) {
    return (double)batch->micro * batch->accumulation;
}
