/* SPDX-License-Identifier: Apache-2.0 */
/* A process of a run or of a bench: the roles that its cluster description
 * gives it, one to three, each on a thread of its own, in one ZeroMQ context;
 * and the signals, which go to the first of them. */
#ifndef CAPSTAN_PROCESS_H
#define CAPSTAN_PROCESS_H

#include "commands/composition.h"
#include "commands/process_settings.h"
#include "proto/base/status.h"
#include "proto/config/cli/options.h"
#include "proto/config/cluster/cluster.h"

/* Plays the process's part of a run to its end, and of those that its chief
 * leads after it; returns what it exits with. All is borrowed. WHY is left
 * empty when the log has said it. */
enum status process_run(const struct options *options,
                        const struct process_settings *process_settings,
                        const struct cluster *cluster,
                        struct failure *why) MUST_CHECK;

/* The run that this process would lead, and that others would join
 * (cluster_expects_joins), cannot begin: says WHY on standard
 * error, and empties it, then tells those who join within 5 s. Returns its
 * status. */
enum status process_refuse(const struct options *options,
                           const struct cluster *cluster, struct failure *why);

/* Plays this process's part, the chief's, of one run of a series: the run's
 * status, with WHY, which the log has not said. Call it again for the next. */
enum status process_run_one_of_series(
    const struct options *options,
    const struct process_settings *process_settings,
    const struct cluster *cluster, struct composition_series_run *series_run,
    struct failure *why) MUST_CHECK;

/* The same of a bench. *RESULT is the client's, to be freed, or NULL. Forks: no
 * other thread may run. */
enum status process_bench(const struct options *options,
                          const struct process_settings *process_settings,
                          const struct cluster *cluster, char **result,
                          struct failure *why) MUST_CHECK;

#endif
