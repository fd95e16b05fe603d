/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/launch_command.h"

#include "chief/plan/strategy.h"
#include "commands/cli/cli_flag.h"
#include "commands/launch/azureml_command.h"
#include "commands/launch/launch.h"
#include "commands/launch/node_launch.h"
#include "commands/process_settings.h"
#include "core/base/log.h"
#include "core/store/fs_info.h"
#include "worker/data/dataset.h"
#include "worker/models/model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The chief's command line: the job and HANDED. The processes share the cores
 * of one machine, so a ps uses one thread unless JOB sets ps_threads. */
static void local_arguments(const struct options *options,
                            const struct job *job, char *handed,
                            char **arguments) {
    unsigned count = 0;
    arguments[count++] = (char *)options->job;
    arguments[count++] = "--coordinate";
    for (char *word = handed; *word; word += strlen(word) + 1)
        arguments[count++] = word;
    if (!job->ps_threads && options->num_sets < OPTIONS_MAX_SETS) {
        arguments[count++] = "--set";
        arguments[count++] = "strategy.ps_threads=1";
    }
}

/* All-reduce needs no ps, so only those requested by --ps are started. */
static unsigned local_num_ps(const struct options *options,
                             const struct job *job) {
    return job->strategy == JOB_ALLREDUCE && !options->given.num_ps
               ? 0
               : options->num_ps;
}

/* All trainers are on this machine and will read the files that are checked
 * here. */
static enum status check_data_files(const struct job_data *data,
                                    struct failure *why) {
    const char *in = data->dir ? ", in data.dir" : "";
    if (dataset_check_files(data, &data->train, why))
        return status_context(why, "data.train%s", in);
    if (data->test.paths[0] && dataset_check_files(data, &data->test, why))
        return status_context(why, "data.test%s", in);
    return STATUS_OK;
}

enum status launch_command_check_model(const struct options *options,
                                       const struct job *job,
                                       struct failure *why) {
    bool external = job->model.type == JOB_EXTERNAL;
    if (external == (options->command != NULL))
        return STATUS_OK;
    if (external)
        return status_fail(why, FAILURE_JOB_UNFIT,
                           "model.type is external: give the program or "
                           "script that declares the model after \"--\"");
    return status_fail(why, FAILURE_JOB_UNFIT,
                       "%s trains a built-in model; with a command its "
                       "model.type is external",
                       options->job);
}

/* Reports errors of the chief or a trainer before any process is started. */
static enum status check_local_job(
    const struct options *options,
    const struct azureml_distribution *distribution, struct job **job,
    struct failure *why) {
    struct job_source source = {.models = &model_schemas,
                                .path = options->job,
                                .deepspeed = options->deepspeed,
                                .overrides = options->sets,
                                .num_overrides = options->num_sets};
    enum status status = job_load(job, &source, NULL, why);
    if (!status)
        status = launch_command_check_model(options, *job, why);
    if (status)
        return status;
    uint32_t trainers =
        options->num_workers + ((*job)->chief == JOB_CHIEF_TRAIN);
    struct strategy_case given = {.trainers = trainers,
                                  .num_ps = local_num_ps(options, *job),
                                  .members = STRATEGY_BY_FLAGS};
    struct strategy strategy;
    if (distribution) {
        given.num_ps = azureml_num_ps(distribution);
        trainers = azureml_num_processes(distribution) - given.num_ps;
        given.trainers = trainers;
        given.members = distribution->type == AZUREML_TENSORFLOW
                            ? STRATEGY_BY_COUNTS
                            : STRATEGY_BY_RANKS;
    }
    status = strategy_choose(&strategy, *job, &given, NULL, why);
    if (!status)
        status = job_check_batch(*job, trainers, why);
    return status ? status : check_data_files(&(*job)->data, why);
}

/* The job (or NULL) and the overrides reach worker 0, which leads, by its
 * environment (library/capstan.h). */
static enum status set_script_environment(const struct options *options,
                                          const struct job *job,
                                          struct failure *why) {
    size_t size = sizeof "strategy.ps_threads=1\n";
    for (unsigned i = 0; i < options->num_sets; i++)
        size += strlen(options->sets[i]) + 1;
    char *sets = malloc(size), *end = sets;
    if (!sets)
        return status_fail(why, FAILURE_NO_MEMORY, "out of memory");
    if (job && !job->ps_threads)
        end += sprintf(end, "strategy.ps_threads=1\n");
    for (unsigned i = 0; i < options->num_sets; i++)
        end += sprintf(end, "%s\n", options->sets[i]);
    *end = 0;
    setenv(SCRIPT_SETS, sets, 1);
    if (options->job)
        setenv(SCRIPT_JOB, options->job, 1);
    free(sets);
    return STATUS_OK;
}

