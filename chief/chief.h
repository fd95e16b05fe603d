/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a run from its chief's side: gather, plan, watch, save, end. */
#ifndef CAPSTAN_CHIEF_H
#define CAPSTAN_CHIEF_H

#include "chief/run_series.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/cluster/cluster.h"
#include "proto/config/job/job.h"

#include <stdbool.h>
#include <stdint.h>

struct chief_settings {
    void *zmq;
    const struct log *log;
    struct job *job;               /* read and checked; borrowed. With WRONG
                                      its timeouts are enough */
    const struct cluster *cluster; /* borrowed */
    const char *inproc;    /* name of my link for roles in this process */
    const char *ps_inproc; /* who holds weights in this process, or NULL */
    bool trains;           /* its trainer joins as the chief; a worker 0 that
                              leads is a worker like the others */
    uint32_t num_workers, num_ps;
    bool allreduce;      /* the weights are the trainers' */
    const char *backend; /* its collectives, or "auto" */
    double join_timeout; /* seconds */
    double link_gbits;   /* of each host each way, 10^9 bits/s; 0: not given */
    bool json;
    bool no_restart; /* a launcher has started all, and starts nobody again */
    const struct failure *problem; /* why there can be no run: all that is done
                                    is to tell those who join; else NULL */
    struct run_series
        *series;    /* this run is one of several, or NULL; borrowed */
    int interrupts; /* descriptor that gives a signal's number; -1: none */
};

/* Returns when the run has ended: its status, with WHY unless OK. What fails
 * once the port is bound is told to those who join, within timeouts.stop. */
enum status chief_run(const struct chief_settings *settings,
                      struct failure *why) MUST_CHECK;

#endif
