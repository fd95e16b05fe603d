/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of a comparison between the processes of a cluster: a series, which the
 * chief leads. */
#ifndef CAPSTAN_COMPARISON_MEMBERS_H
#define CAPSTAN_COMPARISON_MEMBERS_H

#include "chief/compare/comparison.h"
#include "chief/plan/strategy.h"
#include "chief/series.h"

struct comparison_members {
    const struct options *flags; /* borrowed, as the rest */
    struct job *job;             /* whose runs are made */
    struct strategy_case there;  /* who is in the cluster */
    bool here;                   /* all of them on this machine */
    const struct log *log;
    /* Plays the chief's part of a run of JOB, which it takes. */
    enum status (*lead)(void *context, struct job *job, struct series *series,
                        struct failure *why);
    void *context;
    /* Ours: */
    struct comparison_batch batch;
    bool begun; /* a run was made */
};

/* Fills what numbers of ps and workers OPTIONS leave open, and solves the job's
 * batch, if it can be before devices are known. STATUS_CONFIG: the cluster does
 * not have what they ask for. */
enum status comparison_members_settle(struct comparison_members *members,
                                      struct options *options,
                                      struct failure *why) MUST_CHECK;

/* As comparison_run; who is gone, or a signal, ends it with the run's status
 * and text. */
enum status comparison_members_run(json_t **result,
                                   struct comparison_members *members,
                                   struct failure *why) MUST_CHECK;

#endif
