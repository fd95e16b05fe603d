/* SPDX-License-Identifier: Apache-2.0 */
/* One parser for all verbs. A verb has the flags of its rows (flag_rows.h), so
 * a flag of another verb is unknown. ARGP_NO_ERRS and ARGP_NO_EXIT keep argp
 * from printing and exiting; the first problem becomes the status. A flag's
 * value is checked when the flag is read, combinations of flags at the end. */
#include "commands/cli/options.h"

#include "commands/cli/cli_command.h"
#include "core/base/version.h"
#include "proto/cluster/azureml.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

struct parser {
    struct options *options;
    const struct cli_command *cli_command;
    struct failure *why;
    enum status status;
    int num_arguments;
};

static error_t fail_usage(struct parser *parser, enum failure_code code,
                          const char *format, const char *found) {
    if (!parser->status) {
        char text[512];
        snprintf(text, sizeof text, format, found);
        parser->status = status_fail(parser->why, code,
                                     "%s; `capstan %s --help` lists its flags",
                                     text, parser->cli_command->name);
    }
    return EINVAL;
}

static error_t add_argument(struct parser *parser, char *text) {
    struct options *options = parser->options;
    if (parser->num_arguments == parser->cli_command->max_arguments)
        return fail_usage(parser, FAILURE_USAGE,
                          "'%s' is one word too many; a command of your own, "
                          "for local and compare, comes after --",
                          text);
    int number = parser->num_arguments++;
    bool acts = options->cli_command == CLI_COMMAND_CKPT ||
                options->cli_command == CLI_COMMAND_DATA;
    bool predicts = options->cli_command == CLI_COMMAND_PREDICT;
    if (acts && number == 0)
        options->action = text;
    else if (predicts && number == 1)
        options->input = text;
    else if (predicts && number == 2)
        options->out = text;
    else if (options->cli_command != CLI_COMMAND_CKPT)
        options->job = text;
    else if (number == 1)
        options->dir = text;
    else
        options->out = text;
    return 0;
}

static error_t set_flag(struct parser *parser, int key, const char *text) {
    char problem[512];
    if (cli_flag_set(parser->options, cli_flag_of(key), text, problem,
                     sizeof problem))
        return 0;
    return fail_usage(parser, FAILURE_BAD_FLAG_VALUE, "%s", problem);
}

static void show_version(void) {
    printf("capstan %s (commit %s)\n", VERSION_TEXT, version_commit);
}

/* All following words belong to the command. */
static error_t command(struct parser *parser, struct argp_state *state) {
    parser->num_arguments = 1;
    parser->options->command = state->argv + state->next - 1;
    state->next = state->argc;
    return 0;
}

/* argp refused the word before the next one, or a letter of the next one. */
static error_t report_unknown_flag(struct parser *parser,
                                   const struct argp_state *state) {
    const struct argp_option *options = state->root_argp->options;
    char text[256] = "an unknown flag";
    int next = state->next;
    if (!cli_flag_error(options, state->argv[next - 1], text, sizeof text) &&
        next < state->argc)
        cli_flag_error(options, state->argv[next], text, sizeof text);
    return fail_usage(parser, FAILURE_UNKNOWN_FLAG, "%s", text);
}

/* argp accepts an abbreviated flag, and takes the next word for its value. Such
 * a flag is refused; VALUE is the value that argp has read for it. */
static bool is_abbreviated(struct parser *parser, const char *value,
                           const struct argp_state *state) {
    const struct argp_option *options = state->root_argp->options;
    const char *word = state->argv[state->next - 1];
    char text[256];
    if (value && value == word)
        word = state->argv[state->next - 2];
    if (!cli_flag_is_abbreviated(options, word))
        return false;
    cli_flag_error(options, word, text, sizeof text);
    fail_usage(parser, FAILURE_UNKNOWN_FLAG, "%s", text);
    return true;
}

