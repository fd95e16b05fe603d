/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs of the command line: their texts and help. */
#ifndef CAPSTAN_CLI_COMMAND_H
#define CAPSTAN_CLI_COMMAND_H

#include "commands/cli/cli_flag.h"

#include <stdio.h>

struct cli_command {
    const char *name, *arguments;
    const char *summary; /* one sentence */
    const char *details; /* NULL: none */
    enum cli_command_id number;
    int min_arguments, max_arguments;
    const char *epilog;   /* below the options in its help; NULL: none */
    const char *examples; /* command lines, one a line */
    const struct cli_command
        *subcommands; /* named "ckpt ls"; their arguments count the second
                         word; ended by one without a name */
};

/* The verb of NUMBER. */
const struct cli_command *cli_command_get(enum cli_command_id number);

/* The verb called NAME and its *NUMBER, or NULL. */
const struct cli_command *cli_command_find(const char *name,
                                           enum cli_command_id *number);

/* The subcommand of COMMAND called WORD, or NULL. */
const struct cli_command *cli_command_subcommand(
    const struct cli_command *command, const char *word);

/* Prints every verb with its summary, in lines of at most 80 columns. */
void cli_command_show_all(FILE *out);

/* Prints the usage of COMMAND, which ARGP parses, its options, then examples.
 * argp sorts options by name; here they keep the order of their table, in which
 * each sentence needs only the ones before it. */
void cli_command_show(FILE *out, const struct cli_command *command,
                      const struct argp *argp);

#endif