/* The command has worker 0's standard output, so its library writes the summary
 * to FILE, in memory, by a name that wrappers of the command pass on. */
static enum status open_summary(int *file, struct failure *why) {
    char path[64];
    *file = memfd_create("summary", MFD_CLOEXEC);
    if (*file < 0)
        return status_errno(why, FAILURE_SYSTEM_REFUSED, errno,
                            "a file in memory for the summary");
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), *file);
    setenv(SUMMARY_FILE, path, 1);
    return STATUS_OK;
}

/* Only a command that failed, with CODE, may have left none. */
static enum status print_summary(int file, const char *program, int code,
                                 struct failure *why) {
    char text[4096];
    ssize_t length;
    off_t done = 0;
    while ((length = pread(file, text, sizeof text, done)) > 0) {
        fwrite(text, 1, (size_t)length, stdout);
        done += length;
    }
    fflush(stdout);
    if (done || code)
        return STATUS_OK;
    return status_fail(why, FAILURE_CALLER_FAILED,
                       "%s has ended without a run: it called neither "
                       "capstan_open nor capstan.init",
                       program);
}

/* Runs LAUNCH; prints and closes SUMMARY, the file that its leader fills in
 * (below 0: none). */
static enum status launch_with_summary(const struct launch_settings *launch,
                                       int summary, int *code,
                                       struct failure *why) {
    enum status status = launch_run(launch, code, why);
    if (!status && summary >= 0)
        status = print_summary(summary, launch->command[0], *code, why);
    if (summary >= 0)
        close(summary);
    return status;
}

/* Workers are processes of a caller of the library; its own settings are not
 * known here. */
static enum status local_script(const struct options *options,
                                const struct process_settings *settings,
                                const struct log *log, int *code,
                                struct failure *why) {
    char program[4096];
    struct job *job = NULL;
    int summary = -1;
    struct job_source source = {.models = &model_schemas,
                                .path = options->job,
                                .overrides = options->sets,
                                .num_overrides = options->num_sets,
                                .external = true};
    enum status status = job_load(&job, &source, NULL, why);
    if (!status)
        status = launch_command_check_model(options, job, why);
    if (!status)
        status = set_script_environment(options, job, why);
    if (!status && options->json)
        status = open_summary(&summary, why);
    launch_program(program, sizeof program);
    if (status) {
        job_free(&job);
        return status;
    }
    struct launch_settings launch = {
        .program = program,
        .command = options->command,
        .address = process_settings_address(settings),
        .writers = options->json ? LAUNCH_STDOUT_NOBODY : LAUNCH_STDOUT_WORKERS,
        .num_ps = local_num_ps(options, job),
        .num_workers = options->num_workers,
        .grace = job->timeouts.grace,
        .stop = job->timeouts.stop,
        .metrics = settings->metrics,
        .log = log};
    status = launch_with_summary(&launch, summary, code, why);
    job_free(&job);
    return status;
}

/* The process that leads bounds its last checkpoint by its own job, which is
 * not known here. */
static const double COMMAND_GRACE = 120, COMMAND_STOP = 5; /* seconds */

/* Makes this process's folder and environment those of COMMAND's processes. */
static enum status enter_command(const struct azureml_command *command,
                                 struct failure *why) {
    const char *name;
    json_t *value;
    size_t i;
    if (chdir(command->folder))
        return status_errno(why, FAILURE_SYSTEM_REFUSED, errno, "%s",
                            command->folder);
    json_array_foreach(command->outputs, i, value) {
        enum status status = fs_info_make_folder(json_string_value(value), why);
        if (status)
            return status;
    }
    json_object_foreach(command->environment, name, value)
        setenv(name, json_string_value(value), 1);
    return STATUS_OK;
}

/* Commands find this program first. */
static enum status set_command_environment(const struct options *options,
                                           const char *program,
                                           struct failure *why) {
    const char *path = getenv("PATH");
    char *whole = NULL;
    if (asprintf(&whole, "%.*s:%s", (int)(strrchr(program, '/') - program),
                 program, path ? path : "/usr/bin:/bin") >= 0)
        setenv("PATH", whole, 1);
    free(whole);
    if (options->flags.num_ps)
        setenv("CAPSTAN_NUM_PS", options->flags.num_ps, 1);
    return set_script_environment(options, NULL, why);
}

static void log_command(const struct log *log, const char *path,
                        const struct azureml_command *command) {
    log_info(log, "command_taken", "%s: each process runs in %s: %s", path,
             command->folder, command->text);
    if (command->unused[0])
        log_info(log, "keys_unused", "%s: not used here: %s", path,
                 command->unused);
}