static error_t options_parse(int key, char *text, struct argp_state *state) {
    struct parser *parser = state->input;
    struct options *options = parser->options;
    bool is_flag = key > 0 && key < ARGP_KEY_END;
    if (is_flag && is_abbreviated(parser, text, state))
        return EINVAL;
    switch (key) {
    case ARGP_KEY_ARG:
        if (options->cli_command == CLI_COMMAND_LAUNCH)
            return command(parser, state);
        return add_argument(parser, text);
    case ARGP_KEY_ERROR:
        return parser->status ? 0 : report_unknown_flag(parser, state);
    case 'h':
        cli_command_show(stdout, parser->cli_command, state->root_argp);
        break;
    case 'V':
        show_version();
        break;
    default:
        break;
    }
    return is_flag ? set_flag(parser, key, text) : ARGP_ERR_UNKNOWN;
}

/* The words after "--" are a command, whose flags are its own. Returns the
 * number of words before. */
static int cut_command(struct options *options, int argc, char **argv) {
    bool takes = options->cli_command == CLI_COMMAND_LOCAL ||
                 options->cli_command == CLI_COMMAND_COMPARE;
    for (int i = 1; takes && i < argc; i++)
        if (!strcmp(argv[i], "--") && argv[i + 1]) {
            options->command = argv + i + 1;
            return i;
        }
    return argc;
}

/* The flags of bench and compare below their second heading. */
enum { OPTIONAL_GROUP = 2 };

static const char *check_prediction(const struct options *options,
                                    bool has_model) {
    if (has_model)
        return "--predict runs nothing: it takes no job and no command";
    if (options->given.steps || options->given.repeats ||
        options->given.limit || options->given.csv || options->given.plot ||
        options->given.tensorboard || options->given.report)
        return "--steps, --repeats, --limit, --csv, --plot, --tensorboard and "
               "--report need runs; --predict makes none";
    if (options->parameters == 0)
        return "--predict needs --params, such as 25.6M";
    if (options->link_gbits == 0 && !options->vm)
        return "--predict needs --link-gbits, or a --vm whose link is known";
    if (options->ps.count > 1 || options->workers.count > 1)
        return "--predict takes one number of --ps and one of --workers";
    return NULL;
}

bool options_lists_vms(const struct options *options) {
    return options->vm && !strcasecmp(options->vm, "list");
}

static const char *check_from(const struct options *options, bool has_model) {
    if (has_model || options->predict)
        return "--from shows a comparison that was made: it takes no job, no "
               "command and no --predict";
    if (options->given.ps || options->given.workers || options->given.steps ||
        options->given.repeats || options->given.limit || options->num_sets ||
        options->deepspeed || options->lane || options->given.link_gbits ||
        options->given.latency_us ||
        cli_flag_group_given(options, OPTIONAL_GROUP))
        return "--from runs nothing: it goes with --json, --csv, --plot, "
               "--tensorboard and --report alone";
    return NULL;
}

static const char *compare_error(const struct options *options,
                                 bool has_model) {
    if (options->from)
        return check_from(options, has_model);
    if (options_lists_vms(options))
        return has_model
                   ? "--vm list runs nothing: it takes no job and no command"
                   : NULL;
    if (options->predict)
        return check_prediction(options, has_model);
    if (!has_model)
        return "capstan compare takes JOB.json, -- COMMAND, or --predict";
    if (cli_flag_group_given(options, OPTIONAL_GROUP))
        return "--params, --compute-ms and the other flags of a prediction go "
               "with --predict";
    return NULL;
}

static const char *check_bench(const struct options *options) {
    if (!options->num_ps || !options->num_workers)
        return "--ps and --workers take at least 1";
    if (!options->simulate &&
        (cli_flag_group_given(options, OPTIONAL_GROUP) || options->job ||
         options->num_sets || options->num_workers > 1))
        return "a job and the flags of a simulation go with --simulate";
    if (options->simulate && !options->job == !options->bytes)
        return "--simulate takes either JOB.json or --bytes N";
    return NULL;
}

