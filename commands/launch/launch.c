/* SPDX-License-Identifier: Apache-2.0 */
/* Starts the processes of a launch and supervises them: waits for the chief,
 * forwards signals to it, reports children that die before it, and ends the
 * others in steps after it. */
#include "commands/launch/launch.h"

#include "commands/launch/children.h"
#include "commands/launch/death_report.h"
#include "commands/launch/port.h"
#include "commands/launch/restarts.h"
#include "core/base/limits.h"
#include "core/base/plugin.h"
#include "core/base/time.h"
#include "proto/cluster/azureml.h"
#include "proto/messages/launch_record.h"
#include "proto/messages/message.h"
#include "worker/ops/device.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

static bool unset_one(void) {
    for (char **each = environ; each && *each; each++) {
        const char *end = strchr(*each, '=');
        char *name = end ? strndup(*each, (size_t)(end - *each)) : NULL;
        bool hidden = name && cluster_hides(name) && !unsetenv(name);
        free(name);
        if (hidden)
            return true;
    }
    return false;
}

void rank_variables_unset(void) {
    while (unset_one())
        ;
}

static void rank_variables_set_number(const char *name, uint32_t value) {
    char text[16];
    snprintf(text, sizeof text, "%u", value);
    setenv(name, text, 1);
}

static void set_torch(const char *host, uint32_t rank, uint32_t size,
                      uint32_t per_instance) {
    setenv("MASTER_ADDR", host, 1);
    rank_variables_set_number("MASTER_PORT", RANK_VARIABLES_PORT);
    rank_variables_set_number("WORLD_SIZE", size);
    rank_variables_set_number("RANK", rank);
    rank_variables_set_number("LOCAL_RANK", rank % per_instance);
    rank_variables_set_number("NODE_RANK", rank / per_instance);
}

static void set_mpi(const char *host, uint32_t rank, uint32_t size,
                    uint32_t per_instance) {
    char node[96];
    rank_variables_set_number("OMPI_COMM_WORLD_RANK", rank);
    rank_variables_set_number("OMPI_COMM_WORLD_SIZE", size);
    rank_variables_set_number("OMPI_COMM_WORLD_LOCAL_RANK",
                              rank % per_instance);
    rank_variables_set_number("OMPI_COMM_WORLD_LOCAL_SIZE", per_instance);
    snprintf(node, sizeof node, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host,
             RANK_VARIABLES_BATCH_PORT);
    bool is_default = !strcmp(host, "127.0.0.1");
    if (size == per_instance)
        setenv("AZ_BATCHAI_MPI_MASTER_NODE", is_default ? "localhost" : host,
               1);
    else
        setenv("AZ_BATCH_MASTER_NODE", node, 1);
}

void rank_variables_set(const struct azureml_distribution *distribution,
                        const char *host, uint32_t rank) {
    uint32_t size = azureml_num_processes(distribution);
    if (distribution->type == AZUREML_MPI)
        set_mpi(host, rank, size, distribution->per_instance);
    else
        set_torch(host, rank, size, distribution->per_instance);
}

struct launch_process {
    const char *type; /* as in TF_CONFIG */
    unsigned index;
    char name[24];        /* "ps 1" */
    int port_socket;      /* holds its port */
    char *config;         /* its TF_CONFIG; NULL: the rank variables are set */
    pid_t pid;            /* 0: not running */
    int record;           /* launch_record.h */
    char exit_text[96];   /* how it ended before it had joined, or closed, the
                             run, which ends for that reason; "" */
    uint64_t incarnation; /* in the run that it did not close; 0: it did */
    struct restarts restarts;
    bool drilled; /* the drill has killed it */
    int lost; /* exit code of a command that failed beside the run, 0: none */
    unsigned lost_before; /* others that did before it */
};

/* Progress of the shutdown. */
enum shutdown_phase {
    RUNNING,         /* a deadline only while `absent` is set */
    CHIEF_SIGNALLED, /* the chief got a signal */
    ENDING,          /* the chief has ended */
    OTHERS_SIGNALLED,
    KILLED,
};

