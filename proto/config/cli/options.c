/* SPDX-License-Identifier: Apache-2.0 */
/* One parser for all verbs. Each verb's table (cli_command.c) lists its flags,
 * so a flag of another verb is unknown. ARGP_NO_ERRS and ARGP_NO_EXIT keep argp
 * from printing and exiting; the first problem becomes the status. A flag's
 * value is checked when the flag is read, combinations of flags at the end
 * (options_check.c). */
#include "proto/config/cli/options.h"

#include "proto/base/version.h"
#include "proto/config/cli/cli_command.h"
#include "proto/config/cli/cli_flag.h"
#include "proto/config/cli/cli_help.h"
#include "proto/config/cli/options_check.h"
#include "proto/config/cluster/address.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

static error_t options_set_count(struct parser *parser, const char *text,
                                 unsigned *number) {
    char *end;
    bool ps = number == &parser->options->num_ps;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (errno || *end || end == text || text[0] == '-' || value > 1024)
        return fail_usage(
            parser, FAILURE_BAD_FLAG_VALUE,
            ps ? "--ps takes a count from 0 to 1024, not '%s'"
               : "--workers takes a count from 0 to 1024, not '%s'",
            text);
    *number = (unsigned)value;
    return 0;
}

static error_t step(struct parser *parser, const char *text) {
    char *end;
    errno = 0;
    parser->options->step = strtoull(text, &end, 10);
    parser->options->has_step = true;
    if (errno || *end || end == text || text[0] == '-')
        return fail_usage(parser, FAILURE_BAD_FLAG_VALUE,
                          "--step takes a number, not '%s'", text);
    return 0;
}

static error_t set_join_timeout(struct parser *parser, const char *text) {
    char *end;
    parser->options->join_timeout = strtod(text, &end);
    if (*end || end == text || !(parser->options->join_timeout > 0))
        return fail_usage(parser, FAILURE_BAD_FLAG_VALUE,
                          "--join-timeout takes seconds above 0, not '%s'",
                          text);
    return 0;
}

static error_t bench_flag(struct parser *parser, int key, const char *text) {
    char problem[256];
    if (key < CLI_COMMAND_KEY_SIZES || key > CLI_COMMAND_KEY_VERBOSE)
        return ARGP_ERR_UNKNOWN;
    if (bench_options_set(&parser->options->bench,
                          (enum bench_options_key)(key - CLI_COMMAND_KEY_SIZES),
                          text, problem, sizeof problem))
        return 0;
    return fail_usage(parser, FAILURE_BAD_FLAG_VALUE, "%s", problem);
}

static error_t simulate_flag(struct parser *parser, int key, const char *text) {
    char problem[256];
    if (key < CLI_COMMAND_KEY_SIMULATE || key > CLI_COMMAND_KEY_PLACE)
        return ARGP_ERR_UNKNOWN;
    if (simulate_options_set(
            &parser->options->simulate,
            (enum simulate_options_key)(key - CLI_COMMAND_KEY_SIMULATE), text,
            problem, sizeof problem))
        return 0;
    return fail_usage(parser, FAILURE_BAD_FLAG_VALUE, "%s", problem);
}

static error_t add_set(struct parser *parser, const char *text) {
    struct options *options = parser->options;
    if (options->num_sets == OPTIONS_MAX_SETS || !strchr(text, '='))
        return fail_usage(parser, FAILURE_BAD_FLAG_VALUE,
                          "--set takes KEY.PATH=VALUE, not '%s'", text);
    options->sets[options->num_sets++] = text;
    return 0;
}

static error_t add_input(struct parser *parser, const char *text) {
    struct options *options = parser->options;
    if (options->num_inputs == OPTIONS_MAX_INPUTS || !strchr(text, '='))
        return fail_usage(parser, FAILURE_BAD_FLAG_VALUE,
                          "--input takes NAME=VALUE, not '%s'", text);
    options->inputs[options->num_inputs++] = text;
    return 0;
}

