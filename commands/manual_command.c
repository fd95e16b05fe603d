/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/manual_command.h"

#include "commands/bash_completion.h"
#include "proto/config/cli/cli_man.h"
#include "proto/config/job/job_man.h"
#include "worker/models/model.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Prints the page NAME, or the names of all pages (NULL); false: there is none
 * of this verb. */
static bool show_verb(const char *name, const struct cli_command *command) {
    char own[64];
    cli_man_name(command, own, sizeof own);
    if (!name)
        puts(own);
    else if (!strcmp(own, name))
        cli_man_show(stdout, command);
    bool found = name && !strcmp(own, name);
    for (const struct cli_command *sub = command->subcommands; sub && sub->name;
         sub++)
        found = show_verb(name, sub) || found;
    return found;
}

static void show_all(void) {
    puts("capstan");
    for (int v = 0; v < CLI_COMMANDS; v++)
        show_verb(NULL, cli_command_get((enum cli_command_id)v));
    puts("capstan-job\nbash-completion");
}

static bool show_page(const char *name) {
    bool found = true;
    if (!strcmp(name, "capstan"))
        cli_man_show_all(stdout);
    else if (!strcmp(name, "capstan-job"))
        job_man_show(stdout, &model_schemas);
    else if (!strcmp(name, "bash-completion"))
        bash_completion_show(stdout, &model_schemas);
    else
        found = false;
    for (int v = 0; v < CLI_COMMANDS && !found; v++)
        found = show_verb(name, cli_command_get((enum cli_command_id)v));
    return found;
}

enum status manual_command(const struct options *options, struct failure *why) {
    if (!options->job)
        show_all();
    else if (!show_page(options->job))
        return status_fail(why, FAILURE_USAGE,
                           "no page '%s'; `capstan manual` lists them",
                           options->job);
    if (fflush(stdout) || ferror(stdout))
        return status_errno(why, FAILURE_FILE_UNWRITABLE, errno,
                            "cannot write the page");
    return STATUS_OK;
}
