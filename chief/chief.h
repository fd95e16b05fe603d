/* SPDX-License-Identifier: Apache-2.0 */
/* The chief's control loop: membership, planning, supervision, snapshots and
 * shutdown of one run. */
#ifndef CAPSTAN_CHIEF_H
#define CAPSTAN_CHIEF_H

#include "chief/report/mlflow_settings.h"
#include "chief/report/trace_file.h"
#include "chief/rewind.h"
#include "chief/run_series.h"
#include "core/base/health.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "proto/cluster/cluster.h"
#include "proto/job/job.h"
#include "proto/plan/memory_footprint.h"

#include <stdbool.h>
#include <stdint.h>

struct chief_settings {
    void *zmq;
    const char *address; /* these two as of struct process (member.h) */
    const struct link_keys *keys;
    const struct log *log;
    struct job *job; /* checked; borrowed. With PROBLEM only its timeouts are
                        used */
    memory_footprint_of_model *model_memory; /* of job->model; NULL: external */
    const struct cluster *cluster;           /* borrowed */
    const char *inproc;    /* in-process name of the chief's link */
    const char *ps_inproc; /* in-process link of a ps, or NULL */
    bool trains; /* the chief has a trainer of its own; a worker 0 that leads
                    joins as a worker */
    uint32_t num_workers, num_ps;
    uint32_t num_beyond; /* of the workers, the last ones: beyond the cluster's
                            list, not awaited; fewer than there are trainers */
    bool allreduce;      /* the trainers hold the weights, no ps does */
    const char *backend; /* its collective backend, or "auto" */
    double join_timeout; /* seconds */
    double link_gbits; /* bandwidth of each host in each direction, 10^9 bits/s;
                          0: not given */
    bool json;         /* prints the summary object on standard output */
    const char *summary; /* a file to write it to; NULL: none */
    bool together;    /* a launcher started all processes, on this machine, */
    bool no_restart;  /* and restarts none */
    bool starts_once; /* no process is started again, on this machine or not */
    const struct failure *problem; /* why no run can start, or NULL; with it the
                                      chief only refuses those that join */
    struct run_series *series;     /* of this run, or NULL; borrowed */
    struct rewind_lineage *lineage; /* borrowed; NULL: a run cannot go back */
    struct trace_steps trace_steps;
    int record;     /* for the launcher (launch_record.h); 0: none */
    int interrupts; /* descriptor that delivers signal numbers; -1: none */
    struct mlflow_settings mlflow; /* what it has of MLflow */
    struct health *health; /* where the chief tells of itself; NULL: nowhere */
    struct page_points
        *page_points; /* for the page; NULL: nobody asks for it */
};

/* Returns the run's final status once it has ended, with WHY unless OK. If the
 * start fails after the port is bound, the chief stays for timeouts.stop and
 * tells WHY to the processes that join. */
enum status chief_run(const struct chief_settings *settings,
                      struct failure *why) MUST_CHECK;

#endif
