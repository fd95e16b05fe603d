/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan info`: version and commit, devices, collectives, libraries. */
#ifndef CAPSTAN_INFO_COMMAND_H
#define CAPSTAN_INFO_COMMAND_H

#include "commands/cli/options.h"
#include "core/base/status.h"
#include "core/tensor/rule.h"

#include <stdbool.h>
#include <stdio.h>

/* Prints lines for people, or one JSON object: {"version", "commit", "devices":
 * [{"name", "available", ...}], "collectives": [...], "libraries": {name:
 * version}}. Devices other than the CPU and collectives are plugins. A missing
 * plugin has "available": false and a "reason"; each device of a plugin has its
 * own entry. LOOPS is the variant of the update rules. */
void info_command_print(FILE *to, bool json, const struct rule_loops *loops);

/* Prints to standard output. */
enum status info_command(const struct options *options,
                         struct failure *why) MUST_CHECK;

#endif
