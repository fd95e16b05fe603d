/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan info`: version and commit, devices, collectives, libraries. */
#ifndef CAPSTAN_INFO_COMMAND_H
#define CAPSTAN_INFO_COMMAND_H

#include "proto/tensor/rule.h"

#include <stdbool.h>
#include <stdio.h>

/* Prints lines for people, or one JSON object:
 * {"version", "commit", "devices": [{"name", "available", ...}],
 * "collectives": [...], "libraries": {name: version}}. Devices and collectives
 * are plugins but for the processor; one that is not there has "available":
 * false and a "reason", and each device behind one has a line of its own.
 * Update rules are told to go by LOOPS. */
void info_command_print(FILE *to, bool json, const struct rule_loops *loops);

#endif
