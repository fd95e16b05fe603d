/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan bench`: how fast vectors move, measured on this machine, measured in
 * a described cluster, or simulated. */
#ifndef CAPSTAN_BENCH_COMMAND_H
#define CAPSTAN_BENCH_COMMAND_H

#include "commands/cli/options.h"
#include "core/base/status.h"

/* Returns the exit code of the process. WHY is empty if the log has reported
 * it. */
enum status bench_command(const struct options *options,
                          struct failure *why) MUST_CHECK;

#endif
