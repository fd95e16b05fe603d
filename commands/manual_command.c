/* SPDX-License-Identifier: Apache-2.0 */
/* The pages of the manual, as roff for man(1), from the tables of the help and
 * of the job's keys, and the completion of command lines by bash. man(7): .SH a
 * section, .TP a term and its text, .PP a paragraph. */
#include "commands/verbs.h"

#include "commands/cli/cli_command.h"
#include "core/base/version.h"
#include "proto/job/deepspeed.h"
#include "proto/job/job_schema.h"
#include "proto/job/job_value.h"
#include "worker/models/model.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Prints TEXT as words of roff, without what roff would take for its own; a
 * blank line begins a paragraph. */
static void print_words(FILE *out, const char *text) {
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

/* "capstan-ckpt-ls". */
static void page_name(const struct cli_command *command, char *name,
                      size_t size) {
    snprintf(name, size, "capstan-%s", command->name);
    for (char *blank; (blank = strchr(name, ' '));)
        *blank = '-';
}

/* Begins the page NAME of SECTION, of which whatis(1) shows SUMMARY. */
static void begin_page(FILE *out, const char *name, int section,
                       const char *summary) {
    size_t length = strlen(summary);
    fprintf(out, ".TH \"");
    for (const char *c = name; *c; c++)
        fputc(toupper(*c), out);
    fprintf(out, "\" %d \"\" \"capstan %s\" \"Capstan\"\n.SH NAME\n", section,
            VERSION_TEXT);
    print_words(out, name);
    fprintf(out, " \\- %c", tolower(*summary));
    char rest[512];
    snprintf(rest, sizeof rest, "%.*s",
             (int)(length - 1 - (summary[length - 1] == '.')), summary + 1);
    print_words(out, rest);
    fputc('\n', out);
}

/* "--num-ps", or "-m". */
static void show_flag(FILE *out, const struct argp_option *option) {
    fputs("\\fB", out);
    if (option->name) {
        fputs("\\-\\-", out);
        print_words(out, option->name);
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
        print_words(out, option->arg);
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
        print_words(out, option->doc);
        fputs(option->name ? "\n" : "\"\n", out);
    }
}

static void show_synopsis(FILE *out, const struct cli_command *command) {
    fputs(".SH SYNOPSIS\n\\fBcapstan ", out);
    print_words(out, command->name);
    fputs("\\fR [\\fIOPTION\\fR]... ", out);
    print_words(out, command->arguments);
    fputc('\n', out);
}

static void show_man_examples(FILE *out, const char *examples) {
    fputs(".SH EXAMPLES\n.nf\n", out);
    print_words(out, examples);
    fputs("\n.fi\n", out);
}

/* The pages of COMMAND's subcommands, then the others. */
static void show_see_also(FILE *out, const struct cli_command *command) {
    char name[64];
    fputs(".SH SEE ALSO\n", out);
    for (const struct cli_command *sub = command->subcommands; sub && sub->name;
         sub++) {
        page_name(sub, name, sizeof name);
        fputs(".BR ", out);
        print_words(out, name);
        fputs(" (1),\n", out);
    }
    fputs(".BR capstan (1),\n.BR capstan\\-job (5)\n", out);
}

/* The page of COMMAND, a verb or one of its subcommands. */
static void show_verb_page(FILE *out, const struct cli_command *command) {
    char name[64];
    page_name(command, name, sizeof name);
    begin_page(out, name, 1, command->summary);
    show_synopsis(out, command);
    fputs(".SH DESCRIPTION\n", out);
    print_words(out, command->summary);
    if (command->details) {
        fputc('\n', out);
        print_words(out, command->details);
    }
    fputc('\n', out);
    show_flags(out, command->number);
    if (command->epilog) {
        fputs(".SH NOTES\n", out);
        print_words(out, command->epilog);
        fputc('\n', out);
    }
    show_man_examples(out, command->examples);
    show_see_also(out, command);
}

/* capstan(1), which lists the verbs. */
static void show_verbs_page(FILE *out) {
    begin_page(out, "capstan", 1,
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
        print_words(out, command->name);
        fputs("\\fR ", out);
        print_words(out, command->arguments);
        fputc('\n', out);
        print_words(out, command->summary);
        fputc('\n', out);
    }
    show_man_examples(out, "capstan local --ps 2 --workers 2 job.json");
    fputs(".SH SEE ALSO\n.BR capstan\\-job (5)\n", out);
}

/* capstan-job(5), the manual's page about the job file, from the tables that
 * check it. */

static const char introduction[] =
    "A job is one JSON object. Only the chief reads it; the other processes "
    "get it from the chief. Below, a.b is the key b in the object a. An "
    "unknown key, a wrong type or a value out of range ends the program with "
    "exit code 2 before anything is written.\n\n"
    "null is the same as leaving a key out. A whole real is an integer. Words "
    "may be in upper or lower case, except inf, auto and never. Relative paths "
    "start at the folder of the job file, those of data.train and data.test at "
    "data.dir.";

static const char smallest[] =
    "{\n"
    "  \"model\": {\"layers\": [784, 512, 10]},\n"
    "  \"data\": {\"train\": [\"images.gz\", \"labels.gz\"]},\n"
    "  \"epochs\": 5,\n"
    "  \"train_micro_batch_size_per_gpu\": 64,\n"
    "  \"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.05}}\n"
    "}";

/* Prints the words of the key at PATH whose bits are in MASK, 0: all. */
static void show_masked(FILE *out, const struct job_models *models,
                        const char *path, unsigned mask) {
    const struct job_key *key = job_schema_find(models, path);
    const char *between = "Of ";
    for (unsigned w = 0; mask && key->words[w]; w++)
        if (mask >> w & 1) {
            fputs(between, out);
            print_words(out, key->words[w]);
            between = ", ";
        }
    if (mask)
        fputs(".\n", out);
}

/* The rows of one path that allow the same, with one default. */
struct alike {
    char allowed[512];
    unsigned models, formats, optimizers, schedules;
};

static bool is_alike(const struct job_key *one, const struct job_key *other) {
    char texts[2][512];
    job_value_allowed(one, texts[0], sizeof *texts);
    job_value_allowed(other, texts[1], sizeof *texts);
    const char *usual = one->default_value, *others = other->default_value;
    return !strcmp(one->path, other->path) && !strcmp(texts[0], texts[1]) &&
           (usual && others ? !strcmp(usual, others) : usual == others);
}

/* False: a row before I has shown it. */
static bool find_alike(const struct job_models *models, size_t i,
                       struct alike *alike) {
    const struct job_key *key = job_schema_row(models, i), *other;
    *alike = (struct alike){.models = 0};
    job_value_allowed(key, alike->allowed, sizeof alike->allowed);
    for (size_t k = 0; (other = job_schema_row(models, k)); k++) {
        if (!is_alike(key, other))
            continue;
        if (k < i)
            return false;
        alike->models |= other->of_model ? other->models : 0;
        alike->formats |= other->formats;
        alike->optimizers |= other->optimizers;
        alike->schedules |= other->schedules;
    }
    return true;
}

static void show_row(FILE *out, const struct job_models *models, size_t i) {
    const struct job_key *key = job_schema_row(models, i);
    struct alike alike;
    if (!find_alike(models, i, &alike))
        return;
    fputs(".br\n", out);
    print_words(out, alike.allowed);
    fputs("; ", out);
    if (key->default_value) {
        fputs("default ", out);
        print_words(out, key->default_value);
    } else
        fputs(key->required ? "required" : "no default", out);
    fputs(".\n", out);
    show_masked(out, models, "model.type", alike.models);
    show_masked(out, models, "data.format", alike.formats);
    show_masked(out, models, "optimizer.type", alike.optimizers);
    show_masked(out, models, "scheduler.type", alike.schedules);
}

static void show_key(FILE *out, const struct job_models *models, size_t i) {
    const struct job_key *key = job_schema_row(models, i), *other;
    fputs(".TP\n\\fB", out);
    print_words(out, key->path);
    fputs("\\fR\n", out);
    print_words(out, key->meaning);
    fputs(".\n", out);
    for (size_t k = i; (other = job_schema_row(models, k)); k++)
        if (!strcmp(other->path, key->path))
            show_row(out, models, k);
}

static void show_foreign_keys(FILE *out) {
    size_t count;
    const struct deepspeed_key *keys = deepspeed_keys(&count);
    fputs(".SH DEEPSPEED\nA configuration of DeepSpeed loads as it is. Keys "
          "that have another name here:\n",
          out);
    for (size_t i = 0; i < count; i++) {
        if (keys[i].support != DEEPSPEED_RENAMED)
            continue;
        fputs(".TP\n\\fB", out);
        print_words(out, keys[i].path);
        fputs("\\fR\n", out);
        print_words(out, keys[i].text);
        fputc('\n', out);
    }
}

/* Prints the page as roff, with the keys of MODELS. */
static void show_job_page(FILE *out, const struct job_models *models) {
    const struct job_key *key;
    begin_page(out, "capstan-job", 5, "The job file of Capstan.");
    fputs(".SH DESCRIPTION\n", out);
    print_words(out, introduction);
    fputs("\n.SH KEYS\n", out);
    for (size_t i = 0; (key = job_schema_row(models, i)); i++)
        if (job_schema_find(models, key->path) == key)
            show_key(out, models, i);
    show_foreign_keys(out);
    fputs(".SH EXAMPLE\n.nf\n", out);
    print_words(out, smallest);
    fputs("\n.fi\n.SH SEE ALSO\n.BR capstan (1),\n.BR capstan\\-schema (1)\n",
          out);
}

/* Completion of command lines by bash 4.4, without the package bash-completion:
 * verbs, flags, their words and files, keys of the job behind --set. The script
 * has a function for each table, which sets a variable by the verb, the flag or
 * the key, and a fixed part that takes the line apart. */

/* bash gives --lane=tcp as three words, and as two in --lane tcp. */
static const char fixed[] =
    "# The words of $1 that begin with $2.\n"
    "_capstan_offer() {\n"
    "    mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$2\")\n"
    "}\n\n"
    "# Files whose names fit the pattern $1, and folders.\n"
    "_capstan_files() {\n"
    "    compopt -o filenames 2> /dev/null\n"
    "    mapfile -t COMPREPLY < <(compgen -d -- \"$2\"\n"
    "        [[ $1 ]] && compgen -f -X \"!$1\" -- \"$2\" | while read -r f; do\n"
    "            [[ -d $f ]] || echo \"$f\"; done)\n"
    "}\n\n"
    "# The value $2 of the flag $1.\n"
    "_capstan_value() {\n"
    "    local values=\n"
    "    _capstan_values \"$verb $1\"\n"
    "    case $values in\n"
    "    FILE) _capstan_files '*' \"$2\" ;;\n"
    "    DIR) _capstan_files '' \"$2\" ;;\n"
    "    KEY.PATH=VALUE)\n"
    "        compopt -o nospace 2> /dev/null\n"
    "        _capstan_offer \"${_capstan_keys// /= }=\" \"$2\" ;;\n"
    "    *) _capstan_offer \"$values\" \"$2\" ;;\n"
    "    esac\n"
    "}\n\n"
    "# The argument $1.\n"
    "_capstan_argument() {\n"
    "    case $arguments in\n"
    "    *'|'*)\n"
    "        [[ $verb != *' '* ]] && _capstan_offer \"$subverbs\" \"$1\" ;;\n"
    "    COMMAND*) compopt -o default 2> /dev/null ;;\n"
    "    *PAGE*) _capstan_offer \"$(\"$program\" manual 2> /dev/null)\" \"$1\" ;;\n"
    "    *JOB.json*) _capstan_files '*.json' \"$1\" ;;\n"
    "    *FILE.jsonl*) _capstan_files '*.jsonl' \"$1\" ;;\n"
    "    *DIR*) _capstan_files '*' \"$1\" ;;\n"
    "    esac\n"
    "}\n\n"
    "_capstan() {\n"
    "    local program=$1 cur=${COMP_WORDS[COMP_CWORD]} at=$COMP_CWORD i\n"
    "    local verb=${COMP_WORDS[1]} flags= arguments= subverbs= own= flag= equals=\n"
    "    local verbs=$_capstan_verbs key\n"
    "    COMPREPLY=()\n"
    "    for ((i = 2; i < at; i++)); do # a command of its own follows\n"
    "        [[ ${COMP_WORDS[i]} == -- ]] && own=yes\n"
    "    done\n"
    "    if [[ $own ]]; then\n"
    "        compopt -o default 2> /dev/null\n"
    "        return\n"
    "    fi\n"
    "    if ((at == 1)); then\n"
    "        _capstan_offer \"$verbs --help --version\" \"$cur\"\n"
    "        return\n"
    "    fi\n"
    "    [[ \" $_capstan_subverbs \" == *\" $verb:${COMP_WORDS[2]} \"* ]] &&\n"
    "        ((at > 2)) && verb+=\" ${COMP_WORDS[2]}\"\n"
    "    _capstan_verb \"$verb\"\n"
    "    [[ $cur == = ]] && cur= || ((at--))\n"
    "    [[ ${COMP_WORDS[at]} == = ]] && equals=yes && ((at--))\n"
    "    flag=${COMP_WORDS[at]}\n"
    "    key=$flag\n"
    "    if [[ $flag != -* ]]; then # --set KEY=, --set = KEY=\n"
    "        ((at--))\n"
    "        [[ ${COMP_WORDS[at]} == = ]] && ((at--))\n"
    "        if [[ ${COMP_WORDS[at]} == --set && $equals ]]; then\n"
    "            local words=\n"
    "            _capstan_key \"$key\"\n"
    "            _capstan_offer \"$words\" \"$cur\"\n"
    "            return\n"
    "        fi\n"
    "    elif [[ \" $flags \" == *\" $flag= \"* ]]; then\n"
    "        _capstan_value \"$flag\" \"$cur\"\n"
    "        return\n"
    "    fi\n"
    "    if [[ $cur == -* ]]; then\n"
    "        _capstan_offer \"$flags\" \"$cur\"\n"
    "        [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2> /dev/null\n"
    "    else\n"
    "        _capstan_argument \"$cur\"\n"
    "    fi\n"
    "}\n\n"
    "complete -F _capstan capstan\n";

/* The flag that OPTION, perhaps another name, stands for. */
static const struct argp_option *flag_of(const struct argp_option *option) {
    while (option->flags & OPTION_ALIAS)
        option--;
    return option;
}

static void write_verb(FILE *out, const struct cli_command *command) {
    fprintf(out, "    '%s') arguments='%s' flags='", command->name,
            command->arguments);
    struct argp_option options[CLI_FLAG_MAX];
    cli_flag_options(command->number, options);
    for (const struct argp_option *option = options; !cli_flag_is_end(option);
         option++)
        if (option->name)
            fprintf(out, "--%s%s ", option->name,
                    flag_of(option)->arg ? "=" : "");
    fputs("' subverbs='", out);
    for (const struct cli_command *sub = command->subcommands; sub && sub->name;
         sub++)
        fprintf(out, "%s ", strrchr(sub->name, ' ') + 1);
    fputs("' ;;\n", out);
}

/* Words, FILE, DIR or KEY.PATH=VALUE; nothing for a number or a name. */
static void write_flag_values(FILE *out, const struct cli_command *command) {
    static const char *const known[] = {"FILE", "DIR", "KEY.PATH=VALUE"};
    struct argp_option options[CLI_FLAG_MAX];
    cli_flag_options(command->number, options);
    for (const struct argp_option *option = options; !cli_flag_is_end(option);
         option++) {
        const struct argp_option *flag = flag_of(option);
        const struct cli_flag *row = cli_flag_of(flag->key);
        const char *values = row ? row->words : NULL;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            if (flag->arg && !strncmp(flag->arg, known[i], strlen(known[i])))
                values = known[i];
        if (option->name && values)
            fprintf(out, "    '%s --%s') values='%s' ;;\n", command->name,
                    option->name, values);
    }
}

/* Writes a case with WRITE's lines for each verb and subverb. */
static void write_cases(FILE *out, const char *function,
                        void (*write)(FILE *out,
                                      const struct cli_command *command)) {
    fprintf(out, "%s() {\n    case $1 in\n", function);
    for (int v = 0; v < CLI_COMMANDS; v++) {
        const struct cli_command *verb =
            cli_command_get((enum cli_command_id)v);
        write(out, verb);
        for (const struct cli_command *sub = verb->subcommands;
             sub && sub->name; sub++)
            write(out, sub);
    }
    fputs("    esac\n}\n\n", out);
}

static void write_verbs(FILE *out) {
    fputs("_capstan_verbs='", out);
    for (int v = 0; v < CLI_COMMANDS; v++)
        fprintf(out, "%s%s", v ? " " : "",
                cli_command_get((enum cli_command_id)v)->name);
    fputs("'\n_capstan_subverbs='", out);
    for (int v = 0; v < CLI_COMMANDS; v++) {
        const struct cli_command *verb =
            cli_command_get((enum cli_command_id)v);
        for (const struct cli_command *sub = verb->subcommands;
             sub && sub->name; sub++)
            fprintf(out, "%s:%s ", verb->name, strrchr(sub->name, ' ') + 1);
    }
    fputs("'\n", out);
}

static void write_words(FILE *out, const struct job_key *key) {
    if (key->kind == JOB_KIND_BOOL)
        fputs(" true false", out);
    for (const char *const *word = key->words; word && *word; word++)
        if (**word && **word != '.')
            fprintf(out, " %s", *word);
}

/* A key may have several rows, each with its words. */
static void write_keys(FILE *out, const struct job_models *models) {
    const struct job_key *key;
    fputs("_capstan_keys='", out);
    for (size_t i = 0; (key = job_schema_row(models, i)); i++)
        fprintf(out, "%s%s", i ? " " : "", key->path);
    fputs("'\n\n_capstan_key() {\n", out);
    for (size_t i = 0; (key = job_schema_row(models, i)); i++) {
        bool paths = key->kind == JOB_KIND_PATH;
        if (key->kind != JOB_KIND_BOOL && (!key->words || paths))
            continue;
        fprintf(out, "    [[ $1 == %s ]] && words+='", key->path);
        write_words(out, key);
        fputs("'\n", out);
    }
    fputs("}\n\n", out);
}

static void show_completion(FILE *out, const struct job_models *models) {
    fputs("# Completion of capstan's command line by bash.\n", out);
    write_verbs(out);
    write_keys(out, models);
    write_cases(out, "_capstan_verb", write_verb);
    write_cases(out, "_capstan_values", write_flag_values);
    fputs(fixed, out);
}

/* Prints the page NAME, or the names of all pages (NULL); false: there is none
 * of this verb. */
static bool show_verb(const char *name, const struct cli_command *command) {
    char own[64];
    page_name(command, own, sizeof own);
    if (!name)
        puts(own);
    else if (!strcmp(own, name))
        show_verb_page(stdout, command);
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
        show_verbs_page(stdout);
    else if (!strcmp(name, "capstan-job"))
        show_job_page(stdout, &model_schemas);
    else if (!strcmp(name, "bash-completion"))
        show_completion(stdout, &model_schemas);
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
    return STATUS_OK;
}
