/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/verbs.h"

#include "chief/plan/strategy.h"
#include "commands/cli/cli_flag.h"
#include "commands/cli/launch_options.h"
#include "commands/launch/azureml_command.h"
#include "commands/launch/children.h"
#include "commands/launch/death_report.h"
#include "commands/launch/launch.h"
#include "commands/launch/restarts.h"
#include "commands/process_settings.h"
#include "core/base/log.h"
#include "core/base/secret_file.h"
#include "core/base/status.h"
#include "core/base/time.h"
#include "core/store/fs_info.h"
#include "proto/messages/launch_record.h"
#include "proto/messages/message.h"
#include "worker/data/dataset.h"
#include "worker/models/model.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Starts the processes of one node of a job, any command, with rank variables
 * as torch.distributed.launch sets them. */

static const int forwarded[] = {SIGQUIT, SIGUSR1};
enum { FORWARDED = sizeof forwarded / sizeof *forwarded };

/* Time that SIGKILL may need. */
static const int64_t AFTER_KILL = 10 * TIME_S;

/* Time in which a process that was started again joins its run: longer than a
 * script takes to import what it needs. */
static const int64_t REJOIN_LIMIT = 120 * TIME_S;

struct node_process {
    pid_t pid;  /* 0: has ended */
    int record; /* launch_record.h */
    struct restarts restarts;
    bool spare; /* the run may do without it: LAUNCH_RECORD_SPARE */
    int code;   /* with which it ended before it was started again */
    char name[32];
};

struct node_launch {
    const struct options *flags;
    const struct launch_world *world;
    const struct log *log;
    struct children children;
    struct node_process *processes; /* [nproc_per_node] */
    struct death_report report;
    uint64_t id;
    uint32_t alive;   /* or to be started again */
    bool ending;      /* all have been told to end */
    bool killed;      /* SIGKILL was sent */
    int64_t deadline; /* of the current step of ending */
    int exit_code;
};

struct node_preparation {
    const struct launch_world *world;
    uint32_t local_rank;
    bool restarts; /* processes that die are started again */
};

static void node_launch_set_number(const char *name, uint32_t value) {
    char text[16];
    snprintf(text, sizeof text, "%u", value);
    setenv(name, text, 1);
}

static void node_launch_prepare(void *context) {
    const struct node_preparation *preparation = context;
    const struct launch_world *world = preparation->world;
    setenv("MASTER_ADDR", world->master_addr, 1);
    node_launch_set_number("MASTER_PORT", world->master_port);
    node_launch_set_number("WORLD_SIZE", world->nnodes * world->nproc_per_node);
    node_launch_set_number("RANK", world->node_rank * world->nproc_per_node +
                                       preparation->local_rank);
    node_launch_set_number("LOCAL_RANK", preparation->local_rank);
    node_launch_set_number("LOCAL_WORLD_SIZE", world->nproc_per_node);
    node_launch_set_number("NODE_RANK", world->node_rank);
    setenv(LAUNCH_RESTARTS, preparation->restarts ? "1" : "0", 1);
    unsetenv(
        "TORCHELASTIC_USE_AGENT_STORE"); /* set by a launcher around this one */
    if (world->nproc_per_node > 1)
        setenv("OMP_NUM_THREADS", "1", 0);
}

static bool is_python(const struct options *flags) {
    const char *command = flags->command[0];
    size_t length = strlen(command);
    return !flags->no_python &&
           (flags->module ||
            (length > 3 && !strcmp(command + length - 3, ".py")));
}

/* Appends FLAG; the caller frees the list. */
static char **make_command(const struct options *flags, char *flag) {
    size_t count = 0, used = 0;
    while (flags->command[count])
        count++;
    char **command = calloc(count + 5, sizeof *command);
    if (!command)
        return NULL;
    if (is_python(flags)) {
        command[used++] = (char *)"python3";
        command[used++] = (char *)"-u";
    }
    if (flags->module)
        command[used++] = (char *)"-m";
    memcpy(command + used, flags->command, count * sizeof *command);
    if (!flags->use_env && !flags->no_python)
        command[used + count] = flag;
    return command;
}

