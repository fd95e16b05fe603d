/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan compare --predict`: from the flags to the formulas, and what they
 * say for people and for programs. */
#ifndef CAPSTAN_PREDICT_COMMAND_H
#define CAPSTAN_PREDICT_COMMAND_H

#include "chief/compare/cost_model.h"
#include "proto/base/status.h"
#include "proto/config/cli/compare_options.h"

#include <stdio.h>

/* The case that FLAGS describe. What --vm knows counts where no flag says
 * otherwise; STATUS_CONFIG when there is no such machine, or when nothing
 * tells its link. */
enum status predict_command_case(struct cost_model_case *given,
                                 const struct compare_options *flags,
                                 struct failure *why) MUST_CHECK;

/* Writes the prediction of FLAGS to OUT: a table, or one JSON object
 * (docs/compare.md). */
enum status predict_command_print(FILE *out,
                                  const struct compare_options *flags,
                                  bool json, struct failure *why) MUST_CHECK;

#endif
