/* SPDX-License-Identifier: Apache-2.0 */
/* A process of a run or of a bench. Its cluster description gives it one to
 * three roles, each on its own thread, in one ZeroMQ context. Signals go to the
 * first role. */
#ifndef CAPSTAN_PROCESS_H
#define CAPSTAN_PROCESS_H

#include "commands/cli/options.h"
#include "commands/composition.h"
#include "commands/process_settings.h"
#include "core/base/status.h"
#include "proto/cluster/cluster.h"

/* Runs this process's roles until the run ends, and those of the later runs
 * that its chief leads. Returns the exit code. All is borrowed. WHY is empty if
 * the log has reported it, except in the library's process. */
enum status process_run(const struct options *options,
                        const struct process_settings *settings,
                        const struct cluster *cluster,
                        struct failure *why) MUST_CHECK;

/* Call it if the run that this process would lead, and that other processes
 * would join (cluster_expects_joins), cannot begin. Prints WHY on standard
 * error and empties it, then answers joins with it for 5 s. Returns its
 * status. */
enum status process_refuse(const struct options *options,
                           const struct cluster *cluster, struct failure *why);

/* Runs the chief's process for one run of a series. Returns the run's status
 * with WHY, which the log has not reported. Call it again for the next run. */
enum status process_run_one_of_series(const struct options *options,
                                      const struct process_settings *settings,
                                      const struct cluster *cluster,
                                      struct composition_series_run *series_run,
                                      struct failure *why) MUST_CHECK;

/* The same for a bench. The caller frees *RESULT, the client's, or NULL. Forks:
 * no other thread may run. */
enum status process_bench(const struct options *options,
                          const struct process_settings *settings,
                          const struct cluster *cluster, char **result,
                          struct failure *why) MUST_CHECK;

#endif
