/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan compare`, and `capstan run` of a job with "compare": parameter
 * server and all-reduce beside each other, measured or predicted. */
#ifndef CAPSTAN_COMPARE_COMMAND_H
#define CAPSTAN_COMPARE_COMMAND_H

#include "commands/process.h"
#include "proto/base/status.h"
#include "proto/config/cli/options.h"

#include <stdbool.h>

/* Returns what the process exits with. */
enum status compare_command(const struct options *options,
                            struct failure *why) MUST_CHECK;

/* Does the job of `capstan run` compare? False also for one that is wrong, as
 * the run itself tells. */
bool compare_command_is_requested(const struct options *options);

/* The same between the processes of CLUSTER, whose chief this one is. WHY is
 * left empty when the log has said it. */
enum status compare_command_cluster(
    const struct options *options,
    const struct process_settings *process_settings,
    const struct cluster *cluster, struct failure *why) MUST_CHECK;

#endif
