/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a comparison on the processes of a cluster, as a series that the chief
 * leads. */
#ifndef CAPSTAN_COMPARE_CLUSTER_H
#define CAPSTAN_COMPARE_CLUSTER_H

#include "chief/plan/strategy.h"
#include "chief/run_series.h"
#include "commands/measure/compare_runs.h"

struct compare_cluster {
    const struct options *flags;   /* borrowed, like all pointers here */
    struct job *job;               /* base job of the runs */
    struct strategy_case topology; /* the members of the cluster */
    bool local;                    /* all of them on this machine */
    const struct log *log;
    /* Runs the chief's part of a run of JOB; takes ownership of JOB. */
    enum status (*run_chief)(void *context, struct job *job,
                             struct run_series *series, struct failure *why);
    void *context;
    /* Private: */
    struct compare_batch batch;
    bool started; /* a run has been made */
};

/* Fills the numbers of ps and workers that OPTIONS leave open, and solves the
 * job's batch if it does not depend on devices. STATUS_CONFIG: the cluster has
 * fewer or more members than requested. */
enum status compare_cluster_resolve(struct compare_cluster *members,
                                    struct options *options,
                                    struct failure *why) MUST_CHECK;

/* As compare_runs; a lost member or a signal ends it with the run's status and
 * text. */
enum status compare_cluster_run(json_t **result,
                                struct compare_cluster *members,
                                struct failure *why) MUST_CHECK;

#endif
