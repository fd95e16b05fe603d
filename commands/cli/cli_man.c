/* SPDX-License-Identifier: Apache-2.0 */
/* man(7): .SH a section, .TP a term and its text, .PP a paragraph. */
#include "commands/cli/cli_man.h"

#include "core/base/version.h"

#include <ctype.h>
#include <string.h>

void cli_man_text(FILE *out, const char *text) {
    for (const char *c = text; *c; c++) {
        bool first = c == text || c[-1] == '\n';
        if (c[0] == '\n' && c[1] == '\n') {
            fputs("\n.PP\n", out);
            c++;
        } else if (*c == '\\')
            fputs("\\e", out);
        else if (*c == '-')
            fputs("\\-", out);
        else if (*c == '`' || *c == '\'')
            fputs(*c == '`' ? "\\(ga" : "\\(aq", out);
        else
            fprintf(out, "%s%c", first && *c == '.' ? "\\&" : "", *c);
    }
}

void cli_man_name(const struct cli_command *command, char *name, size_t size) {
    snprintf(name, size, "capstan-%s", command->name);
    for (char *blank; (blank = strchr(name, ' '));)
        *blank = '-';
}

void cli_man_begin(FILE *out, const char *name, int section,
                   const char *summary) {
    size_t length = strlen(summary);
    fprintf(out, ".TH \"");
    for (const char *c = name; *c; c++)
        fputc(toupper(*c), out);
    fprintf(out, "\" %d \"\" \"capstan %s\" \"Capstan\"\n.SH NAME\n", section,
            VERSION_TEXT);
    cli_man_text(out, name);
    fprintf(out, " \\- %c", tolower(*summary));
    char rest[512];
    snprintf(rest, sizeof rest, "%.*s",
             (int)(length - 1 - (summary[length - 1] == '.')), summary + 1);
    cli_man_text(out, rest);
    fputc('\n', out);
}

/* "--num-ps", or "-m". */
static void show_flag(FILE *out, const struct argp_option *option) {
    fputs("\\fB", out);
    if (option->name) {
        fputs("\\-\\-", out);
        cli_man_text(out, option->name);
    } else
        fprintf(out, "\\-%c", option->key);
    fputs("\\fR", out);
}

static void show_flag_names(FILE *out, const struct argp_option *option) {
    if (option->key > 0 && option->key < 0x80 && isgraph(option->key))
        fprintf(out, "\\fB\\-%c\\fR, ", option->key);
    show_flag(out, option);
    if (option->arg) {
        bool optional = option->flags & OPTION_ARG_OPTIONAL;
        fputs(optional ? "[=\\fI" : "=\\fI", out);
        cli_man_text(out, option->arg);
        fputs(optional ? "\\fR]" : "\\fR", out);
    }
    while ((++option)->flags & OPTION_ALIAS) {
        fputs(", ", out);
        show_flag(out, option);
    }
    fputc('\n', out);
}

static void show_flags(FILE *out, enum cli_command_id verb) {
    struct argp_option options[CLI_FLAG_MAX], *option = options;
    cli_flag_options(verb, options);
    fputs(".SH OPTIONS\n", out);
    for (; !cli_flag_is_end(option); option++) {
        if (option->flags & OPTION_ALIAS)
            continue;
        fputs(option->name ? ".TP\n" : ".SS \"", out);
        if (option->name)
            show_flag_names(out, option);
        cli_man_text(out, option->doc);
        fputs(option->name ? "\n" : "\"\n", out);
    }
}

static void show_synopsis(FILE *out, const struct cli_command *command) {
    fputs(".SH SYNOPSIS\n\\fBcapstan ", out);
    cli_man_text(out, command->name);
    fputs("\\fR [\\fIOPTION\\fR]... ", out);
    cli_man_text(out, command->arguments);
    fputc('\n', out);
}

static void show_man_examples(FILE *out, const char *examples) {
    fputs(".SH EXAMPLES\n.nf\n", out);
    cli_man_text(out, examples);
    fputs("\n.fi\n", out);
}

/* The pages of COMMAND's subcommands, then the others. */
static void show_see_also(FILE *out, const struct cli_command *command) {
    char name[64];
    fputs(".SH SEE ALSO\n", out);
    for (const struct cli_command *sub = command->subcommands; sub && sub->name;
         sub++) {
        cli_man_name(sub, name, sizeof name);
        fputs(".BR ", out);
        cli_man_text(out, name);
        fputs(" (1),\n", out);
    }
    fputs(".BR capstan (1),\n.BR capstan\\-job (5)\n", out);
}

void cli_man_show(FILE *out, const struct cli_command *command) {
    char name[64];
    cli_man_name(command, name, sizeof name);
    cli_man_begin(out, name, 1, command->summary);
    show_synopsis(out, command);
    fputs(".SH DESCRIPTION\n", out);
    cli_man_text(out, command->summary);
    if (command->details) {
        fputc('\n', out);
        cli_man_text(out, command->details);
    }
    fputc('\n', out);
    show_flags(out, command->number);
    if (command->epilog) {
        fputs(".SH NOTES\n", out);
        cli_man_text(out, command->epilog);
        fputc('\n', out);
    }
    show_man_examples(out, command->examples);
    show_see_also(out, command);
}

void cli_man_show_all(FILE *out) {
    cli_man_begin(out, "capstan", 1,
                  "Trains models by parameter server or all-reduce.");
    fputs(".SH SYNOPSIS\n\\fBcapstan\\fR \\fIVERB\\fR [\\fIOPTION\\fR]... "
          "[\\fIARGUMENT\\fR]...\n"
          ".SH DESCRIPTION\n"
          "A chief coordinates, ps processes hold the weights, and workers "
          "train.\nEach verb has a page of its own, such as\n"
          ".BR capstan\\-run (1).\n"
          ".SH VERBS\n",
          out);
    for (int v = 0; v < CLI_COMMANDS; v++) {
        const struct cli_command *command =
            cli_command_get((enum cli_command_id)v);
        fputs(".TP\n\\fB", out);
        cli_man_text(out, command->name);
        fputs("\\fR ", out);
        cli_man_text(out, command->arguments);
        fputc('\n', out);
        cli_man_text(out, command->summary);
        fputc('\n', out);
    }
    show_man_examples(out, "capstan local --ps 2 --workers 2 job.json");
    fputs(".SH SEE ALSO\n.BR capstan\\-job (5)\n", out);
}
