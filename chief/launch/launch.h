/* SPDX-License-Identifier: Apache-2.0 */
/* A whole cluster on this machine: a chief, servers and workers, each a
 * process of `capstan run` (or of another verb) with the TF_CONFIG of its
 * task. */
#ifndef CAPSTAN_LAUNCH_H
#define CAPSTAN_LAUNCH_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/cluster/azureml.h"

#include <stdbool.h>
#include <stddef.h>

#define LAUNCH_PS_PIDS "CAPSTAN_PS_PIDS"
/* Set: the chief's lines are seen on the same terminal. */
#define LAUNCH_TOGETHER "CAPSTAN_TOGETHER"

struct launch_options {
    const char *program;       /* the capstan binary; /proc/self/exe will do */
    const char *verb;          /* that all play; NULL: "run" */
    bool workers_write_stdout; /* to standard output, in place of the chief */
    bool arguments_for_all;
    unsigned num_ps, num_workers;
    const struct azureml_distribution
        *azureml_distribution;  /* instead of these, or NULL: what
                   it starts, and no chief */
    char *const *run_arguments; /* the chief's, after the verb: the job's path
                                   and flags, NULL-terminated; the others get
                                   none unless arguments_for_all */
    double grace, stop;         /* seconds, as in the job's timeouts */
    const struct log *log;      /* borrowed; NULL: silence */
};

/* The path of the program that runs, for launch_options. */
void launch_program(char *path, size_t size);

/* Starts the cluster and returns when its last process has ended.
 *
 * Of a distribution, worker 0 or rank 0 leads and counts as the chief below;
 * the processes have the variables that Azure ML gives them there.
 *
 * Only the chief writes to standard output; standard input is nobody's. What
 * else describes a cluster in the environment is hidden from the processes.
 * Workers find the process numbers of the ps, in order and separated by commas,
 * in the variable LAUNCH_PS_PIDS.
 * SIGTERM, SIGINT and SIGHUP (unless it is ignored) go on to the chief alone,
 * which then has GRACE + STOP before SIGKILL. SIGUSR1 goes on to it and changes
 * nothing here. When the chief is gone, the others have STOP, or half a second
 * when it failed, then SIGTERM and STOP again, then SIGKILL; who needed it is
 * named. Should the launcher itself be killed, so are they all. A process that
 * ends before the chief is reported to it (death_report.h); with STATUS_CONFIG,
 * which no waiting mends, or a failure before it has joined, the chief gets
 * SIGTERM.
 *
 * *EXIT_CODE is the chief's (128 + n of signal n); where it got SIGTERM for
 * another, STATUS_CONFIG, STATUS_FAILED as that one's, else STATUS_RETRY.
 * The status is of the launching: STATUS_CONFIG when PROGRAM is no program,
 * STATUS_RETRY when the machine refuses a port or a process; nothing is left
 * running then.
 *
 * Call it from the main thread of a process without other threads or
 * children: it takes these signals and SIGCHLD for as long as it runs. */
enum status launch_run(const struct launch_options *options, int *exit_code,
                       struct failure *why) MUST_CHECK;

#endif
