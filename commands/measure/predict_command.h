/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan compare --predict`: applies the cost model to the flags and prints
 * the result. */
#ifndef CAPSTAN_PREDICT_COMMAND_H
#define CAPSTAN_PREDICT_COMMAND_H

#include "commands/cli/options.h"
#include "commands/measure/cost_model.h"
#include "core/base/status.h"

#include <stdio.h>

/* Fills GIVEN from FLAGS. Flags have precedence over the figures of --vm.
 * STATUS_CONFIG: --vm names no known machine, or the bandwidth is unknown. */
enum status predict_command_case(struct cost_model_case *given,
                                 const struct options *flags,
                                 struct failure *why) MUST_CHECK;

/* Writes the prediction for FLAGS to OUT: a table, or one JSON object
 * (docs/compare.md). */
enum status predict_command_print(FILE *out, const struct options *flags,
                                  bool json, struct failure *why) MUST_CHECK;

#endif
