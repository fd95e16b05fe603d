/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a whole cluster on this machine: chief, ps and workers, each a process
 * of `capstan run` (or of another verb) with the TF_CONFIG of its task. */
#ifndef CAPSTAN_LAUNCH_H
#define CAPSTAN_LAUNCH_H

#include "commands/cli/launch_options.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "proto/cluster/azureml.h"
#include "proto/cluster/cluster.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Fills in and logs WORLD's number of processes if it says only what each
 * process is for. STATUS_CONFIG: one for each GPU is requested, and there is
 * none. */
enum status launch_count_fill(struct launch_world *world, const struct log *log,
                              struct failure *why) MUST_CHECK;

#define LAUNCH_PS_PIDS "CAPSTAN_PS_PIDS"
/* Where a process serves its status: a value of --metrics-port. */
/* "1": a process that dies is started again, "0": none is. */
#define LAUNCH_RESTARTS "CAPSTAN_RESTARTS"
#define LAUNCH_METRICS_PORT "CAPSTAN_METRICS_PORT"

/* The processes that write to standard output; the others write to standard
 * error instead. */
enum launch_stdout {
    LAUNCH_STDOUT_CHIEF,
    LAUNCH_STDOUT_WORKERS,
    LAUNCH_STDOUT_ALL,
    LAUNCH_STDOUT_NOBODY,
};

struct launch_settings {
    const char *program; /* the capstan binary; /proc/self/exe will do */
    const char *verb;    /* for all processes; NULL: "run" */
    enum launch_stdout writers;
    bool arguments_for_all;
    char *const *command; /* of the workers instead, NULL-terminated: worker 0
                             leads, and there is no chief; with a distribution
                             of all processes; or NULL */
    const char *address;  /* numeric, of all processes; NULL: 127.0.0.1 */
    unsigned num_ps, num_workers;
    /* Starts the processes of this distribution instead, without a chief; or
     * NULL. */
    const struct azureml_distribution *azureml_distribution;
    char *const *run_arguments;  /* of the chief, after the verb: the job's path
                                    and flags, NULL-terminated; the others get
                                    them only with arguments_for_all */
    double grace, stop;          /* seconds, as in the job's timeouts */
    struct cluster_task metrics; /* where the first process serves its status,
                                    the others on the ports after it; port 0:
                                    nowhere */
    unsigned max_restarts;       /* of one process within 10 minutes; 0: none */
    double kill_every;     /* seconds between two kills of a drill; 0: none */
    unsigned kills;        /* whom it kills: a set of launch_record_death */
    const struct log *log; /* borrowed; NULL: log nothing */
};

/* Writes the path of the running program, for launch_settings. */
void launch_program(char *path, size_t size);

/* Starts the cluster and returns when its last process has ended.
 *
 * A drill kills a process by SIGKILL about each KILL_EVERY seconds, drawn
 * evenly, while the run survives it, and starts it again.
 *
 * With a distribution, worker 0 or rank 0 leads and is "the chief" below; the
 * processes get the variables that Azure ML sets.
 *
 * Standard input is empty. Other variables that describe a cluster are removed
 * from the processes' environment. Workers find the process ids of the ps, in
 * order and separated by commas, in the variable LAUNCH_PS_PIDS. SIGTERM,
 * SIGINT and SIGHUP (unless it is ignored) are forwarded to the chief only,
 * which then has GRACE + STOP seconds before SIGKILL. SIGUSR1 is forwarded to
 * the chief and has no other effect. When the chief has ended, the others get
 * STOP seconds, or half a second if it failed; then SIGTERM and STOP seconds
 * again; then SIGKILL. A signalled process is logged unless the chief failed.
 * When a process has ended, what is left of its group is killed. If the
 * launcher itself is killed, all processes are. A process that ends before the
 * chief is reported to the chief (death_report.h). If it ends with
 * STATUS_CONFIG, which waiting cannot fix, or fails before it has joined, the
 * chief gets SIGTERM.
 *
 * *EXIT_CODE is the chief's (128 + n for signal n). If the chief got SIGTERM
 * because of another process, it is that process's if STATUS_CONFIG or
 * STATUS_FAILED, else STATUS_RETRY. With a command, 0 becomes the code of the
 * first process of it that failed or did not close its run (then 1 for 0), and
 * was not replaced. The returned status is that of the launch:
 * STATUS_CONFIG if PROGRAM is not a program, STATUS_RETRY if the system refuses
 * a port or a process; no process is left running then.
 *
 * Call it on the main thread of a process without other threads or children: it
 * takes these signals and SIGCHLD while it runs. */
enum status launch_run(const struct launch_settings *options, int *exit_code,
                       struct failure *why) MUST_CHECK;

/* The environment variables by which launchers give a process its rank, set in
 * a child before exec. */
enum {
    RANK_VARIABLES_PORT = 6105, /* Azure ML's port for pytorch */
    RANK_VARIABLES_BATCH_PORT =
        6000 /* the port of the master node of Azure Batch */
};

/* Unsets every variable that describes a cluster. */
void rank_variables_unset(void);

/* Sets the variables of process RANK of DISTRIBUTION (pytorch or mpi)
 * in an Azure ML job whose instances are all on this machine, at HOST, a
 * numeric address. pytorch:
 * MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK, LOCAL_RANK, NODE_RANK. mpi:
 * OMPI_COMM_WORLD_RANK, SIZE, LOCAL_RANK, LOCAL_SIZE, and AZ_BATCH_MASTER_NODE,
 * or with one instance AZ_BATCHAI_MPI_MASTER_NODE, which is localhost there if
 * HOST is 127.0.0.1. */
void rank_variables_set(const struct azureml_distribution *distribution,
                        const char *host, uint32_t rank);

#endif
