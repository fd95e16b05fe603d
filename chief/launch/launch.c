#include "chief/launch/launch.h"

#include "chief/launch/children.h"
#include "chief/launch/death_report.h"
#include "chief/launch/port.h"
#include "chief/launch/rank_variables.h"
#include "proto/base/time.h"
#include "proto/wire/member_record.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Seconds: whom a failed chief has told of its end is about to leave; the
 * others wait for it in vain. */
static const double AFTER_FAILURE = 0.5;

struct process {
    const char *type; /* as in TF_CONFIG */
    unsigned index;
    char name[24]; /* "ps 1" */
    int holder;    /* of its port */
    char *config;  /* its TF_CONFIG, or NULL: told by rank */
    pid_t pid;     /* 0: not running */
    int record;    /* member_record.h */
    char end[64];  /* how it ended before it had joined, the run's cause */
};

/* How far the end has come. */
enum stage {
    RUNNING, /* for as long as the run takes: its deadlines are the chief's */
    CHIEF_TOLD, /* a signal went to the chief */
    ENDING,     /* the chief is gone */
    OTHERS_TOLD,
    KILLED,
};

struct launch {
    const struct launch_options *options;
    struct process *processes; /* the chief first */
    unsigned count, alive;
    char num_ps[24]; /* the flag that says how many ranks are ps */
    struct children children;
    enum stage stage;
    int64_t deadline; /* of the stage */
    double given;     /* seconds to those the chief leaves behind */
    int exit_code;    /* the chief's */
    struct death_report report;
    int failed; /* in its place, of a process without which no run begins; 0 */
    const struct process *cause; /* named last; NULL: its line is the last */
};

static bool by_ranks(const struct launch *launch) {
    const struct distribution *distribution = launch->options->distribution;
    return distribution && distribution->type != DISTRIBUTION_TENSORFLOW;
}

/* Who leads is the first. */
static void name_distributed(struct launch *launch) {
    unsigned workers = launch->options->distribution->workers;
    for (unsigned i = 0; i < launch->count; i++) {
        struct process *process = &launch->processes[i];
        process->type = i < workers ? "worker" : "ps";
        process->index = i < workers ? i : i - workers;
        if (by_ranks(launch))
            snprintf(process->name, sizeof process->name, "rank %u", i);
        else
            snprintf(process->name, sizeof process->name, "%s %u",
                     process->type, process->index);
        process->holder = process->record = -1;
    }
}

static void name_processes(struct launch *launch) {
    unsigned num_ps = launch->options->num_ps;
    for (unsigned i = 0; i < launch->count; i++) {
        struct process *process = &launch->processes[i];
        process->type = i == 0 ? "chief" : i <= num_ps ? "ps" : "worker";
        process->index = i == 0 ? 0 : i <= num_ps ? i - 1 : i - 1 - num_ps;
        if (i == 0)
            snprintf(process->name, sizeof process->name, "chief");
        else
            snprintf(process->name, sizeof process->name, "%s %u",
                     process->type, process->index);
        process->holder = process->record = -1;
    }
}

/* Holds a port for each process and returns the cluster as TF_CONFIG has it,
 * the caller's; NULL fills WHY. */
static json_t *describe_cluster(struct launch *launch, struct failure *why) {
    json_t *cluster = json_object();
    for (unsigned i = 0; i < launch->count; i++) {
        struct process *process = &launch->processes[i];
        char address[32];
        uint16_t port;
        if (port_hold(&port, &process->holder, why)) {
            json_decref(cluster);
            return NULL;
        }
        snprintf(address, sizeof address, "127.0.0.1:%d", port);
        if (!json_object_get(cluster, process->type))
            json_object_set_new(cluster, process->type, json_array());
        json_array_append_new(json_object_get(cluster, process->type),
                              json_string(address));
    }
    return cluster;
}

static enum status configure(struct launch *launch, struct failure *why) {
    if (by_ranks(launch))
        return STATUS_OK;
    json_t *cluster = describe_cluster(launch, why);
    if (!cluster)
        return STATUS_RETRY;
    for (unsigned i = 0; i < launch->count; i++) {
        struct process *process = &launch->processes[i];
        json_t *config =
            json_pack("{s:O, s:{s:s, s:i}}", "cluster", cluster, "task", "type",
                      process->type, "index", (int)process->index);
        if (launch->options->distribution)
            json_object_set_new(config, "environment", json_string("cloud"));
        process->config = json_dumps(config, JSON_COMPACT);
        json_decref(config);
        if (!process->config)
            break;
    }
    json_decref(cluster);
    if (!launch->processes[launch->count - 1].config)
        return status_fail(why, STATUS_RETRY, "out of memory for TF_CONFIG");
    return STATUS_OK;
}

