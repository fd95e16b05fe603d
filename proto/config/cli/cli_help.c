/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cli/cli_help.h"

#include <ctype.h>
#include <string.h>

enum { CLI_HELP_COLUMNS = 80, CLI_HELP_TEXT_COLUMN = 29 };

/* Prints TEXT in lines of 80 columns, each after INDENT blanks but for the
 * first, which already has COLUMN characters. A newline ends a line. */
static void cli_help_wrap(FILE *out, const char *text, size_t indent,
                          size_t column) {
    const size_t width = CLI_HELP_COLUMNS - indent;
    while (*text) {
        size_t length = strcspn(text, "\n");
        if (length > width) {
            length = width;
            while (length > 1 && text[length] != ' ')
                length--;
        }
        int blanks = length && column < indent ? (int)(indent - column) : 0;
        fprintf(out, "%*s%.*s\n", blanks, "", (int)length, text);
        text += length;
        text += *text == '\n' ? 1 : strspn(text, " ");
        column = 0;
    }
}

void cli_help_show_all(FILE *out) {
    fprintf(out, "Usage: capstan VERB ...\n\n");
    for (int v = 0; v < CLI_COMMANDS; v++) {
        const struct cli_command *command =
            cli_command_get((enum cli_command_id)v);
        fprintf(out, "  capstan %s%s%s\n", command->name,
                *command->arguments ? " " : "", command->arguments);
        cli_help_wrap(out, command->summary, 8, 0);
    }
    fprintf(out,
            "\n`capstan VERB --help` shows the flags of a verb and examples.\n"
            "`capstan --version` shows the release and its commit.\n\n"
            "Example:\n"
            "    capstan local --ps 2 --workers 2 job.json\n");
}

static bool cli_help_is_end(const struct argp_option *option) {
    return !option->name && !option->key && !option->doc;
}

/* Prints the names of OPTION and of the aliases behind it; returns how many
 * characters. */
static size_t show_names(FILE *out, const struct argp_option *option) {
    const char *value = option->arg;
    bool optional = option->flags & OPTION_ARG_OPTIONAL;
    int used = fprintf(out, "  ");
    if (option->key > 0 && option->key < 0x80 && isgraph(option->key))
        used += fprintf(out, "-%c, ", option->key);
    used += fprintf(out, "--%s%s%s%s%s", option->name, optional ? "[" : "",
                    value ? "=" : "", value ? value : "", optional ? "]" : "");
    while ((++option)->flags & OPTION_ALIAS)
        used += option->name ? fprintf(out, ", --%s", option->name)
                             : fprintf(out, ", -%c", option->key);
    return (size_t)used;
}

static void show_options(FILE *out, const struct argp_option *option) {
    for (; !cli_help_is_end(option); option++) {
        if (option->flags & OPTION_ALIAS)
            continue;
        if (!option->name) {
            fprintf(out, "\n%s\n", option->doc);
            continue;
        }
        size_t used = show_names(out, option);
        if (used >= CLI_HELP_TEXT_COLUMN) {
            fputc('\n', out);
            used = 0;
        }
        cli_help_wrap(out, option->doc, CLI_HELP_TEXT_COLUMN, used);
    }
}

static void show_examples(FILE *out, const char *examples) {
    fprintf(out, "\nExamples:\n");
    for (const char *line = examples; *line;) {
        size_t length = strcspn(line, "\n");
        fprintf(out, "  %.*s\n", (int)length, line);
        line += length + (line[length] == '\n');
    }
}

void cli_help_show(FILE *out, const struct cli_command *command,
                   const struct argp *argp) {
    char name[64];
    snprintf(name, sizeof name, "capstan %s", command->name);
    argp_help(argp, out, ARGP_HELP_USAGE, name);
    cli_help_wrap(out, command->summary, 0, 0);
    if (command->details)
        cli_help_wrap(out, command->details, 0, 0);
    fprintf(out, "\nOptions:\n");
    show_options(out, command->options);
    if (command->epilog) {
        fputc('\n', out);
        cli_help_wrap(out, command->epilog, 0, 0);
    }
    show_examples(out, command->examples);
}