static enum status node_launch_start(struct node_launch *launch,
                                     uint32_t local_rank, struct failure *why) {
    struct node_process *process = &launch->processes[local_rank];
    struct node_preparation preparation = {launch->world, local_rank,
                                           launch->flags->max_restarts > 0};
    char flag[32];
    snprintf(flag, sizeof flag, "--local_rank=%u", local_rank);
    snprintf(process->name, sizeof process->name, "rank %u",
             launch->world->node_rank * launch->world->nproc_per_node +
                 local_rank);
    char **command = make_command(launch->flags, flag);
    if (!command)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory to start %s",
                           process->name);
    struct children_command child = {.name = process->name,
                                     .program = command[0],
                                     .arguments = command,
                                     .writes_stdout = true,
                                     .prepare = node_launch_prepare,
                                     .context = &preparation,
                                     .log = launch->log};
    if (process->record >= 0)
        close(process->record);
    child.record = process->record = launch_record_open(launch->id);
    restarts_begin(&process->restarts);
    enum status status =
        children_start(&launch->children, &child, &process->pid, why);
    free(command);
    launch->alive += status == STATUS_OK;
    return status;
}

/* Signals each process group. */
static void signal_all(const struct node_launch *launch, int number) {
    for (uint32_t i = 0; i < launch->world->nproc_per_node; i++)
        if (launch->processes[i].pid)
            kill(-launch->processes[i].pid, number);
}

static bool is_to_restart(const struct node_process *process) {
    return !process->pid && process->restarts.at < TIME_NEVER;
}

static void begin_termination(struct node_launch *launch, int number) {
    signal_all(launch, number);
    if (launch->ending)
        return;
    for (uint32_t i = 0; i < launch->world->nproc_per_node; i++) {
        launch->alive -= is_to_restart(&launch->processes[i]);
        launch->processes[i].restarts.at = TIME_NEVER;
    }
    launch->ending = true;
    launch->deadline = time_now() + time_from_seconds(launch->world->grace);
}

/* Kills processes that did not end within the grace. Leaves those behind that
 * do not end even then: a process may wait for a dead disk. */
static void node_launch_pass_deadline(struct node_launch *launch) {
    for (uint32_t i = 0; i < launch->world->nproc_per_node; i++) {
        const struct node_process *process = &launch->processes[i];
        if (process->pid && launch->killed)
            log_warning(launch->log, "process_overdue",
                        "%s (pid %d) does not end even on SIGKILL: left behind",
                        process->name, (int)process->pid);
        else if (process->pid)
            log_warning(launch->log, "process_overdue",
                        "%s (pid %d) did not end within %g s (--grace): killed",
                        process->name, (int)process->pid, launch->world->grace);
    }
    if (launch->killed)
        launch->alive = 0;
    signal_all(launch, SIGKILL);
    launch->killed = true;
    launch->deadline = time_now() + AFTER_KILL;
}

/* Is PROCESS, which has ended, started again? One that did not find its run
 * again has none to find. */
static bool node_launch_restarts(struct node_launch *launch,
                                 struct node_process *process,
                                 int wait_status) {
    bool found =
        launch_record_has_joined(process->record) || WIFSIGNALED(wait_status);
    return launch->flags->max_restarts && !launch->ending && found &&
           restarts_apply(&process->restarts, process->record, wait_status) &&
           restarts_next(&process->restarts, process->name, wait_status,
                         launch->flags->max_restarts, launch->log);
}

/* Has each process ended that did not begin again, or begin again in vain? Then
 * the run is over. */
static bool only_late_ones_left(const struct node_launch *launch) {
    for (uint32_t i = 0; i < launch->world->nproc_per_node; i++) {
        const struct node_process *process = &launch->processes[i];
        if (process->pid && (!process->restarts.follows ||
                             launch_record_has_joined(process->record)))
            return false;
    }
    return launch->alive;
}