/* Without JOB.json the processes run the command of the job of Azure ML. */
static const char *check_distribution(const struct options *options) {
    const char *text = options->azureml_distribution;
    bool own = options->command;
    bool runs_command = text && !options->job && !own;
    if (options->given.num_ps || options->given.num_workers)
        return "--distribution gives the number of processes: leave --ps and "
               "--workers out";
    if (runs_command && azureml_is_block(text))
        return "a distribution block has no command: give JOB.json, or a "
               "command after --";
    if (runs_command && options->link_gbits > 0)
        return "figures such as --link-gbits go with JOB.json";
    if (options->num_inputs && !runs_command)
        return "--input goes with the command of --distribution FILE, which "
               "JOB.json and a command after -- replace";
    return NULL;
}

static const char *check_drill(const struct options *options) {
    if (!options->given.kill_every || !options->given.kill)
        return options->given.kill_every || options->given.kill
                   ? "--kill-every and --kill go together"
                   : NULL;
    if (options->azureml_distribution)
        return "--kill-every does not go with --distribution, whose processes "
               "are not started again";
    if (options->max_restarts == 0)
        return "--kill-every with --max-restarts 0: what it kills would not be "
               "started again";
    if (options->kill == OPTIONS_KILL_PS)
        return options->num_ps ? NULL : "--kill ps with --ps 0";
    if (options->kill != OPTIONS_KILL_WORKER)
        return NULL;
    if (options->command && options->num_workers < 2)
        return "--kill worker with a command and --workers 1: worker 0 leads; "
               "give --kill chief";
    return options->num_workers ? NULL : "--kill worker with --workers 0";
}

static const char *check_local(const struct options *options) {
    const char *error = check_drill(options);
    bool distributed = options->azureml_distribution;
    if (error)
        return error;
    if (options->command && options->link_gbits > 0)
        return "figures such as --link-gbits do not go with a command";
    if (options->command && !distributed && !options->num_workers)
        return "--workers 0 with a command: worker 0 leads";
    if (!distributed &&
        (options->instances || options->flags.num_ps || options->num_inputs))
        return "--instances, --num-ps and --input go with --distribution";
    return distributed ? check_distribution(options) : NULL;
}

static const char *check_compare(const struct options *options) {
    bool command = options->command;
    const char *error = compare_error(options, options->job || command);
    bool predicts = !error && options->predict;
    if (predicts && (options->num_sets || options->deepspeed))
        return "--set and --deepspeed_config change a job; --predict has none";
    if (predicts && options->lane)
        return "--lane goes with runs; --predict makes none";
    if (!error && command && options->deepspeed)
        return "--deepspeed_config does not go with a command";
    return error;
}

enum status options_check(const struct options *options, struct failure *why) {
    const char *cli_command = NULL, *error = NULL;
    if (options->cli_command == CLI_COMMAND_BENCH) {
        cli_command = "bench";
        error = check_bench(options);
    } else if (options->cli_command == CLI_COMMAND_LOCAL) {
        cli_command = "local";
        error = check_local(options);
    } else if (options->cli_command == CLI_COMMAND_COMPARE) {
        cli_command = "compare";
        error = check_compare(options);
    }
    if (!error)
        return STATUS_OK;
    return status_fail(why, FAILURE_FLAG_CONFLICT,
                       "%s; `capstan %s --help` lists its flags", error,
                       cli_command);
}