/* Takes SET out of the settings, if it is there: the last one counts. */
static void drop_set(struct options *options, const char *set) {
    unsigned kept = 0;
    for (unsigned i = 0; i < options->num_sets; i++)
        if (options->sets[i] != set)
            options->sets[kept++] = options->sets[i];
    options->num_sets = kept;
}

/* A flag that is given again replaces what it has set. The batch of one worker
 * would otherwise be accumulated up to that of all. */
static error_t legacy_flag(struct parser *parser, int key, const char *text) {
    static const char no_common_batch[] = "train_batch_size=null";
    struct options *options = parser->options;
    char problem[256];
    if (key < CLI_COMMAND_KEY_TRAIN_STEPS ||
        key > CLI_COMMAND_KEY_REPLICAS_TO_AGGREGATE)
        return ARGP_ERR_UNKNOWN;
    enum legacy_options_key flag =
        (enum legacy_options_key)(key - CLI_COMMAND_KEY_TRAIN_STEPS);
    char *set = options->of_flags[flag];
    if (!legacy_options_set(flag, text, set, problem, sizeof problem))
        return fail_usage(parser, FAILURE_BAD_FLAG_VALUE, "%s", problem);
    drop_set(options, set);
    if (flag == LEGACY_OPTIONS_BATCH_SIZE) {
        drop_set(options, no_common_batch);
        error_t error = add_set(parser, no_common_batch);
        if (error)
            return error;
    }
    return add_set(parser, set);
}

static error_t launch_flag(struct parser *parser, int key, const char *text) {
    if (key == 'm')
        key = CLI_COMMAND_KEY_MODULE;
    if (key < CLI_COMMAND_KEY_NPROC || key > CLI_COMMAND_KEY_GRACE)
        return ARGP_ERR_UNKNOWN;
    launch_options_set(&parser->options->launch,
                       (enum launch_options_key)(key - CLI_COMMAND_KEY_NPROC),
                       text);
    return 0;
}

static error_t compare_flag(struct parser *parser, int key, const char *text) {
    char problem[256];
    if (key < CLI_COMMAND_KEY_COMPARED_PS || key > CLI_COMMAND_KEY_VM)
        return ARGP_ERR_UNKNOWN;
    if (compare_options_set(
            &parser->options->compare,
            (enum compare_options_key)(key - CLI_COMMAND_KEY_COMPARED_PS), text,
            problem, sizeof problem))
        return 0;
    return fail_usage(parser, FAILURE_BAD_FLAG_VALUE, "%s", problem);
}

static error_t set_log_format(struct parser *parser, const char *text) {
    bool json = !strcmp(text, "json");
    if (!json && strcmp(text, "text"))
        return fail_usage(parser, FAILURE_BAD_FLAG_VALUE,
                          "--log-format takes text or json, not '%s'", text);
    parser->options->log_format = json ? LOG_FORMAT_JSON : LOG_FORMAT_TEXT;
    return 0;
}

static error_t lane(struct parser *parser, const char *text) {
    parser->options->lane = text;
    if (strcmp(text, "auto") && strcmp(text, "tcp"))
        return fail_usage(parser, FAILURE_BAD_FLAG_VALUE,
                          "--lane takes auto or tcp, not '%s'", text);
    return 0;
}

static error_t set_metrics_port(struct parser *parser, const char *text) {
    struct cluster_task ignored;
    parser->options->metrics_port = text;
    if (!address_parse_listener(&ignored, text))
        return fail_usage(parser, FAILURE_BAD_FLAG_VALUE,
                          "--metrics-port takes PORT or ADDRESS:PORT, not '%s'",
                          text);
    return 0;
}

static error_t options_set_rows(struct parser *parser, const char *text) {
    char *end;
    unsigned long rows = strtoul(text, &end, 10);
    parser->options->rows = (unsigned)rows;
    if (*end || end == text || rows < 1 || rows > 1000000)
        return fail_usage(parser, FAILURE_BAD_FLAG_VALUE,
                          "--rows takes a count from 1 to 1000000, not '%s'",
                          text);
    return 0;
}