/* Was PROCESS, which has ended with CODE, started again in vain? The run, whose
 * other processes tell how it ends, was about to end, or did not let it in. */
static bool is_late(const struct node_process *process, int code) {
    return code == STATUS_RETRY && process->restarts.follows &&
           !launch_record_has_joined(process->record);
}

/* Is PROCESS, which has ended and is not started again, a ps that the run may
 * do without? The chief decides, and ends the others where it can't. */
static bool is_left_out(const struct node_launch *launch,
                        const struct node_process *process, int wait_status) {
    bool is_last = process->restarts.follows || !launch->flags->max_restarts;
    return process->spare && is_last && launch->alive && !launch->ending &&
           restarts_apply(&process->restarts, process->record, wait_status);
}

static void node_launch_handle_exit(struct node_launch *launch,
                                    struct node_process *process,
                                    int wait_status) {
    int code = restarts_exit_code(process->record, wait_status, process->name,
                                  launch->log);
    char exit_text[64];
    process->pid = 0;
    launch->alive--;
    if (launch_record_deaths(process->record) & LAUNCH_RECORD_SPARE)
        process->spare = true;
    bool again = node_launch_restarts(launch, process, wait_status);
    bool left_out = !again && is_left_out(launch, process, wait_status);
    death_report_send(&launch->report, process->record, wait_status, left_out,
                      launch->log);
    if (again) {
        process->code = code;
        launch->alive++;
    }
    if (again || left_out)
        return;
    bool late = is_late(process, code);
    if ((!code || late) && !launch->ending && only_late_ones_left(launch))
        begin_termination(launch, SIGTERM);
    if (!code || late || launch->ending)
        return;
    status_end_text(wait_status, exit_text, sizeof exit_text);
    log_error(launch->log, "rank_failed", "%s %s%s", process->name, exit_text,
              launch->alive ? ": ending the others" : "");
    launch->exit_code = code;
    begin_termination(launch, SIGTERM);
}

static void node_launch_reap(struct node_launch *launch) {
    for (uint32_t i = 0; i < launch->world->nproc_per_node; i++) {
        struct node_process *process = &launch->processes[i];
        int wait_status;
        if (process->pid && children_reap(process->pid, &wait_status))
            node_launch_handle_exit(launch, process, wait_status);
    }
}

static void node_launch_start_due(struct node_launch *launch, int64_t now) {
    struct failure why;
    for (uint32_t i = 0; i < launch->world->nproc_per_node; i++) {
        struct node_process *process = &launch->processes[i];
        if (!is_to_restart(process) || process->restarts.at > now)
            continue;
        launch->alive--;
        if (!node_launch_start(launch, i, &why))
            continue;
        log_failure(launch->log, &why);
        launch->exit_code = STATUS_RETRY;
        begin_termination(launch, SIGTERM);
    }
}

/* When PROCESS, which was started again, has looked for its run for too long,
 * once nobody else of this node is in it; TIME_NEVER: it does not look. */
static int64_t join_deadline(const struct node_process *process) {
    bool looks = process->pid && process->restarts.follows &&
                 !launch_record_has_joined(process->record);
    return looks ? process->restarts.started_at + REJOIN_LIMIT : TIME_NEVER;
}

/* The run of a process that was started again may be over by then, on another
 * node: nobody tells it so. */
static void end_seekers(struct node_launch *launch, int64_t now) {
    for (uint32_t i = 0; i < launch->world->nproc_per_node; i++) {
        const struct node_process *process = &launch->processes[i];
        if (launch->ending || join_deadline(process) > now ||
            !only_late_ones_left(launch))
            continue;
        log_error(launch->log, "rank_failed",
                  "%s was started again and has not joined its run within "
                  "%lld s, which is over: ending all",
                  process->name, (long long)(REJOIN_LIMIT / TIME_S));
        launch->exit_code = process->code;
        begin_termination(launch, SIGTERM);
    }
}

