/* SPDX-License-Identifier: Apache-2.0 */
/* What a launch is made of: for launch.c, how it ends, and launch_start.c, how
 * its processes come to be. */
#ifndef CAPSTAN_LAUNCH_INTERNAL_H
#define CAPSTAN_LAUNCH_INTERNAL_H

#include "chief/launch/children.h"
#include "chief/launch/death_report.h"
#include "chief/launch/launch.h"

#include <stdint.h>

struct launch_process {
    const char *type; /* as in TF_CONFIG */
    unsigned index;
    char name[24];      /* "ps 1" */
    int port_socket;    /* of its port */
    char *config;       /* its TF_CONFIG, or NULL: told by rank */
    pid_t pid;          /* 0: not running */
    int record;         /* launch_record.h */
    char exit_text[64]; /* how it ended before it had joined, the run's cause */
};

/* How far the end has come. */
enum shutdown_phase {
    RUNNING, /* for as long as the run takes: its deadlines are the chief's */
    CHIEF_SIGNALLED, /* a signal went to the chief */
    ENDING,          /* the chief is gone */
    OTHERS_SIGNALLED,
    KILLED,
};

struct launch {
    const struct launch_options *options;
    struct launch_process *processes; /* the chief first */
    unsigned count, alive;
    char num_ps[24]; /* the flag that says how many ranks are ps */
    struct children children;
    enum shutdown_phase shutdown_phase;
    int64_t deadline;  /* of the stage */
    double stop_grace; /* seconds to those the chief leaves behind */
    int exit_code;     /* the chief's */
    struct death_report report;
    int failed; /* instead, of a process without which no run begins; 0: none */
    const struct launch_process
        *cause; /* named last; NULL: its line is the last */
};

/* Who is who; the first leads. */
void launch_name_processes(struct launch *launch);

/* Describes the cluster to each process, holding a port for it. STATUS_RETRY
 * when the machine refuses. */
enum status launch_configure(struct launch *launch,
                             struct failure *why) MUST_CHECK;

/* Starts them; on failure some may run. */
enum status launch_start(struct launch *launch, struct failure *why) MUST_CHECK;

#endif
