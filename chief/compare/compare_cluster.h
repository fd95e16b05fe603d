/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of a comparison between the processes of a cluster: a series, which the
 * chief leads. */
#ifndef CAPSTAN_COMPARE_CLUSTER_H
#define CAPSTAN_COMPARE_CLUSTER_H

#include "chief/compare/compare_runs.h"
#include "chief/plan/strategy.h"
#include "chief/run_series.h"

struct compare_cluster {
    const struct options *flags;   /* borrowed, as the rest */
    struct job *job;               /* whose runs are made */
    struct strategy_case topology; /* who is in the cluster */
    bool local;                    /* all of them on this machine */
    const struct log *log;
    /* Plays the chief's part of a run of JOB, which it takes. */
    enum status (*run_chief)(void *context, struct job *job,
                             struct run_series *series, struct failure *why);
    void *context;
    /* Ours: */
    struct compare_batch batch;
    bool started; /* a run was made */
};

/* Fills what numbers of ps and workers OPTIONS leave open, and solves the job's
 * batch, if it can be before devices are known. STATUS_CONFIG: the cluster does
 * not have what they ask for. */
enum status compare_cluster_resolve(struct compare_cluster *members,
                                    struct options *options,
                                    struct failure *why) MUST_CHECK;

/* As compare_runs; who is gone, or a signal, ends it with the run's status
 * and text. */
enum status compare_cluster_run(json_t **result,
                                struct compare_cluster *members,
                                struct failure *why) MUST_CHECK;

#endif