/* The deadline, or what is due before it. */
static int64_t node_launch_next(const struct node_launch *launch) {
    int64_t next = launch->deadline;
    bool limited = !launch->ending && only_late_ones_left(launch);
    for (uint32_t i = 0; i < launch->world->nproc_per_node; i++) {
        const struct node_process *process = &launch->processes[i];
        int64_t join = limited ? join_deadline(process) : TIME_NEVER;
        int64_t due = process->restarts.at < join ? process->restarts.at : join;
        next = due < next ? due : next;
    }
    return next;
}

/* SIGUSR1 does not end anything: its meaning is up to the processes. A closing
 * terminal may send SIGHUP twice. */
static void node_launch_forward_signal(struct node_launch *launch, int number) {
    if (number == SIGUSR1) {
        signal_all(launch, number);
        return;
    }
    if (launch->ending && number == SIGHUP)
        return;
    if (!launch->ending)
        launch->exit_code = 128 + number;
    begin_termination(launch, number);
    if (number == SIGQUIT) /* processes of a run log a report and go on */
        signal_all(launch, SIGTERM);
}

static void node_launch_supervise(struct node_launch *launch) {
    while (launch->alive) {
        int number = children_wait(&launch->children, node_launch_next(launch));
        int64_t now = time_now();
        if (number == SIGCHLD)
            node_launch_reap(launch);
        else if (number)
            node_launch_forward_signal(launch, number);
        else if (now >= launch->deadline)
            node_launch_pass_deadline(launch);
        node_launch_start_due(launch, now);
        end_seekers(launch, now);
    }
}

static void node_launch_kill_all(struct node_launch *launch) {
    signal_all(launch, SIGKILL);
    for (uint32_t i = 0; i < launch->world->nproc_per_node; i++)
        if (launch->processes[i].pid)
            waitpid(launch->processes[i].pid, NULL, 0);
}

static void node_launch_close(struct node_launch *launch) {
    death_report_flush(&launch->report);
    death_report_close(&launch->report);
    children_close(&launch->children);
    for (uint32_t i = 0; i < launch->world->nproc_per_node; i++)
        if (launch->processes[i].record >= 0)
            close(launch->processes[i].record);
    free(launch->processes);
}

/* Starts the processes and returns when the last one has ended. Each has
 * MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK, LOCAL_RANK, LOCAL_WORLD_SIZE and
 * NODE_RANK, which replace earlier values; OMP_NUM_THREADS is 1 if it is not
 * set and there are several processes. Without use_env or no_python the command
 * gets --local_rank=N as its last argument. A command that ends in .py, or
 * --module, is run by Python.
 *
 * A process that a signal ends, or that ends with STATUS_RETRY, while its run
 * goes on is started again (restarts.h). When another one fails, the others get
 * SIGTERM, and SIGKILL after the grace.
 * SIGTERM, SIGINT, SIGHUP and SIGQUIT to the launcher are forwarded to all
 * processes and have the same effect; SIGUSR1 is only forwarded. When a process
 * has ended, the rest of its process group is killed. *EXIT_CODE is that of the
 * first process that failed (128 + n for signal n), else 0. The returned status
 * is that of the launch: STATUS_RETRY if the system refuses a process; none is
 * left running then. For the calling thread see children_open. */
static enum status node_launch_run(const struct options *flags,
                                   const struct launch_world *world,
                                   const struct log *log, int *exit_code,
                                   struct failure *why) {
    struct node_launch launch = {.flags = flags,
                                 .world = world,
                                 .log = log,
                                 .id = message_random(),
                                 .deadline = TIME_NEVER};
    launch.processes = calloc(world->nproc_per_node, sizeof *launch.processes);
    if (!launch.processes)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for %u processes",
                           world->nproc_per_node);
    for (uint32_t i = 0; i < world->nproc_per_node; i++)
        launch.processes[i] =
            (struct node_process){.record = -1, .restarts.at = TIME_NEVER};
    enum status status =
        children_open(&launch.children, forwarded, FORWARDED, why);
    for (uint32_t i = 0; !status && i < world->nproc_per_node; i++)
        status = node_launch_start(&launch, i, why);
    if (status)
        node_launch_kill_all(&launch);
    else
        node_launch_supervise(&launch);
    *exit_code = launch.exit_code;
    node_launch_close(&launch);
    return status;
}

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