struct launch {
    const struct launch_settings *options;
    struct launch_process *processes; /* the chief first */
    unsigned count, alive;
    uint64_t id;
    char num_ps[24]; /* value of the flag --num-ps */
    struct children children;
    enum shutdown_phase shutdown_phase;
    int64_t deadline;  /* of the phase */
    double stop_grace; /* seconds that the others get after the chief */
    int exit_code;     /* the chief's */
    struct death_report report;
    struct {
        int64_t at; /* of the next kill; TIME_NEVER: there is none */
        unsigned ps, workers, chiefs; /* how many were killed */
    } drill;
    int failed; /* exit code of a process that kept the run from starting; 0:
                   none */
    unsigned num_lost;
    struct launch_process *absent; /* ended without an error or a run; NULL */
    /* Logged last; NULL: its own line is the last. */
    const struct launch_process *cause;
};

/* Each process gets the cluster description in the form of its launch: a
 * TF_CONFIG of its own, or the variables of its rank. */

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
        process->restarts.at = TIME_NEVER;
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
        process->restarts.at = TIME_NEVER;
    }
}

/* Names the processes; the first one leads. */
static void launch_name_processes(struct launch *launch) {
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

/* Describes the cluster to each process and reserves its port. STATUS_RETRY:
 * the system refuses. */
static enum status launch_configure(struct launch *launch,
                                    struct failure *why) {
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
    setenv(LAUNCH_RESTARTS, launch->options->max_restarts ? "1" : "0", 1);
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
    rank_variables_unset();
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

/* Is PROCESS one of the launch's command, and not of the program? */
static bool launch_runs_command(const struct launch *launch,
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
 * that an early one does not kill it. SIGQUIT goes to a command only when it
 * has a handler. */
static void launch_start_prepare(void *context) {
    const struct preparation *preparation = context;
    sigset_t waiting;
    sigemptyset(&waiting);
    sigaddset(&waiting, SIGUSR1);
    if (!launch_runs_command(preparation->launch, preparation->process))
        sigaddset(&waiting, SIGQUIT);
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
    if (process->record >= 0)
        close(process->record);
    child.record = process->record = launch_record_open(launch->id);
    process->drilled = false;
    restarts_begin(&process->restarts);
    if (!command)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory to start %s",
                           process->name);
    enum status status =
        children_start(&launch->children, &child, &process->pid, why);
    free(command);
    launch->alive += status == STATUS_OK;
    return status;
}

/* Starts the processes; after a failure some may be running. */
static enum status launch_start(struct launch *launch, struct failure *why) {
    for (unsigned i = 0; i < launch->count; i++) {
        enum status status =
            launch_start_start(launch, &launch->processes[i], why);
        if (status)
            return status;
    }
    return STATUS_OK;
}

/* Seconds: processes that a failed chief has told of its end are about to
 * leave; the others wait for it in vain. */
static const double AFTER_FAILURE = 0.5;
static const int64_t LOOK_INTERVAL = TIME_S / 5;
static const int64_t DRILL_INTERVAL = TIME_S / 20;

#define NOT_CLOSED "before it had closed its run"

/* Logs MESSAGE for each process that is still running (NULL: nothing) and sends
 * it signal NUMBER (0: none). */
static void signal_others(struct launch *launch, int number,
                          const char *message) {
    for (unsigned i = 0; i < launch->count; i++) {
        struct launch_process *process = &launch->processes[i];
        if (!process->pid)
            continue;
        if (message)
            log_warning(launch->options->log, "process_overdue",
                        "%s (pid %d) %s", process->name, (int)process->pid,
                        message);
        if (number)
            kill(process->pid, number);
    }
}

static void enter(struct launch *launch, enum shutdown_phase shutdown_phase,
                  double seconds) {
    int64_t now = time_now(), wait = time_from_seconds(seconds);
    launch->shutdown_phase = shutdown_phase;
    launch->deadline = wait < TIME_NEVER - now ? now + wait : TIME_NEVER;
}

/* Has the chief ended, and is not to be started again? */
static bool is_chief_gone(const struct launch *launch) {
    return !launch->processes[0].pid &&
           launch->processes[0].restarts.at == TIME_NEVER;
}

/* NUMBER is for a chief that is to be started again, which it is not then. */
static void end_without_chief(struct launch *launch, int number) {
    launch->processes[0].restarts.at = TIME_NEVER;
    launch->exit_code = 128 + number;
    signal_others(launch, SIGTERM, NULL);
    enter(launch, OTHERS_SIGNALLED, launch->options->stop);
}

static void signal_chief(struct launch *launch, int number) {
    const struct launch_settings *options = launch->options;
    if (!launch->processes[0].pid) {
        end_without_chief(launch, number);
        return;
    }
    kill(launch->processes[0].pid, number);
    if (launch->shutdown_phase == RUNNING)
        enter(launch, CHIEF_SIGNALLED, options->grace + options->stop);
}

/* The run cannot start without PROCESS, and no launcher restarts it. */
static void abort_run(struct launch *launch, struct launch_process *process,
                      int code) {
    bool config = code == STATUS_CONFIG || code == CHILDREN_NOT_STARTED;
    launch->failed = config                  ? STATUS_CONFIG
                     : code == STATUS_FAILED ? STATUS_FAILED
                                             : STATUS_RETRY;
    launch->cause = process;
    signal_chief(launch, SIGTERM);
}

/* A command that ended without an error before it had joined, while the chief
 * has a run, or begins one later: until then it may be a command that has none.
 */
static void abort_for_absent(struct launch *launch) {
    launch->deadline = TIME_NEVER;
    if (!launch->absent || is_chief_gone(launch))
        return;
    if (launch_record_in_run(launch->processes[0].record))
        abort_run(launch, launch->absent, STATUS_FAILED);
    else
        launch->deadline = time_now() + LOOK_INTERVAL;
}

static void launch_pass_deadline(struct launch *launch) {
    double stop = launch->options->stop;
    char message[128];
    switch (launch->shutdown_phase) {
    case RUNNING:
        abort_for_absent(launch);
        break;
    case CHIEF_SIGNALLED:
        log_warning(launch->options->log, "process_overdue",
                    "the chief did not end within timeouts.grace + "
                    "timeouts.stop (%g s): killed",
                    launch->options->grace + stop);
        kill(launch->processes[0].pid, SIGKILL);
        launch->deadline = TIME_NEVER;
        break;
    case ENDING:
        /* A failed chief has told the processes that it knew; that the others
         * wait in vain is not worth a line for each. */
        if (launch->stop_grace < stop && !launch->cause)
            launch->cause = &launch->processes[0];
        snprintf(message, sizeof message,
                 "still runs %g s (timeouts.stop) after the chief: SIGTERM",
                 launch->stop_grace);
        signal_others(launch, SIGTERM,
                      launch->stop_grace < stop ? NULL : message);
        enter(launch, OTHERS_SIGNALLED, stop);
        break;
    case OTHERS_SIGNALLED:
        signal_others(launch, SIGKILL, "does not end on SIGTERM: killed");
        enter(launch, KILLED, stop);
        break;
    case KILLED:
        signal_others(launch, 0, "does not end even on SIGKILL: left behind");
        launch->alive = 0;
        break;
    }
}

/* A process that ended with the run, or because of it, has logged that itself.
 */
static bool reports_own_exit(int code) {
    return code == STATUS_OK || code == STATUS_FAILED || code == STATUS_RETRY;
}

/* Was PROCESS started again, and has not joined since? */
static bool has_not_joined_again(const struct launch_process *process) {
    return process->restarts.follows &&
           !launch_record_has_joined(process->record);
}

/* What was started again and has not joined waits for a run that is over. */
static void end_late(const struct launch *launch) {
    for (unsigned i = 1; i < launch->count; i++) {
        const struct launch_process *process = &launch->processes[i];
        if (process->pid && has_not_joined_again(process))
            kill(process->pid, SIGTERM);
    }
}

/* A failed chief's own exit code has precedence, unless another process found
 * its configuration wrong. */
static void handle_chief_exit(struct launch *launch, int wait_status) {
    struct launch_process *chief = launch->processes;
    char exit_text[64];
    launch->exit_code = restarts_exit_code(chief->record, wait_status,
                                           "the chief", launch->options->log);
    status_end_text(wait_status, exit_text, sizeof exit_text);
    if (launch_runs_command(launch, chief) &&
        launch_record_in_run(chief->record)) {
        snprintf(chief->exit_text, sizeof chief->exit_text, "it %s " NOT_CLOSED,
                 exit_text);
        if (launch->exit_code == STATUS_OK)
            launch->exit_code = STATUS_FAILED;
    }
    bool keeps_cause = launch->exit_code == STATUS_TERMINATED ||
                       launch->failed == STATUS_CONFIG;
    /* A leading command that has no handler dies of the signal that it got
     * because of another process. */
    if (WIFSIGNALED(wait_status) && launch->exit_code &&
        !(launch->failed && WTERMSIG(wait_status) == SIGTERM))
        log_error(launch->options->log, "chief_died", "the chief %s",
                  exit_text);
    if (launch->cause && launch->exit_code == STATUS_CONFIG)
        launch->cause = chief; /* it logs whose error it was */
    else if (!keeps_cause)
        launch->cause = NULL;
    if (!keeps_cause)
        launch->failed = 0;
    end_late(launch);
    launch->stop_grace = launch->options->stop;
    if (launch->exit_code != STATUS_OK && launch->stop_grace > AFTER_FAILURE)
        launch->stop_grace = AFTER_FAILURE;
    enter(launch, ENDING, launch->stop_grace);
}

/* A ps that the run may do without. */
static bool is_spare(const struct launch *launch,
                     const struct launch_process *process) {
    return !strcmp(process->type, "ps") && process->restarts.follows &&
           launch_record_deaths(launch->processes->record) &
               LAUNCH_RECORD_SPARE;
}

/* If the death was reported to the chief, the chief logs it and decides the
 * consequence. */
static void handle_early_exit(struct launch *launch,
                              struct launch_process *process, int wait_status,
                              bool reported) {
    int code = children_exit_code(wait_status);
    bool joined = launch_record_has_joined(process->record);
    char exit_text[64];
    status_end_text(wait_status, exit_text, sizeof exit_text);
    if (!reported && !reports_own_exit(code) && code != STATUS_CONFIG)
        log_warning(launch->options->log, "process_died",
                    "%s %s while the chief still runs", process->name,
                    exit_text);
    if (code == STATUS_CONFIG ||
        (code != STATUS_OK && !joined && !is_spare(launch, process)))
        abort_run(launch, process, code);
    if (!joined && (WIFSIGNALED(wait_status) || code == STATUS_OK))
        snprintf(process->exit_text, sizeof process->exit_text,
                 "before it had joined it %s", exit_text);
    if (code != STATUS_OK || joined || !launch_runs_command(launch, process))
        return;
    launch->absent = process;
    abort_for_absent(launch);
}

/* A command that failed, or ended before it had closed its run, which may go on
 * without it: true. One that was told to leave has left. */
static bool record_loss(struct launch *launch, struct launch_process *process,
                        int wait_status) {
    struct launch_record record;
    int code = children_exit_code(wait_status);
    bool closed = !launch_record_in_run(process->record);
    if (launch->shutdown_phase >= OTHERS_SIGNALLED ||
        !launch_runs_command(launch, process) ||
        has_not_joined_again(process) || /* the loss before is recorded */
        (closed && (code == STATUS_OK || code == STATUS_HUNG_UP ||
                    code == STATUS_INTERRUPTED || code == STATUS_TERMINATED)))
        return false;
    (void)launch_record_read(process->record, &record);
    process->incarnation = record.incarnation;
    process->lost = code ? code : STATUS_FAILED;
    process->lost_before = launch->num_lost++;
    return true;
}

static void log_loss(const struct launch *launch,
                     const struct launch_process *process, int wait_status) {
    char exit_text[64];
    if (!launch_record_in_run(process->record))
        return;
    status_end_text(wait_status, exit_text, sizeof exit_text);
    log_warning(launch->options->log, "process_died", "%s %s %s", process->name,
                exit_text, NOT_CLOSED);
}

/* The exit code of the first command that failed and whose rank did not come
 * back, while the run went on to its end; 0: there is none. */
static int code_of_loss(const struct launch *launch) {
    const struct launch_process *first = NULL;
    for (unsigned i = 1; i < launch->count; i++) {
        const struct launch_process *process = &launch->processes[i];
        if (process->lost &&
            (!first || process->lost_before < first->lost_before) &&
            !(process->incarnation &&
              launch_record_was_replaced(launch->processes[0].record,
                                         process->incarnation)))
            first = process;
    }
    return first ? first->lost : 0;
}

/* A process that has ended is started again while the run goes on. Of a ps
 * whose restarts are used up the others may take over the weights: the chief
 * decides. */
static bool start_again(struct launch *launch, struct launch_process *process,
                        int wait_status) {
    const struct launch_settings *options = launch->options;
    bool leads = process == launch->processes;
    if (!options->max_restarts || launch->shutdown_phase != RUNNING ||
        (!leads && is_chief_gone(launch)) ||
        !restarts_apply(&process->restarts, process->record, wait_status))
        return false;
    if (process->drilled && WIFSIGNALED(wait_status))
        restarts_now(&process->restarts, process->name, options->log);
    else if (!restarts_next(&process->restarts, process->name, wait_status,
                            options->max_restarts, options->log)) {
        if (leads || is_spare(launch, process) ||
            (!strcmp(process->type, "ps") &&
             launch_record_has_joined(process->record)))
            return false;
        abort_run(launch, process, STATUS_RETRY);
    }
    return true;
}

static void start_due(struct launch *launch, int64_t now) {
    struct failure why;
    for (unsigned i = 0; i < launch->count; i++) {
        struct launch_process *process = &launch->processes[i];
        if (process->restarts.at > now)
            continue;
        process->restarts.at = TIME_NEVER;
        if (launch->shutdown_phase != RUNNING ||
            !launch_start_start(launch, process, &why))
            continue;
        log_failure(launch->options->log, &why);
        abort_run(launch, process, STATUS_RETRY);
    }
}

/* The launch's deadline, or the first restart or kill before it. */
static int64_t launch_next_deadline(const struct launch *launch) {
    int64_t next = launch->deadline;
    if (launch->drill.at < next)
        next = launch->drill.at;
    for (unsigned i = 0; i < launch->count; i++)
        if (launch->processes[i].restarts.at < next)
            next = launch->processes[i].restarts.at;
    return next;
}

static void launch_handle_exit(struct launch *launch,
                               struct launch_process *process,
                               int wait_status) {
    process->pid = 0;
    launch->alive--;
    if (process == launch->processes) {
        if (!start_again(launch, process, wait_status))
            handle_chief_exit(launch, wait_status);
        return;
    }
    bool lost = record_loss(launch, process, wait_status);
    bool again = start_again(launch, process, wait_status);
    bool reported =
        launch->processes[0].pid &&
        death_report_send(&launch->report, process->record, wait_status, !again,
                          launch->options->log);
    if (again)
        return;
    if (lost)
        log_loss(launch, process, wait_status);
    if (launch->shutdown_phase == RUNNING)
        handle_early_exit(launch, process, wait_status, reported);
}

/* One SIGCHLD may stand for several children. */
static void launch_reap(struct launch *launch) {
    for (unsigned i = 0; i < launch->count; i++) {
        struct launch_process *process = &launch->processes[i];
        int wait_status;
        if (process->pid && children_reap(process->pid, &wait_status))
            launch_handle_exit(launch, process, wait_status);
    }
}

/* The set of launch_record_death that has PROCESS's. */
static unsigned drill_role(const struct launch *launch,
                           const struct launch_process *process) {
    if (process == launch->processes)
        return LAUNCH_RECORD_CHIEF;
    return !strcmp(process->type, "ps") ? LAUNCH_RECORD_PS
                                        : LAUNCH_RECORD_WORKER;
}

/* From half of kill_every to one and a half of it. */
static int64_t drill_next(const struct launch *launch) {
    uint32_t drawn = UINT32_MAX / 2;
    if (getrandom(&drawn, sizeof drawn, 0) < 0)
        drawn = UINT32_MAX / 2;
    double share = 0.5 + drawn / (double)UINT32_MAX;
    return time_now() + time_from_seconds(share * launch->options->kill_every);
}

/* A ps whose restarts are used up, and which the run does without. */
static bool is_given_up(const struct launch *launch,
                        const struct launch_process *process) {
    return !process->pid && process->restarts.at == TIME_NEVER &&
           is_spare(launch, process);
}

/* One of the members whose role is in ROLES, evenly; NULL: there is none, or
 * one that was killed is not there again, which the chief may not know yet. */
static struct launch_process *drill_draw(struct launch *launch,
                                         unsigned roles) {
    struct launch_process *drawn = NULL;
    uint32_t number = 0, among = 0;
    for (unsigned i = 0; i < launch->count; i++) {
        struct launch_process *process = &launch->processes[i];
        if (is_given_up(launch, process))
            continue;
        if (!process->pid || process->drilled ||
            !launch_record_in_run(process->record))
            return NULL;
        if (!(drill_role(launch, process) & roles) ||
            getrandom(&number, sizeof number, 0) < 0)
            continue;
        if (number % ++among == 0)
            drawn = process;
    }
    return drawn;
}

static void drill_kill(struct launch *launch, struct launch_process *process) {
    unsigned role = drill_role(launch, process);
    bool ps = role == LAUNCH_RECORD_PS, chief = role == LAUNCH_RECORD_CHIEF;
    unsigned count = ++*(ps      ? &launch->drill.ps
                         : chief ? &launch->drill.chiefs
                                 : &launch->drill.workers);
    log_warning(launch->options->log, "drill_kills",
                "drill: kills %s (pid %d), %s number %u", process->name,
                (int)process->pid,
                ps      ? "ps"
                : chief ? "chief"
                        : "worker",
                count);
    process->drilled = true;
    kill(process->pid, SIGKILL);
    launch->drill.at = drill_next(launch);
}

/* Kills a process, if it is time to and the run survives it; else looks again
 * soon. */
static void drill_step(struct launch *launch, int64_t now) {
    if (now < launch->drill.at)
        return;
    launch->drill.at = TIME_NEVER;
    launch_reap(launch); /* who has died by itself is not killed */
    if (launch->shutdown_phase != RUNNING)
        return;
    struct launch_process *process =
        drill_draw(launch, launch->options->kills &
                               launch_record_deaths(launch->processes->record));
    if (process)
        drill_kill(launch, process);
    else
        launch->drill.at = now + DRILL_INTERVAL;
}

static void drill_end(const struct launch *launch) {
    const struct log *log = launch->options->log;
    unsigned ps = launch->drill.ps, workers = launch->drill.workers,
             chiefs = launch->drill.chiefs;
    if (launch->options->kill_every <= 0)
        return;
    if (ps + workers + chiefs)
        log_info(log, "drill_ended",
                 "drill: killed ps %u times, workers %u times and the chief "
                 "%u times",
                 ps, workers, chiefs);
    else
        log_warning(log, "drill_without_kills",
                    "drill: killed nothing, as the run would not have survived "
                    "it or was too short: --kill ps and chief, and in "
                    "all-reduce --kill worker, need checkpoint.dir and what "
                    "docs/running.md, Going back, says; all must train, "
                    "for longer than --kill-every, two seconds before the end");
}

/* Has PID a handler for SIGQUIT? A fork of this process has none. */
static bool handles_quit(pid_t pid) {
    char path[64], line[256];
    unsigned long long caught = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "SigCgt: %llx", &caught) == 1)
            break;
    if (file)
        fclose(file);
    return caught >> (SIGQUIT - 1) & 1;
}