/* The command of the job of Azure ML, which a shell runs as there. */
static enum status take_file_command(const struct options *options,
                                     const struct log *log,
                                     struct azureml_command *command,
                                     struct failure *why) {
    const char *path = options->azureml_distribution;
    enum status status = azureml_command_read(command, path, options->inputs,
                                              options->num_inputs, why);
    if (status)
        return status;
    log_command(log, path, command);
    return enter_command(command, why);
}

/* Every process of a distribution runs one command: that of the command line,
 * else the file's. */
static enum status local_distributed_command(
    const struct options *options, const struct process_settings *settings,
    const struct log *log, int *code, struct failure *why) {
    struct azureml_distribution distribution;
    struct azureml_command command = {0};
    char program[4096];
    char *words[] = {"/bin/bash", "-c", NULL, NULL};
    bool own = options->command;
    int summary = -1;
    launch_program(program, sizeof program);
    enum status status =
        azureml_read(&distribution, options->azureml_distribution,
                     options->instances, options->flags.num_ps, why);
    if (!status && !own)
        status = take_file_command(options, log, &command, why);
    if (!status)
        status = set_command_environment(options, program, why);
    if (!status && options->json)
        status = open_summary(&summary, why);
    if (status) {
        azureml_command_free(&command);
        return status;
    }
    words[2] = command.text;
    struct launch_settings launch = {
        .program = program,
        .command = own ? options->command : words,
        .address = process_settings_address(settings),
        .writers = options->json ? LAUNCH_STDOUT_NOBODY : LAUNCH_STDOUT_ALL,
        .num_workers = azureml_num_processes(&distribution) -
                       azureml_num_ps(&distribution),
        .azureml_distribution = &distribution,
        .grace = COMMAND_GRACE,
        .stop = COMMAND_STOP,
        .metrics = settings->metrics,
        .log = log};
    status = launch_with_summary(&launch, summary, code, why);
    azureml_command_free(&command);
    return status;
}

enum status local_command(const struct options *options, struct failure *why) {
    char program[4096], *arguments[2 * OPTIONS_MAX_SETS + 8] = {0};
    struct process_settings settings; /* each process reads its own */
    struct azureml_distribution distribution;
    struct log log;
    struct job *job = NULL;
    int code = STATUS_FAILED;
    log_open(&log, "local", -1);
    process_settings_stay_here(options);
    enum status status = process_settings_read(&settings, options, why);
    if (options->lane)
        setenv("CAPSTAN_LANE", options->lane, 1);
    bool command = options->command || !options->job;
    if (!status && command) {
        status = options->azureml_distribution
                     ? local_distributed_command(options, &settings, &log,
                                                 &code, why)
                     : local_script(options, &settings, &log, &code, why);
        return status ? status : (enum status)code;
    }
    if (!status && options->azureml_distribution)
        status = azureml_read(&distribution, options->azureml_distribution,
                              options->instances, options->flags.num_ps, why);
    if (!status)
        status = check_local_job(
            options, options->azureml_distribution ? &distribution : NULL, &job,
            why);
    char *handed = status ? NULL : cli_flag_handed(options, CLI_COMMAND_LOCAL);
    if (!status && !handed)
        status = status_fail(why, FAILURE_NO_MEMORY, "out of memory");
    if (status) {
        job_free(&job);
        return status;
    }
    launch_program(program, sizeof program);
    local_arguments(options, job, handed, arguments);
    struct launch_settings launch = {
        .program = program,
        .address = process_settings_address(&settings),
        .num_ps = local_num_ps(options, job),
        .num_workers = options->num_workers,
        .azureml_distribution =
            options->azureml_distribution ? &distribution : NULL,
        .run_arguments = arguments,
        .grace = job->timeouts.grace,
        .stop = job->timeouts.stop,
        .metrics = settings.metrics,
        .log = &log};
    status = launch_run(&launch, &code, why);
    if (status)
        log_failure(&log, why);
    free(handed);
    job_free(&job);
    return status ? status : (enum status)code;
}

enum status launch_command(const struct options *options, struct failure *why) {
    struct launch_world world;
    struct log log;
    int code = STATUS_FAILED;
    log_open(&log, "launch", -1);
    enum status status = launch_options_resolve(
        &world, options, process_settings_getenv, NULL, why);
    if (!status)
        status = launch_count_fill(&world, &log, why);
    if (!status)
        status = node_launch_run(options, &world, &log, &code, why);
    return status ? status : (enum status)code;
}
