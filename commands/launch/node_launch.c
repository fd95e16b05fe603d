/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/launch/node_launch.h"

#include "commands/launch/children.h"
#include "commands/launch/death_report.h"
#include "core/base/time.h"
#include "proto/messages/launch_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const int forwarded[] = {SIGQUIT, SIGUSR1};
enum { FORWARDED = sizeof forwarded / sizeof *forwarded };

/* Time that SIGKILL may need. */
static const int64_t AFTER_KILL = 10 * TIME_S;

struct node_process {
    pid_t pid;  /* 0: has ended */
    int record; /* launch_record.h */
    char name[32];
};

struct node_launch {
    const struct options *flags;
    const struct launch_world *world;
    const struct log *log;
    struct children children;
    struct node_process *processes; /* [nproc_per_node] */
    struct death_report report;
    uint32_t alive;
    bool ending;      /* all have been told to end */
    bool killed;      /* SIGKILL was sent */
    int64_t deadline; /* of the current step of ending */
    int exit_code;
};

struct node_preparation {
    const struct launch_world *world;
    uint32_t local_rank;
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
    struct node_preparation preparation = {launch->world, local_rank};
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
    child.record = process->record = launch_record_open();
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

static void begin_termination(struct node_launch *launch, int number) {
    signal_all(launch, number);
    if (launch->ending)
        return;
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

static void node_launch_handle_exit(struct node_launch *launch,
                                    struct node_process *process,
                                    int wait_status) {
    int code = children_exit_code(wait_status);
    char exit_text[64];
    process->pid = 0;
    launch->alive--;
    death_report_send(&launch->report, process->record, wait_status,
                      launch->log);
    if (process->record >= 0)
        close(process->record);
    process->record = -1;
    if (!code || launch->ending)
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
}

static void node_launch_supervise(struct node_launch *launch) {
    while (launch->alive) {
        int number = children_wait(&launch->children, launch->deadline);
        if (!number)
            node_launch_pass_deadline(launch);
        else if (number == SIGCHLD)
            node_launch_reap(launch);
        else
            node_launch_forward_signal(launch, number);
    }
}

static void node_launch_kill_all(struct node_launch *launch) {
    signal_all(launch, SIGKILL);
    for (uint32_t i = 0; i < launch->world->nproc_per_node; i++)
        if (launch->processes[i].pid)
            waitpid(launch->processes[i].pid, NULL, 0);
}

enum status node_launch_run(const struct options *flags,
                            const struct launch_world *world,
                            const struct log *log, int *exit_code,
                            struct failure *why) {
    struct node_launch launch = {
        .flags = flags, .world = world, .log = log, .deadline = TIME_NEVER};
    launch.processes = calloc(world->nproc_per_node, sizeof *launch.processes);
    if (!launch.processes)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for %u processes",
                           world->nproc_per_node);
    enum status status =
        children_open(&launch.children, forwarded, FORWARDED, why);
    for (uint32_t i = 0; !status && i < world->nproc_per_node; i++)
        status = node_launch_start(&launch, i, why);
    if (status)
        node_launch_kill_all(&launch);
    else
        node_launch_supervise(&launch);
    *exit_code = launch.exit_code;
    death_report_flush(&launch.report);
    death_report_close(&launch.report);
    children_close(&launch.children);
    free(launch.processes);
    return status;
}