/* The leader asks all others for what they wait for. Where it has no handler
 * for SIGQUIT, which would end it, each other process tells of itself. */
static void launch_report(const struct launch *launch) {
    for (unsigned i = 0; i < launch->count; i++) {
        const struct launch_process *process = &launch->processes[i];
        if (!process->pid)
            continue;
        if (!launch_runs_command(launch, process) ||
            handles_quit(process->pid)) {
            kill(process->pid, SIGQUIT);
            if (i == 0)
                return;
        } else {
            log_warning(launch->options->log, "hang_report",
                        "%s (pid %d) is not asked: its program has no handler "
                        "for SIGQUIT, which would end it",
                        process->name, (int)process->pid);
        }
    }
}

/* A closing terminal may send SIGHUP twice: that is not a second request. */
static void launch_handle_signal(struct launch *launch, int number) {
    pid_t chief = launch->processes[0].pid;
    if (number == SIGCHLD)
        launch_reap(launch);
    else if (number == SIGQUIT)
        launch_report(launch);
    else if (number == SIGUSR1 && chief)
        kill(chief, number);
    else if (number == SIGUSR1 ||
             (number == SIGHUP && launch->shutdown_phase != RUNNING))
        return;
    else if (!is_chief_gone(launch)) {
        if (launch->failed != STATUS_CONFIG)
            launch->failed = 0; /* the signal is the cause */
        signal_chief(launch, number);
    } else
        launch->deadline = time_now(); /* a second request: end at once */
}

