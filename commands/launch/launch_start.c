/* SPDX-License-Identifier: Apache-2.0 */
/* Each process gets the cluster description in the form of its launch: a
 * TF_CONFIG of its own, or the variables of its rank. */
#include "commands/launch/launch_internal.h"
#include "commands/launch/port.h"
#include "commands/launch/rank_variables.h"
#include "core/base/limits.h"
#include "proto/messages/launch_record.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool by_ranks(const struct launch *launch) {
    const struct azureml_distribution *distribution =
        launch->options->azureml_distribution;
    return distribution && distribution->type != AZUREML_TENSORFLOW;
}

static void name_distributed(struct launch *launch) {
    unsigned workers = launch->options->azureml_distribution->workers;
    for (unsigned i = 0; i < launch->count; i++) {
        struct launch_process *process = &launch->processes[i];
        process->type = i < workers ? "worker" : "ps";
        process->index = i < workers ? i : i - workers;
        if (by_ranks(launch))
            snprintf(process->name, sizeof process->name, "rank %u", i);
        else
            snprintf(process->name, sizeof process->name, "%s %u",
                     process->type, process->index);
        process->port_socket = process->record = -1;
    }
}

/* The leader, the ps, the workers. A leader that is worker 0 counts. */
static void name_processes(struct launch *launch) {
    unsigned num_ps = launch->options->num_ps;
    bool chief = !launch->options->command;
    for (unsigned i = 0; i < launch->count; i++) {
        struct launch_process *process = &launch->processes[i];
        bool ps = i > 0 && i <= num_ps;
        process->type = i == 0 && chief ? "chief" : ps ? "ps" : "worker";
        process->index = i == 0 ? 0 : ps ? i - 1 : i - num_ps - chief;
        if (i == 0 && chief)
            snprintf(process->name, sizeof process->name, "chief");
        else
            snprintf(process->name, sizeof process->name, "%s %u",
                     process->type, process->index);
        process->port_socket = process->record = -1;
    }
}

void launch_name_processes(struct launch *launch) {
    const struct launch_settings *options = launch->options;
    if (by_ranks(launch))
        snprintf(launch->num_ps, sizeof launch->num_ps, "--num-ps=%u",
                 options->azureml_distribution->num_ps);
    if (options->azureml_distribution)
        name_distributed(launch);
    else
        name_processes(launch);
}

static const char *launch_host(const struct launch *launch) {
    const char *address = launch->options->address;
    return address ? address : "127.0.0.1";
}

/* Reserves a port for each process and returns the cluster object of TF_CONFIG,
 * owned by the caller; NULL: WHY is filled. */
static json_t *describe_cluster(struct launch *launch, struct failure *why) {
    json_t *cluster = json_object();
    for (unsigned i = 0; i < launch->count; i++) {
        struct launch_process *process = &launch->processes[i];
        const char *host = launch_host(launch);
        char address[96];
        uint16_t port;
        if (port_reserve(&port, &process->port_socket, why)) {
            json_decref(cluster);
            return NULL;
        }
        snprintf(address, sizeof address,
                 strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, port);
        if (!json_object_get(cluster, process->type))
            json_object_set_new(cluster, process->type, json_array());
        json_array_append_new(json_object_get(cluster, process->type),
                              json_string(address));
    }
    return cluster;
}

enum status launch_configure(struct launch *launch, struct failure *why) {
    if (by_ranks(launch))
        return STATUS_OK;
    json_t *cluster = describe_cluster(launch, why);
    if (!cluster)
        return failure_code_status(why->code);
    for (unsigned i = 0; i < launch->count; i++) {
        struct launch_process *process = &launch->processes[i];
        json_t *config =
            json_pack("{s:O, s:{s:s, s:i}}", "cluster", cluster, "task", "type",
                      process->type, "index", (int)process->index);
        if (launch->options->azureml_distribution)
            json_object_set_new(config, "environment", json_string("cloud"));
        process->config = json_dumps(config, JSON_COMPACT);
        json_decref(config);
        if (!process->config)
            break;
    }
    json_decref(cluster);
    if (!launch->processes[launch->count - 1].config)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "out of memory for TF_CONFIG");
    return STATUS_OK;
}

/* Runs in the child: lists the ps that run already, which a worker may inspect.
 */
static void export_ps_pids(const struct launch *launch) {
    char list[16384] = "";
    size_t used = 0;
    for (unsigned i = 0; i < launch->count; i++)
        if (!strcmp(launch->processes[i].type, "ps") &&
            launch->processes[i].pid && used + 16 < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%d",
                                     used ? "," : "",
                                     (int)launch->processes[i].pid);
    setenv(LAUNCH_PS_PIDS, list, 1);
    setenv(LOG_TOGETHER_VARIABLE, "1", 1);
}

/* Runs in the child. The commands' thread pools share this machine, unless the
 * caller says otherwise. */
static void set_threads(const struct launch_settings *options) {
    uint32_t share = cores_count() / options->num_workers;
    char text[16];
    snprintf(text, sizeof text, "%u", share ? share : 1);
    setenv("OMP_NUM_THREADS", text, 0);
}

