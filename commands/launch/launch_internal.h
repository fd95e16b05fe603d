/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by launch.c, which supervises and ends the processes, and
 * launch_start.c, which starts them. */
#ifndef CAPSTAN_LAUNCH_INTERNAL_H
#define CAPSTAN_LAUNCH_INTERNAL_H

#include "commands/launch/children.h"
#include "commands/launch/death_report.h"
#include "commands/launch/launch.h"

#include <stdint.h>

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
    char num_ps[24]; /* value of the flag --num-ps */
    struct children children;
    enum shutdown_phase shutdown_phase;
    int64_t deadline;  /* of the phase */
    double stop_grace; /* seconds that the others get after the chief */
    int exit_code;     /* the chief's */
    struct death_report report;
    int failed; /* exit code of a process that kept the run from starting; 0:
                   none */
    unsigned num_lost;
    struct launch_process *absent; /* ended without an error or a run; NULL */
    /* Logged last; NULL: its own line is the last. */
    const struct launch_process *cause;
};

/* Names the processes; the first one leads. */
void launch_name_processes(struct launch *launch);

/* Is PROCESS one of the launch's command, and not of the program? */
bool launch_runs_command(const struct launch *launch,
                         const struct launch_process *process);

/* Describes the cluster to each process and reserves its port. STATUS_RETRY:
 * the system refuses. */
enum status launch_configure(struct launch *launch,
                             struct failure *why) MUST_CHECK;

/* Starts the processes; after a failure some may be running. */
enum status launch_start(struct launch *launch, struct failure *why) MUST_CHECK;

#endif