/* In the child: the ps that run already, for a worker to look at. */
static void list_ps(const struct launch *launch) {
    char list[16384] = "";
    size_t used = 0;
    for (unsigned i = 0; i < launch->count; i++)
        if (!strcmp(launch->processes[i].type, "ps") &&
            launch->processes[i].pid && used + 16 < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%d",
                                     used ? "," : "",
                                     (int)launch->processes[i].pid);
    setenv(LAUNCH_PS_PIDS, list, 1);
    setenv(LAUNCH_TOGETHER, "1", 1);
}

/* In the child: nothing but its own task describes a cluster. */
static void set_environment(const struct launch *launch,
                            const struct process *process) {
    static const char *const others[] = {
        "TF_CONFIG",        "CLUSTER_SPEC", "JOB_NAME",
        "TASK_INDEX",       "RANK",         "WORLD_SIZE",
        "NODE_RANK",        "LOCAL_RANK",   "GROUP_RANK",
        "GROUP_WORLD_SIZE", "ROLE_NAME",    "ROLE_RANK",
        "ROLE_WORLD_SIZE",  "HOROVOD_RANK", "HOROVOD_SIZE"};
    static const char *const starts[] = {
        "MASTER_", "LOCAL_WORLD_", "TORCHELASTIC_", "PET_",   "OMPI_",
        "PMI_",    "PMIX_",        "MPI_LOCAL",     "SLURM_", "AZ_BATCH"};
    for (unsigned i = 0; i < sizeof others / sizeof *others; i++)
        unsetenv(others[i]);
    for (unsigned i = 0; i < sizeof starts / sizeof *starts; i++)
        rank_variables_hide(starts[i]);
    if (process->config)
        setenv("TF_CONFIG", process->config, 1);
    else
        rank_variables_set(launch->options->distribution,
                           (uint32_t)(process - launch->processes));
}

/* "capstan run", and the chief's arguments; the list is the caller's. */
static const char **run_command(const struct launch *launch, bool chief) {
    const struct launch_options *options = launch->options;
    char *const *extra = options->run_arguments;
    bool takes = chief || options->arguments_for_all;
    size_t count = 0;
    while (takes && extra && extra[count])
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
    const struct process *process;
};

/* In the child. A SIGUSR1 that comes before it takes signals waits. */
static void prepare(void *context) {
    const struct preparation *preparation = context;
    sigset_t waiting;
    sigemptyset(&waiting);
    sigaddset(&waiting, SIGUSR1);
    sigprocmask(SIG_BLOCK, &waiting, NULL);
    set_environment(preparation->launch, preparation->process);
    list_ps(preparation->launch);
}

static bool speaks(const struct launch *launch, const struct process *process) {
    return launch->options->workers_speak ? !strcmp(process->type, "worker")
                                          : process == launch->processes;
}

static enum status start(struct launch *launch, struct process *process,
                         struct failure *why) {
    const char **command = run_command(launch, process == launch->processes);
    struct preparation preparation = {launch, process};
    struct child_start child = {.name = process->name,
                                .program = launch->options->program,
                                .arguments = (char *const *)command,
                                .speaks = speaks(launch, process),
                                .prepare = prepare,
                                .context = &preparation,
                                .log = launch->options->log};
    child.record = process->record = member_record_open();
    if (!command)
        return status_fail(why, STATUS_RETRY, "no memory to start %s",
                           process->name);
    enum status status =
        children_start(&launch->children, &child, &process->pid, why);
    free(command);
    launch->alive += status == STATUS_OK;
    return status;
}

static enum status start_all(struct launch *launch, struct failure *why) {
    for (unsigned i = 0; i < launch->count; i++) {
        enum status status = start(launch, &launch->processes[i], why);
        if (status)
            return status;
    }
    return STATUS_OK;
}