/* Runs in the child: no other variable describes a cluster. */
static void set_environment(const struct launch *launch,
                            const struct launch_process *process) {
    static const char *const cluster_variables[] = {
        "TF_CONFIG",        "CLUSTER_SPEC", "JOB_NAME",
        "TASK_INDEX",       "RANK",         "WORLD_SIZE",
        "NODE_RANK",        "LOCAL_RANK",   "GROUP_RANK",
        "GROUP_WORLD_SIZE", "ROLE_NAME",    "ROLE_RANK",
        "ROLE_WORLD_SIZE",  "HOROVOD_RANK", "HOROVOD_SIZE"};
    static const char *const cluster_prefixes[] = {
        "MASTER_", "LOCAL_WORLD_", "TORCHELASTIC_", "PET_",   "OMPI_",
        "PMI_",    "PMIX_",        "MPI_LOCAL",     "SLURM_", "AZ_BATCH"};
    for (unsigned i = 0;
         i < sizeof cluster_variables / sizeof *cluster_variables; i++)
        unsetenv(cluster_variables[i]);
    for (unsigned i = 0; i < sizeof cluster_prefixes / sizeof *cluster_prefixes;
         i++)
        rank_variables_unset(cluster_prefixes[i]);
    if (process->config)
        setenv("TF_CONFIG", process->config, 1);
    else
        rank_variables_set(launch->options->azureml_distribution,
                           launch_host(launch),
                           (uint32_t)(process - launch->processes));
}

/* Runs in the child. Without METRICS a variable that the launcher has does not
 * hold for its processes, which cannot share one port. */
static void launch_start_set_metrics(const struct launch *launch,
                                     const struct launch_process *process) {
    struct cluster_task metrics = launch->options->metrics;
    char address[300] = "0";
    if (metrics.port) {
        metrics.port += (uint16_t)(process - launch->processes);
        cluster_address(&metrics, address, sizeof address);
    }
    setenv(LAUNCH_METRICS_PORT, address, 1);
}

bool launch_runs_command(const struct launch *launch,
                         const struct launch_process *process) {
    const struct launch_settings *options = launch->options;
    return options->command &&
           (options->azureml_distribution || !strcmp(process->type, "worker"));
}

/* "capstan run" and the chief's arguments, or the workers' command; the caller
 * frees the list. */
static const char **launch_start_run_command(
    const struct launch *launch, const struct launch_process *process) {
    const struct launch_settings *options = launch->options;
    bool chief = process == launch->processes && !options->command;
    if (launch_runs_command(launch, process)) {
        size_t words = 0;
        while (options->command[words])
            words++;
        const char **copy = calloc(words + 1, sizeof *copy);
        if (copy)
            memcpy(copy, options->command, words * sizeof *copy);
        return copy;
    }
    char *const *extra = options->run_arguments;
    bool has_arguments = chief || options->arguments_for_all;
    size_t count = 0;
    while (has_arguments && extra && extra[count])
        count++;
    const char **command = calloc(count + 4, sizeof *command);
    if (!command)
        return NULL;
    command[0] = "capstan";
    command[1] = options->verb ? options->verb : "run";
    if (count)
        memcpy(command + 2, extra, count * sizeof *command);
    if (by_ranks(launch))
        command[count + 2] = launch->num_ps;
    return command;
}

struct preparation {
    const struct launch *launch;
    const struct launch_process *process;
};

/* Runs in the child. SIGUSR1 stays blocked until the process handles it, so
 * that an early one does not kill it. */
static void launch_start_prepare(void *context) {
    const struct preparation *preparation = context;
    sigset_t waiting;
    sigemptyset(&waiting);
    sigaddset(&waiting, SIGUSR1);
    sigprocmask(SIG_BLOCK, &waiting, NULL);
    set_environment(preparation->launch, preparation->process);
    if (launch_runs_command(preparation->launch, preparation->process))
        set_threads(preparation->launch->options);
    export_ps_pids(preparation->launch);
    launch_start_set_metrics(preparation->launch, preparation->process);
}

static bool writes_stdout(const struct launch *launch,
                          const struct launch_process *process) {
    switch (launch->options->writers) {
    case LAUNCH_STDOUT_CHIEF:
        return process == launch->processes;
    case LAUNCH_STDOUT_WORKERS:
        return !strcmp(process->type, "worker");
    case LAUNCH_STDOUT_ALL:
        return true;
    case LAUNCH_STDOUT_NOBODY:
        break;
    }
    return false;
}

static enum status launch_start_start(struct launch *launch,
                                      struct launch_process *process,
                                      struct failure *why) {
    const char **command = launch_start_run_command(launch, process);
    struct preparation preparation = {launch, process};
    struct children_command child = {
        .name = process->name,
        .program = launch_runs_command(launch, process)
                       ? launch->options->command[0]
                       : launch->options->program,
        .arguments = (char *const *)command,
        .writes_stdout = writes_stdout(launch, process),
        .prepare = launch_start_prepare,
        .context = &preparation,
        .log = launch->options->log};
    child.record = process->record = launch_record_open();
    if (!command)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory to start %s",
                           process->name);
    enum status status =
        children_start(&launch->children, &child, &process->pid, why);
    free(command);
    launch->alive += status == STATUS_OK;
    return status;
}

enum status launch_start(struct launch *launch, struct failure *why) {
    for (unsigned i = 0; i < launch->count; i++) {
        enum status status =
            launch_start_start(launch, &launch->processes[i], why);
        if (status)
            return status;
    }
    return STATUS_OK;
}