/* Why a run of JOB does not survive a drill, or NULL. */
static const char *drill_obstacle(const struct options *options,
                                  const struct job *job, bool allreduce) {
    if (!options->kill)
        return NULL;
    if (allreduce && options->kill == OPTIONS_KILL_PS)
        return "all-reduce has no ps";
    if (!allreduce && options->kill == OPTIONS_KILL_WORKER)
        return NULL;
    if (!job->checkpoint.dir &&
        !(job->replicas && options->kill == OPTIONS_KILL_PS))
        return "when a ps, the chief or a rank of all-reduce dies the run goes "
               "back, and without checkpoint.dir there is nothing to go back "
               "to";
    if (job->recovery == JOB_END)
        return "with strategy.recovery \"end\" the run ends when one dies";
    return (options->kill == OPTIONS_KILL_CHIEF ||
            options->kill == OPTIONS_KILL_ANY) &&
                   job->timeouts.chief <= 0
               ? "with timeouts.chief 0 the run ends when the chief dies"
               : NULL;
}

static enum status check_drill_of_job(const struct options *options,
                                      const struct job *job, bool allreduce,
                                      struct failure *why) {
    const char *obstacle = drill_obstacle(options, job, allreduce);
    return obstacle ? status_fail(why, FAILURE_JOB_UNFIT, "--kill-every: %s",
                                  obstacle)
                    : STATUS_OK;
}

static unsigned local_kills(const struct options *options) {
    static const unsigned kills[] = {
        [OPTIONS_KILL_PS] = LAUNCH_RECORD_PS,
        [OPTIONS_KILL_CHIEF] = LAUNCH_RECORD_CHIEF,
        [OPTIONS_KILL_WORKER] = LAUNCH_RECORD_WORKER,
        [OPTIONS_KILL_ANY] =
            LAUNCH_RECORD_PS | LAUNCH_RECORD_CHIEF | LAUNCH_RECORD_WORKER};
    return kills[options->kill];
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
        status = check_drill_of_job(options, *job, strategy.allreduce, why);
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

/* Gives FILE, in memory, to processes by a name that wrappers of a command pass
 * on. */
static void name_in_memory(const char *variable, int file) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), file);
    setenv(variable, path, 1);
}

/* Runs LAUNCH. Where the user has named no secret, its processes have one that
 * is of this run alone. */
static enum status local_run(const struct launch_settings *launch, int *code,
                             struct failure *why) {
    struct failure missing;
    int secret = -1;
    bool named = getenv(SECRET_FILE_VARIABLE);
    unsetenv(SECRET_OWN_VARIABLE);
    if (!named && secret_file_open_own(&secret, &missing))
        log_warning(launch->log, "secret_missing", "this run has no secret: %s",
                    missing.text);
    else if (!named)
        name_in_memory(SECRET_OWN_VARIABLE, secret);
    enum status status = launch_run(launch, code, why);
    if (secret >= 0)
        close(secret);
    return status;
}

/* The command has worker 0's standard output, so its library writes the summary
 * to FILE. */
static enum status open_summary(int *file, struct failure *why) {
    *file = memfd_create("summary", MFD_CLOEXEC);
    if (*file < 0)
        return status_errno(why, FAILURE_SYSTEM_REFUSED, errno,
                            "a file in memory for the summary");
    name_in_memory(SUMMARY_FILE, *file);
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
    enum status status = local_run(launch, code, why);
    if (!status && summary >= 0)
        status = print_summary(summary, launch->command[0], *code, why);
    if (summary >= 0)
        close(summary);
    return status;
}