static void launch_supervise(struct launch *launch) {
    while (launch->alive || launch->processes[0].restarts.at < TIME_NEVER) {
        int number =
            children_wait(&launch->children, launch_next_deadline(launch));
        int64_t now = time_now();
        if (number)
            launch_handle_signal(launch, number);
        else if (now >= launch->deadline)
            launch_pass_deadline(launch);
        start_due(launch, now);
        drill_step(launch, now);
    }
}

/* Kills the processes of a start that failed half-way. */
static void launch_kill_all(struct launch *launch) {
    for (unsigned i = 0; i < launch->count; i++) {
        if (!launch->processes[i].pid)
            continue;
        kill(-launch->processes[i].pid, SIGKILL);
        kill(launch->processes[i].pid, SIGKILL); /* may have left its group */
        waitpid(launch->processes[i].pid, NULL, 0);
    }
}

static void free_processes(struct launch *launch) {
    for (unsigned i = 0; i < launch->count; i++) {
        if (launch->processes[i].port_socket >= 0)
            close(launch->processes[i].port_socket);
        if (launch->processes[i].record >= 0)
            close(launch->processes[i].record);
        free(launch->processes[i].config);
    }
    free(launch->processes);
}

static enum status check_program(const char *program, struct failure *why) {
    if (!access(program, X_OK))
        return STATUS_OK;
    return status_errno(why, FAILURE_PROGRAM_MISSING, errno,
                        "the program to start, %s", program);
}