static enum status parse_command(struct options *options,
                                 const struct cli_command *command, int argc,
                                 char **argv, struct failure *why) {
    const struct cli_command *subcommand =
        argc > 1 ? cli_command_subcommand(command, argv[1]) : NULL;
    if (subcommand)
        command = subcommand;
    argc = cut_command(options, argc, argv);
    struct parser parser = {
        .options = options, .cli_command = command, .why = why};
    char name[64];
    struct argp_option flags_of_verb[CLI_FLAG_MAX];
    cli_flag_options(command->number, flags_of_verb);
    struct argp argp = {.options = flags_of_verb,
                        .parser = options_parse,
                        .args_doc = command->arguments};
    snprintf(name, sizeof name, "capstan %s", command->name);
    argv[0] = name; /* argp prints it in the usage */
    /* One dash before a name does as well, as with TensorFlow's scripts. */
    unsigned flags =
        ARGP_NO_EXIT | ARGP_NO_HELP | ARGP_NO_ERRS | ARGP_LONG_ONLY;
    /* argp would move the flags of launch's COMMAND before it and read them. */
    if (options->cli_command == CLI_COMMAND_LAUNCH)
        flags |= ARGP_IN_ORDER;
    error_t error = argp_parse(&argp, argc, argv, flags, NULL, &parser);
    argv[0] = NULL;
    if (parser.status || options->printed_help)
        return parser.status;
    if (error)
        return status_fail(why, FAILURE_USAGE,
                           "`capstan %s --help` lists its flags",
                           command->name);
    enum status status = options_check(options, why);
    if (status)
        return status;
    if (parser.num_arguments < command->min_arguments && !options->command &&
        !options->azureml_distribution)
        return status_fail(why, FAILURE_USAGE,
                           "capstan %s takes %s; `capstan %s --help` shows "
                           "examples",
                           command->name, command->arguments, command->name);
    return STATUS_OK;
}

/* Takes the log's format from WORD, which NEXT follows (NULL: none). */
static void scan_log_format(struct options *options, const char *word,
                            const char *next) {
    static const char flag[] = "-log-format";
    const char *value = NULL;
    word += word[0] == '-' && word[1] == '-';
    if (!strcmp(word, "-json-log"))
        value = "json";
    else if (!strncmp(word, flag, sizeof flag - 1))
        value = word[sizeof flag - 1] == '=' ? word + sizeof flag
                : word[sizeof flag - 1]      ? NULL
                                             : next;
    if (value && !strcmp(value, "json"))
        options->log_format = LOG_FORMAT_JSON;
    else if (value && !strcmp(value, "text"))
        options->log_format = LOG_FORMAT_TEXT;
}

void options_open(struct options *options, enum cli_command_id verb) {
    *options = (struct options){.cli_command = verb};
    cli_flag_set_defaults(options, verb);
}

enum status options_read(struct options *options, int argc, char **argv,
                         struct failure *why) {
    *options = (struct options){0};
    /* As with git and kubectl nothing is run without a verb. The usage goes to
     * standard error, so that a script does not take it for output. */
    if (argc < 2) {
        if (!log_is_json())
            cli_command_show_all(stderr);
        return status_fail(why, FAILURE_USAGE, "no verb given");
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") ||
        !strcmp(argv[1], "help")) {
        options->printed_help = true;
        cli_command_show_all(stdout);
        return STATUS_OK;
    }
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
        options->printed_help = true;
        show_version();
        return STATUS_OK;
    }
    const struct cli_command *command =
        cli_command_find(argv[1], &options->cli_command);
    if (!command)
        return status_fail(why, FAILURE_USAGE,
                           "no verb '%s'; `capstan --help` lists them",
                           argv[1]);
    options_open(options, options->cli_command);
    options->words = argv + 2;
    enum status status =
        parse_command(options, command, argc - 1, argv + 1, why);
    /* A wrong word that stands before the flag is reported as the flag says. */
    bool launches = options->cli_command == CLI_COMMAND_LAUNCH;
    for (int i = 2; status && i < argc && strcmp(argv[i], "--") != 0 &&
                    (!launches || argv[i][0] == '-');
         i++)
        scan_log_format(options, argv[i], argv[i + 1]);
    return status;
}