/* Names those still running with WHAT is to be said of each (NULL: nothing),
 * and signals them (NUMBER 0: no more). */
static void signal_others(struct launch *launch, int number, const char *what) {
    for (unsigned i = 0; i < launch->count; i++) {
        struct process *process = &launch->processes[i];
        if (!process->pid)
            continue;
        if (what)
            log_warning(launch->options->log, "%s (pid %d) %s", process->name,
                        (int)process->pid, what);
        if (number)
            kill(process->pid, number);
    }
}

static void enter(struct launch *launch, enum stage stage, double seconds) {
    int64_t now = time_now(), wait = time_from_seconds(seconds);
    launch->stage = stage;
    launch->deadline = wait < TIME_NEVER - now ? now + wait : TIME_NEVER;
}

static void tell_chief(struct launch *launch, int number) {
    const struct launch_options *options = launch->options;
    kill(launch->processes[0].pid, number);
    if (launch->stage == RUNNING)
        enter(launch, CHIEF_TOLD, options->grace + options->stop);
}

static void pass_deadline(struct launch *launch) {
    double stop = launch->options->stop;
    char what[128];
    switch (launch->stage) {
    case RUNNING:
        break;
    case CHIEF_TOLD:
        log_warning(launch->options->log,
                    "the chief did not end within timeouts.grace + "
                    "timeouts.stop (%g s): killed",
                    launch->options->grace + stop);
        kill(launch->processes[0].pid, SIGKILL);
        launch->deadline = TIME_NEVER;
        break;
    case ENDING:
        /* A chief that failed has told those it knew; that the others wait in
         * vain is no news of each. */
        if (launch->given < stop && !launch->cause)
            launch->cause = &launch->processes[0];
        snprintf(what, sizeof what,
                 "still runs %g s (timeouts.stop) after the chief: SIGTERM",
                 launch->given);
        signal_others(launch, SIGTERM, launch->given < stop ? NULL : what);
        enter(launch, OTHERS_TOLD, stop);
        break;
    case OTHERS_TOLD:
        signal_others(launch, SIGKILL, "does not end on SIGTERM: killed");
        enter(launch, KILLED, stop);
        break;
    case KILLED:
        signal_others(launch, 0, "does not end even on SIGKILL: left behind");
        launch->alive = 0;
        break;
    }
}

/* Who ended with the run, or because of it, has told so itself. */
static bool says_itself(int code) {
    return code == STATUS_OK || code == STATUS_FAILED || code == STATUS_RETRY;
}

/* One that failed by itself knows better, unless a process alone finds a
 * configuration wrong. */
static void note_chief_end(struct launch *launch, int wait_status) {
    struct process *chief = launch->processes;
    char end[64];
    launch->exit_code = children_exit_code(wait_status);
    bool stands = launch->exit_code == STATUS_TERMINATED ||
                  launch->failed == STATUS_CONFIG;
    children_end_text(wait_status, end, sizeof end);
    if (WIFSIGNALED(wait_status))
        log_error(launch->options->log, "the chief %s", end);
    if (launch->cause && launch->exit_code == STATUS_CONFIG)
        launch->cause = chief; /* it says whose error it was */
    else if (!stands)
        launch->cause = NULL;
    if (!stands)
        launch->failed = 0;
    launch->given = launch->options->stop;
    if (launch->exit_code != STATUS_OK && launch->given > AFTER_FAILURE)
        launch->given = AFTER_FAILURE;
    enter(launch, ENDING, launch->given);
}

/* The run cannot begin without it, and nobody starts it again. */
static void end_without(struct launch *launch, struct process *process,
                        int code) {
    bool config = code == STATUS_CONFIG || code == CHILDREN_NOT_STARTED;
    launch->failed = config                  ? STATUS_CONFIG
                     : code == STATUS_FAILED ? STATUS_FAILED
                                             : STATUS_RETRY;
    launch->cause = process;
    tell_chief(launch, SIGTERM);
}

/* What the chief was TOLD it says, and knows what follows. */
static void note_early_end(struct launch *launch, struct process *process,
                           int wait_status, bool told) {
    int code = children_exit_code(wait_status);
    bool joined = member_record_has_joined(process->record);
    char end[64];
    children_end_text(wait_status, end, sizeof end);
    if (!told && !says_itself(code) && code != STATUS_CONFIG)
        log_warning(launch->options->log, "%s %s while the chief still runs",
                    process->name, end);
    if (code == STATUS_CONFIG || (code != STATUS_OK && !joined))
        end_without(launch, process, code);
    if (!joined && WIFSIGNALED(wait_status))
        snprintf(process->end, sizeof process->end, "%s", end);
}

