/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan schema`: the JSON Schema of jobs, or what is wrong with a job. */
#ifndef CAPSTAN_SCHEMA_COMMAND_H
#define CAPSTAN_SCHEMA_COMMAND_H

#include "commands/cli/options.h"
#include "core/base/status.h"

enum status schema_command(const struct options *options,
                           struct failure *why) MUST_CHECK;

#endif
