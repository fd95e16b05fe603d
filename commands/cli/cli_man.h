/* SPDX-License-Identifier: Apache-2.0 */
/* The pages of the manual about the command line, as roff for man(1), from the
 * tables of the help (cli_command.h). */
#ifndef CAPSTAN_CLI_MAN_H
#define CAPSTAN_CLI_MAN_H

#include "commands/cli/cli_command.h"

#include <stdio.h>

/* Prints capstan(1), which lists the verbs. */
void cli_man_show_all(FILE *out);

/* Prints the page of COMMAND, a verb or one of its subcommands. */
void cli_man_show(FILE *out, const struct cli_command *command);

/* The name of COMMAND's page: "capstan-ckpt-ls". */
void cli_man_name(const struct cli_command *command, char *name, size_t size);

/* Begins the page NAME of SECTION, of which whatis(1) shows SUMMARY. */
void cli_man_begin(FILE *out, const char *name, int section,
                   const char *summary);

/* Prints TEXT as words of roff, without what roff would take for its own; a
 * blank line begins a paragraph. */
void cli_man_text(FILE *out, const char *text);

#endif
