/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan compare`, and `capstan run` of a job with "compare": compares
 * parameter server and all-reduce, measured or predicted. */
#ifndef CAPSTAN_COMPARE_COMMAND_H
#define CAPSTAN_COMPARE_COMMAND_H

#include "commands/cli/options.h"
#include "commands/process.h"
#include "core/base/status.h"

#include <stdbool.h>

/* Returns the exit code of the process. */
enum status compare_command(const struct options *options,
                            struct failure *why) MUST_CHECK;

/* True if the job of `capstan run` has the key "compare". False also for an
 * invalid job, which the run itself reports. */
bool compare_command_is_requested(const struct options *options);

/* Compares between the processes of CLUSTER; this process is the chief. WHY is
 * empty if the log has reported it. */
enum status compare_command_cluster(const struct options *options,
                                    const struct process_settings *settings,
                                    const struct cluster *cluster,
                                    struct failure *why) MUST_CHECK;

#endif
