/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the help texts of the command line. argp sorts options by name; here
 * they keep the order of their table, in which each sentence needs only the
 * ones before it. */
#ifndef CAPSTAN_CLI_HELP_H
#define CAPSTAN_CLI_HELP_H

#include "proto/config/cli/cli_command.h"

#include <stdio.h>

/* Prints every verb with its summary, in lines of at most 80 columns. */
void cli_help_show_all(FILE *out);

/* Prints the usage of COMMAND, which ARGP parses, its options, then
 * examples. */
void cli_help_show(FILE *out, const struct cli_command *command,
                   const struct argp *argp);

#endif
