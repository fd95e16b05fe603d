/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan data`: samples of a job's data as its model reads them, and how fast
 * they are read. */
#ifndef CAPSTAN_DATA_COMMAND_H
#define CAPSTAN_DATA_COMMAND_H

#include "commands/cli/options.h"
#include "core/base/status.h"

enum status data_command(const struct options *options,
                         struct failure *why) MUST_CHECK;

#endif
