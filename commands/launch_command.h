/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs that start processes: `capstan local`, a whole cluster on this
 * machine; `capstan launch`, the ranks of this node. */
#ifndef CAPSTAN_LAUNCH_COMMAND_H
#define CAPSTAN_LAUNCH_COMMAND_H

#include "commands/cli/options.h"
#include "core/base/status.h"
#include "proto/job/job.h"

/* An external model needs a command, a built-in one takes none. STATUS_CONFIG:
 * JOB and OPTIONS, which name it, are otherwise. */
enum status launch_command_check_model(const struct options *options,
                                       const struct job *job,
                                       struct failure *why) MUST_CHECK;

/* Both return when all processes have ended, with their exit code. */
enum status local_command(const struct options *options,
                          struct failure *why) MUST_CHECK;
enum status launch_command(const struct options *options,
                           struct failure *why) MUST_CHECK;

#endif