static error_t set_link_gbits(struct parser *parser, const char *text) {
    char *end;
    double value = parser->options->link_gbits = strtod(text, &end);
    if (*end || end == text || !(value > 0 && value <= 1e5))
        return fail_usage(
            parser, FAILURE_BAD_FLAG_VALUE,
            "--link-gbits takes 10^9 bits/s above 0 and up to 100000, "
            "not '%s'",
            text);
    return 0;
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

/* A launcher may append --local_rank to a command that already has it. */
static error_t set_local_rank(struct parser *parser, const char *text) {
    const char *before = parser->options->flags.local_rank;
    if (before && strcmp(before, text))
        return fail_usage(
            parser, FAILURE_BAD_FLAG_VALUE,
            "--local_rank is given twice, with different values; the second "
            "is '%s'",
            text);
    parser->options->flags.local_rank = text;
    return 0;
}

static error_t set_flag(struct options *options, int key, const char *text) {
    switch (key) {
    case CLI_COMMAND_KEY_JOB_NAME:
        options->flags.job_name = text;
        return 0;
    case CLI_COMMAND_KEY_TASK_INDEX:
        options->flags.task_index = text;
        return 0;
    case CLI_COMMAND_KEY_PS_HOSTS:
        options->flags.ps_hosts = text;
        return 0;
    case CLI_COMMAND_KEY_WORKER_HOSTS:
        options->flags.worker_hosts = text;
        return 0;
    case CLI_COMMAND_KEY_CHIEF_HOSTS:
        options->flags.chief_hosts = text;
        return 0;
    case CLI_COMMAND_KEY_NUM_PS:
        options->flags.num_ps = text;
        return 0;
    case CLI_COMMAND_KEY_ALONE:
        options->flags.alone = true;
        return 0;
    case CLI_COMMAND_KEY_DISTRIBUTION:
        options->azureml_distribution = text;
        return 0;
    case CLI_COMMAND_KEY_INSTANCES:
        options->instances = text;
        return 0;
    case CLI_COMMAND_KEY_DEEPSPEED:
        options->deepspeed = text;
        return 0;
    case CLI_COMMAND_KEY_CHECKPOINT_DIR:
        options->checkpoint_dir = text;
        return 0;
    case CLI_COMMAND_KEY_INTERFACE:
        options->interface = text;
        return 0;
    case CLI_COMMAND_KEY_FORMAT:
        options->format = text;
        return 0;
    case CLI_COMMAND_KEY_COORDINATE:
        options->coordinate = true;
        return 0;
    case CLI_COMMAND_KEY_TABLE:
        options->table = text;
        return 0;
    case CLI_COMMAND_KEY_STATE:
        options->with_state = true;
        return 0;
    case CLI_COMMAND_KEY_EXPLAIN:
        options->explain = true;
        return 0;
    case CLI_COMMAND_KEY_CHECK:
        options->check = true;
        return 0;
    case CLI_COMMAND_KEY_JSON:
        options->json = true;
        return 0;
    case CLI_COMMAND_KEY_JSON_LOG:
        options->log_format = LOG_FORMAT_JSON;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void show_version(struct options *options) {
    options->printed_help = true;
    printf("capstan %s (commit %s)\n", VERSION_TEXT, version_commit);
}

/* All following words belong to the command. */
static error_t command(struct parser *parser, struct argp_state *state) {
    parser->num_arguments = 1;
    parser->options->launch.command = state->argv + state->next - 1;
    state->next = state->argc;
    return 0;
}

/* argp refused the word before the next one, or a letter of the next one. */
static error_t report_unknown_flag(struct parser *parser,
                                   const struct argp_state *state) {
    const struct argp_option *options = parser->cli_command->options;
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
    const struct argp_option *options = parser->cli_command->options;
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
    case CLI_COMMAND_KEY_HELP:
        options->printed_help = true;
        cli_help_show(stdout, parser->cli_command, state->root_argp);
        return 0;
    case CLI_COMMAND_KEY_VERSION:
        show_version(options);
        return 0;
    case CLI_COMMAND_KEY_SET:
        return add_set(parser, text);
    case CLI_COMMAND_KEY_LOCAL_RANK:
        return set_local_rank(parser, text);
    case CLI_COMMAND_KEY_JOIN_TIMEOUT:
        return set_join_timeout(parser, text);
    case CLI_COMMAND_KEY_LOG_FORMAT:
        return set_log_format(parser, text);
    case CLI_COMMAND_KEY_TRANSPORT:
        return lane(parser, text);
    case CLI_COMMAND_KEY_METRICS_PORT:
        return set_metrics_port(parser, text);
    case CLI_COMMAND_KEY_LINK:
        return set_link_gbits(parser, text);
    case CLI_COMMAND_KEY_PS:
        options->ps_given = true;
        return options_set_count(parser, text, &options->num_ps);
    case CLI_COMMAND_KEY_WORKERS:
        options->workers_given = true;
        return options_set_count(parser, text, &options->num_workers);
    case CLI_COMMAND_KEY_ROWS:
        return options_set_rows(parser, text);
    case CLI_COMMAND_KEY_INPUT:
        return add_input(parser, text);
    case CLI_COMMAND_KEY_STEP:
        return step(parser, text);
    case ARGP_KEY_ARG:
        if (options->cli_command == CLI_COMMAND_LAUNCH)
            return command(parser, state);
        return add_argument(parser, text);
    case ARGP_KEY_ERROR:
        return parser->status ? 0 : report_unknown_flag(parser, state);
    default:
        break;
    }
    error_t known = bench_flag(parser, key, text);
    if (known == ARGP_ERR_UNKNOWN)
        known = simulate_flag(parser, key, text);
    if (known == ARGP_ERR_UNKNOWN)
        known = launch_flag(parser, key, text);
    if (known == ARGP_ERR_UNKNOWN)
        known = compare_flag(parser, key, text);
    if (known == ARGP_ERR_UNKNOWN)
        known = legacy_flag(parser, key, text);
    return known == ARGP_ERR_UNKNOWN ? set_flag(options, key, text) : known;
}

/* The words after "--" are a command, whose flags are its own. Returns the
 * number of words before. */
static int cut_command(struct options *options, int argc, char **argv) {
    bool takes = options->cli_command == CLI_COMMAND_LOCAL ||
                 options->cli_command == CLI_COMMAND_COMPARE;
    for (int i = 1; takes && i < argc; i++)
        if (!strcmp(argv[i], "--") && argv[i + 1]) {
            options->launch.command = argv + i + 1;
            return i;
        }
    return argc;
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
    struct argp argp = {.options = command->options,
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
    if (parser.num_arguments < command->min_arguments &&
        !options->launch.command && !options->azureml_distribution)
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

enum status options_read(struct options *options, int argc, char **argv,
                         struct failure *why) {
    *options = (struct options){.num_ps = 1, .num_workers = 1};
    bench_options_open(&options->bench);
    simulate_options_open(&options->simulate);
    compare_options_open(&options->compare);
    /* As with git and kubectl nothing is run without a verb. The usage goes to
     * standard error, so that a script does not take it for output. */
    if (argc < 2) {
        if (!log_is_json())
            cli_help_show_all(stderr);
        return status_fail(why, FAILURE_USAGE, "no verb given");
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") ||
        !strcmp(argv[1], "help")) {
        options->printed_help = true;
        cli_help_show_all(stdout);
        return STATUS_OK;
    }
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
        show_version(options);
        return STATUS_OK;
    }
    const struct cli_command *command =
        cli_command_find(argv[1], &options->cli_command);
    if (!command)
        return status_fail(why, FAILURE_USAGE,
                           "no verb '%s'; `capstan --help` lists them",
                           argv[1]);
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
