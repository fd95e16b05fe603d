/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan run`: this process's roles in a run. */
#ifndef CAPSTAN_RUN_COMMAND_H
#define CAPSTAN_RUN_COMMAND_H

#include "commands/cli/options.h"
#include "core/base/status.h"

/* Returns the exit code of the process. WHY is empty if the log has reported
 * it. */
enum status run_command(const struct options *options,
                        struct failure *why) MUST_CHECK;

#endif
