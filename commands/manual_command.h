/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan manual`: the manual's pages and bash's completion, all from the
 * tables of the command line and of the job. */
#ifndef CAPSTAN_MANUAL_COMMAND_H
#define CAPSTAN_MANUAL_COMMAND_H

#include "commands/cli/options.h"
#include "core/base/status.h"

enum status manual_command(const struct options *options,
                           struct failure *why) MUST_CHECK;

#endif