/* Of `capstan local`, whose processes run PROGRAM. All is borrowed. */
static struct launch_settings local_settings(
    const struct options *options, const struct process_settings *settings,
    const struct job *job, const char *program, const struct log *log) {
    return (struct launch_settings){.program = program,
                                    .address =
                                        process_settings_address(settings),
                                    .num_ps = local_num_ps(options, job),
                                    .num_workers = options->num_workers,
                                    .grace = job->timeouts.grace,
                                    .stop = job->timeouts.stop,
                                    .metrics = settings->metrics,
                                    .max_restarts = options->max_restarts,
                                    .kill_every = options->kill_every,
                                    .kills = local_kills(options),
                                    .log = log};
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
        status = process_settings_hand_on(options, job->secret_file, why);
    if (!status)
        status = set_script_environment(options, job, why);
    if (!status && options->json)
        status = open_summary(&summary, why);
    launch_program(program, sizeof program);
    if (status) {
        job_free(&job);
        return status;
    }
    struct launch_settings launch =
        local_settings(options, settings, job, program, log);
    launch.command = options->command;
    launch.writers =
        options->json ? LAUNCH_STDOUT_NOBODY : LAUNCH_STDOUT_WORKERS;
    status = launch_with_summary(&launch, summary, code, why);
    job_free(&job);
    return status;
}

/* Only a command's processes read it themselves. */
static enum status hand_deepspeed(const struct options *options,
                                  struct failure *why) {
    char path[PATH_MAX];
    if (!options->deepspeed)
        return STATUS_OK;
    if (!realpath(options->deepspeed, path))
        return status_errno(why, FAILURE_JOB_UNREADABLE, errno,
                            "--deepspeed_config %s", options->deepspeed);
    setenv(SCRIPT_DEEPSPEED, path, 1);
    return STATUS_OK;
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

/* Trains the job of the command line by processes of this program. */
static enum status local_job(const struct options *options,
                             const struct process_settings *settings,
                             const struct log *log, int *code,
                             struct failure *why) {
    char program[4096], *arguments[2 * OPTIONS_MAX_SETS + 8] = {0};
    struct azureml_distribution read, *distribution = NULL;
    struct job *job = NULL;
    enum status status = STATUS_OK;
    if (options->azureml_distribution) {
        distribution = &read;
        status = azureml_read(distribution, options->azureml_distribution,
                              options->instances, options->flags.num_ps, why);
    }
    if (!status)
        status = check_local_job(options, distribution, &job, why);
    if (!status)
        status = process_settings_hand_on(options, job->secret_file, why);
    char *handed = status ? NULL : cli_flag_handed(options, CLI_COMMAND_LOCAL);
    if (!status && !handed)
        status = status_fail(why, FAILURE_NO_MEMORY, "out of memory");
    if (status) {
        job_free(&job);
        return status;
    }
    launch_program(program, sizeof program);
    local_arguments(options, job, handed, arguments);
    struct launch_settings launch =
        local_settings(options, settings, job, program, log);
    launch.azureml_distribution = distribution;
    launch.run_arguments = arguments;
    status = local_run(&launch, code, why);
    if (status)
        log_failure(log, why);
    free(handed);
    job_free(&job);
    return status;
}

enum status local_command(const struct options *options, struct failure *why) {
    struct process_settings settings; /* each process reads its own */
    struct log log;
    int code = STATUS_FAILED;
    log_open(&log, "local", -1);
    process_settings_stay_here(options);
    enum status status = process_settings_read(&settings, options, why);
    if (!status)
        status = process_settings_hand_on(options, NULL, why);
    if (options->lane)
        setenv("CAPSTAN_LANE", options->lane, 1);
    bool command = options->command || !options->job;
    if (!status && command)
        status = hand_deepspeed(options, why);
    if (status)
        return status;
    if (!command)
        status = local_job(options, &settings, &log, &code, why);
    else if (options->azureml_distribution)
        status =
            local_distributed_command(options, &settings, &log, &code, why);
    else
        status = local_script(options, &settings, &log, &code, why);
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
        status = process_settings_hand_on(options, NULL, why);
    if (!status)
        status = launch_count_fill(&world, &log, why);
    if (!status)
        status = node_launch_run(options, &world, &log, &code, why);
    return status ? status : (enum status)code;
}