static void note_end(struct launch *launch, struct process *process,
                     int wait_status) {
    process->pid = 0;
    launch->alive--;
    if (process == launch->processes) {
        note_chief_end(launch, wait_status);
        return;
    }
    bool told = launch->processes[0].pid &&
                death_report_send(&launch->report, process->record, wait_status,
                                  launch->options->log);
    if (launch->stage == RUNNING)
        note_early_end(launch, process, wait_status, told);
}

/* One signal may stand for several children. */
static void reap(struct launch *launch) {
    for (unsigned i = 0; i < launch->count; i++) {
        struct process *process = &launch->processes[i];
        int wait_status;
        if (process->pid &&
            waitpid(process->pid, &wait_status, WNOHANG) == process->pid)
            note_end(launch, process, wait_status);
    }
}

/* A terminal that goes away may say so twice: that is nobody's impatience. */
static void take_signal(struct launch *launch, int number) {
    pid_t chief = launch->processes[0].pid;
    if (number == SIGCHLD)
        reap(launch);
    else if (number == SIGUSR1 && chief)
        kill(chief, number);
    else if (number == SIGUSR1 ||
             (number == SIGHUP && launch->stage != RUNNING))
        return;
    else if (chief) {
        if (launch->failed != STATUS_CONFIG)
            launch->failed = 0; /* the signal is the cause */
        tell_chief(launch, number);
    } else
        launch->deadline = time_now(); /* someone is impatient */
}

static void supervise(struct launch *launch) {
    while (launch->alive) {
        int number = children_wait(&launch->children, launch->deadline);
        if (number)
            take_signal(launch, number);
        else
            pass_deadline(launch);
    }
}

/* Those that a start which failed half-way leaves behind. */
static void kill_all(struct launch *launch) {
    for (unsigned i = 0; i < launch->count; i++) {
        if (!launch->processes[i].pid)
            continue;
        kill(launch->processes[i].pid, SIGKILL);
        waitpid(launch->processes[i].pid, NULL, 0);
    }
}

static void free_processes(struct launch *launch) {
    for (unsigned i = 0; i < launch->count; i++) {
        if (launch->processes[i].holder >= 0)
            close(launch->processes[i].holder);
        if (launch->processes[i].record >= 0)
            close(launch->processes[i].record);
        free(launch->processes[i].config);
    }
    free(launch->processes);
}

static enum status check_program(const char *program, struct failure *why) {
    if (!access(program, X_OK))
        return STATUS_OK;
    return status_errno(why, STATUS_CONFIG, errno, "the program to start, %s",
                        program);
}

enum status launch_run(const struct launch_options *options, int *exit_code,
                       struct failure *why) {
    struct launch launch = {.options = options,
                            .count = 1 + options->num_ps + options->num_workers,
                            .deadline = TIME_NEVER};
    enum status status = check_program(options->program, why);
    if (status)
        return status;
    if (options->distribution)
        launch.count = distribution_size(options->distribution);
    if (by_ranks(&launch))
        snprintf(launch.num_ps, sizeof launch.num_ps, "--num-ps=%u",
                 options->distribution->num_ps);
    launch.processes = calloc(launch.count, sizeof *launch.processes);
    if (!launch.processes)
        return status_fail(why, STATUS_RETRY, "out of memory for %u processes",
                           launch.count);
    if (options->distribution)
        name_distributed(&launch);
    else
        name_processes(&launch);
    const int saves = SIGUSR1;
    status = children_open(&launch.children, &saves, 1, why);
    if (!status)
        status = configure(&launch, why);
    if (!status)
        status = start_all(&launch, why);
    if (status)
        kill_all(&launch);
    else
        supervise(&launch);
    if (launch.cause)
        log_info(options->log, "%s ended the run: %s%s", launch.cause->name,
                 launch.cause->end[0] ? "before it had joined it "
                                      : "its own lines say why",
                 launch.cause->end);
    *exit_code = launch.failed ? launch.failed : launch.exit_code;
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