enum status launch_run(const struct launch_settings *options, int *exit_code,
                       struct failure *why) {
    struct launch launch = {.options = options,
                            .id = message_random(),
                            .count = !options->command + options->num_ps +
                                     options->num_workers,
                            .deadline = TIME_NEVER};
    enum status status = check_program(options->program, why);
    if (status)
        return status;
    if (options->azureml_distribution)
        launch.count = azureml_num_processes(options->azureml_distribution);
    if (options->metrics.port &&
        options->metrics.port + launch.count - 1 > UINT16_MAX)
        return status_fail(why, FAILURE_BAD_FLAG_VALUE,
                           "--metrics-port %u: %u processes need as many ports "
                           "from it on, up to %u",
                           options->metrics.port, launch.count, UINT16_MAX);
    launch.processes = calloc(launch.count, sizeof *launch.processes);
    if (!launch.processes)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "out of memory for %u processes", launch.count);
    launch_name_processes(&launch);
    launch.drill.at =
        options->kill_every > 0 ? drill_next(&launch) : TIME_NEVER;
    const int more[] = {SIGUSR1, SIGQUIT};
    status = children_open(&launch.children, more, 2, why);
    if (!status)
        status = launch_configure(&launch, why);
    if (!status)
        status = launch_start(&launch, why);
    if (status)
        launch_kill_all(&launch);
    else
        launch_supervise(&launch);
    if (launch.cause)
        log_info(options->log, "run_aborted", "%s ended the run: %s",
                 launch.cause->name,
                 launch.cause->exit_text[0] ? launch.cause->exit_text
                                            : "its own lines say why");
    *exit_code = launch.failed ? launch.failed : launch.exit_code;
    if (!status && *exit_code == STATUS_OK)
        *exit_code = code_of_loss(&launch);
    drill_end(&launch);
    death_report_close(&launch.report);
    children_close(&launch.children);
    free_processes(&launch);
    return status;
}

