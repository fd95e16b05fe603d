/* SPDX-License-Identifier: Apache-2.0 */
/* Who plays in this process, and with which settings: from what the user gave,
 * the cluster description and, where this process leads, the job. One to three
 * roles, that hear of each other by the names of links inside the process. It
 * opens nothing and starts nothing: commands/process.c does. */
#ifndef CAPSTAN_COMPOSITION_H
#define CAPSTAN_COMPOSITION_H

#include "chief/plan/strategy.h"
#include "chief/run_series.h"
#include "commands/process_settings.h"
#include "commands/roles.h"
#include "proto/base/status.h"
#include "proto/config/cli/options.h"
#include "proto/config/cluster/cluster.h"
#include "proto/config/cluster/cluster_rank.h"
#include "proto/config/job/job.h"
#include "worker/bench/bench_baseline.h"

/* One run of several that this process leads. */
struct composition_series_run {
    struct job *job; /* its batch is solved */
    struct run_series series;
};

/* All is borrowed but for the job. */
struct composition {
    const struct options *options;
    const struct cluster *cluster;
    struct process_settings process_settings;
    struct cluster_local_peers local_peers;
    struct composition_series_run
        *series_run;      /* the run is one of several, or NULL */
    double rejoin_within; /* seconds within which the chief leads the next; 0:
                    this run is the first or the last */
    struct job *job;      /* the leader's, or one that is only compared with the
                             chief's; to be freed */
    void *zmq;            /* every socket of the process is of this context */
    struct roles roles; /* opened by the caller; pointers into it are handed to
                           the roles, so it may not move */
};

/* Adds the roles of a run or of a bench's servers, the one that the process is
 * named by first. Reads the job where this process leads, and logs who it is.
 * STATUS_CONFIG for a job that is wrong or does not fit the cluster. */
enum status composition_add_run(struct composition *composition,
                                struct failure *why) MUST_CHECK;

/* Adds a chief that tells those who join that there is no run, for the reason
 * WHY (borrowed), and nobody else. STATUS_RETRY: no memory. */
enum status composition_add_refusal(struct composition *composition,
                                    const struct failure *why) MUST_CHECK;

/* Adds a bench's client instead, which measures with REFERENCE's help. */
void composition_add_bench_client(struct composition *composition,
                                  const struct bench_baseline *bench_baseline);

/* How many trainers and ps there are for JOB in CLUSTER, whose chief this
 * process is. */
struct strategy_case composition_members(const struct options *options,
                                         const struct cluster *cluster,
                                         const struct job *job);

#endif
