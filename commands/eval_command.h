/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan eval` and `capstan predict`: a checkpoint on a test set, and on
 * samples without labels, in one process. */
#ifndef CAPSTAN_EVAL_COMMAND_H
#define CAPSTAN_EVAL_COMMAND_H

#include "commands/cli/options.h"
#include "core/base/status.h"

enum status eval_command(const struct options *options,
                         struct failure *why) MUST_CHECK;

enum status eval_command_predict(const struct options *options,
                                 struct failure *why) MUST_CHECK;

#endif