void launch_program(char *path, size_t size) {
    ssize_t length = readlink("/proc/self/exe", path, size - 1);
    if (length < 0)
        snprintf(path, size, "/proc/self/exe");
    else
        path[length] = 0;
}

/* Counts GPUs whether or not this build supports them; 0: there is none, and
 * WHY says why. */
static uint32_t count_gpus(struct failure *why) {
    const void *table;
    if (plugin_find(&table, "cuda", DEVICE_SYMBOL, DEVICE_ABI, why))
        return 0;
    return ((const struct device_head *)table)->count();
}

enum status launch_count_fill(struct launch_world *world, const struct log *log,
                              struct failure *why) {
    struct failure none = {0};
    if (world->nproc_kind == LAUNCH_NPROC_NUMBER)
        return STATUS_OK;
    uint32_t gpus =
        world->nproc_kind == LAUNCH_NPROC_CPU ? 0 : count_gpus(&none);
    if (world->nproc_kind == LAUNCH_NPROC_GPU && !gpus)
        return status_fail(why, FAILURE_NO_DEVICE,
                           "--nproc_per_node is gpu, and none is found here"
                           "%s%.400s",
                           none.text[0] ? ": " : "", none.text);
    world->nproc_per_node = gpus ? gpus : cores_count();
    log_info(log, "processes_counted", "%u process%s: one for each %s",
             world->nproc_per_node, world->nproc_per_node == 1 ? "" : "es",
             gpus ? "GPU" : "processor");
    return STATUS_OK;
}
