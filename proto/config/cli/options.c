/* SPDX-License-Identifier: Apache-2.0 */
/* One parser for all verbs: which flags there are is said by the verb's own
 * table (verb.c), so one that another verb has is unknown here. argp is kept
 * from printing and from exiting (ARGP_NO_ERRS, ARGP_NO_EXIT): the first
 * problem is kept as the status, with the word that it was found in. What a
 * flag's text may be is checked where the flag is taken; which flags go
 * together, at the end (options_check.c). */
#include "proto/config/cli/options.h"

#include "proto/base/version.h"
#include "proto/config/cli/options_check.h"
#include "proto/config/cli/verb.h"
#include "proto/config/cli/wrong_flag.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct reading {
    struct options *options;
    const struct verb *verb;
    struct failure *why;
    enum status status;
    int num_arguments;
};

static error_t wrong(struct reading *reading, const char *format,
                     const char *found) {
    if (!reading->status) {
        char text[512];
        snprintf(text, sizeof text, format, found);
        reading->status =
            status_fail(reading->why, STATUS_CONFIG,
                        "%s; `capstan %s --help` shows what there is", text,
                        reading->verb->name);
    }
    return EINVAL;
}

static error_t count(struct reading *reading, const char *text,
                     unsigned *number) {
    char *end;
    bool ps = number == &reading->options->num_ps;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (errno || *end || end == text || text[0] == '-' || value > 1024)
        return wrong(reading,
                     ps ? "--ps takes a count from 0 to 1024, not '%s'"
                        : "--workers takes a count from 0 to 1024, not '%s'",
                     text);
    *number = (unsigned)value;
    return 0;
}

static error_t step(struct reading *reading, const char *text) {
    char *end;
    errno = 0;
    reading->options->step = strtoull(text, &end, 10);
    reading->options->has_step = true;
    if (errno || *end || end == text || text[0] == '-')
        return wrong(reading, "--step takes a number, not '%s'", text);
    return 0;
}

static error_t seconds(struct reading *reading, const char *text) {
    char *end;
    reading->options->join_timeout = strtod(text, &end);
    if (*end || end == text || !(reading->options->join_timeout > 0))
        return wrong(reading, "--join-timeout takes seconds above 0, not '%s'",
                     text);
    return 0;
}

static error_t bench_flag(struct reading *reading, int key, const char *text) {
    char problem[256];
    if (key < VERB_KEY_SIZES || key > VERB_KEY_VERBOSE)
        return ARGP_ERR_UNKNOWN;
    if (bench_options_set(&reading->options->bench,
                          (enum bench_options_key)(key - VERB_KEY_SIZES), text,
                          problem, sizeof problem))
        return 0;
    return wrong(reading, "%s", problem);
}

static error_t simulate_flag(struct reading *reading, int key,
                             const char *text) {
    char problem[256];
    if (key < VERB_KEY_SIMULATE || key > VERB_KEY_PLACE)
        return ARGP_ERR_UNKNOWN;
    if (simulate_options_set(
            &reading->options->simulate,
            (enum simulate_options_key)(key - VERB_KEY_SIMULATE), text, problem,
            sizeof problem))
        return 0;
    return wrong(reading, "%s", problem);
}

static error_t launch_flag(struct reading *reading, int key, const char *text) {
    if (key == 'm')
        key = VERB_KEY_MODULE;
    if (key < VERB_KEY_NPROC || key > VERB_KEY_GRACE)
        return ARGP_ERR_UNKNOWN;
    launch_options_set(&reading->options->launch,
                       (enum launch_options_key)(key - VERB_KEY_NPROC), text);
    return 0;
}

static error_t compare_flag(struct reading *reading, int key,
                            const char *text) {
    char problem[256];
    if (key < VERB_KEY_COMPARED_PS || key > VERB_KEY_VM)
        return ARGP_ERR_UNKNOWN;
    if (compare_options_set(
            &reading->options->compare,
            (enum compare_options_key)(key - VERB_KEY_COMPARED_PS), text,
            problem, sizeof problem))
        return 0;
    return wrong(reading, "%s", problem);
}

static error_t lane(struct reading *reading, const char *text) {
    reading->options->lane = text;
    if (strcmp(text, "auto") && strcmp(text, "tcp"))
        return wrong(reading, "--lane takes auto or tcp, not '%s'", text);
    return 0;
}

static error_t gbits(struct reading *reading, const char *text) {
    char *end;
    double value = reading->options->link_gbits = strtod(text, &end);
    if (*end || end == text || !(value > 0 && value <= 1e5))
        return wrong(reading,
                     "--link-gbits takes 10^9 bits/s above 0 and up to 100000, "
                     "not '%s'",
                     text);
    return 0;
}

static error_t argument(struct reading *reading, char *text) {
    struct options *options = reading->options;
    if (reading->num_arguments == reading->verb->max_arguments)
        return wrong(reading, "'%s' is one word too many", text);
    int number = reading->num_arguments++;
    if (options->verb != OPTIONS_CKPT)
        options->job = text;
    else if (number == 0)
        options->action = text;
    else if (number == 1)
        options->dir = text;
    else
        options->out = text;
    return 0;
}

static error_t add_set(struct reading *reading, const char *text) {
    struct options *options = reading->options;
    if (options->num_sets == OPTIONS_MAX_SETS || !strchr(text, '='))
        return wrong(reading, "--set takes KEY.PATH=VALUE, not '%s'", text);
    options->sets[options->num_sets++] = text;
    return 0;
}

/* A launcher may put it behind a command that has it already. */
static error_t set_local_rank(struct reading *reading, const char *text) {
    const char *before = reading->options->flags.local_rank;
    if (before && strcmp(before, text))
        return wrong(reading,
                     "--local_rank is given twice, the second time as '%s' "
                     "instead of as before",
                     text);
    reading->options->flags.local_rank = text;
    return 0;
}

static error_t flag(struct options *options, int key, const char *text) {
    switch (key) {
    case VERB_KEY_JOB_NAME:
        options->flags.job_name = text;
        return 0;
    case VERB_KEY_TASK_INDEX:
        options->flags.task_index = text;
        return 0;
    case VERB_KEY_PS_HOSTS:
        options->flags.ps_hosts = text;
        return 0;
    case VERB_KEY_WORKER_HOSTS:
        options->flags.worker_hosts = text;
        return 0;
    case VERB_KEY_CHIEF_HOSTS:
        options->flags.chief_hosts = text;
        return 0;
    case VERB_KEY_NUM_PS:
        options->flags.num_ps = text;
        return 0;
    case VERB_KEY_ALONE:
        options->flags.alone = true;
        return 0;
    case VERB_KEY_DISTRIBUTION:
        options->distribution = text;
        return 0;
    case VERB_KEY_INSTANCES:
        options->instances = text;
        return 0;
    case VERB_KEY_DEEPSPEED:
        options->deepspeed = text;
        return 0;
    case VERB_KEY_CHECKPOINT_DIR:
        options->checkpoint_dir = text;
        return 0;
    case VERB_KEY_FORMAT:
        options->format = text;
        return 0;
    case VERB_KEY_COORDINATE:
        options->coordinate = true;
        return 0;
    case VERB_KEY_STATE:
        options->with_state = true;
        return 0;
    case VERB_KEY_JSON:
        options->json = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void show_version(struct options *options) {
    options->shown = true;
    printf("capstan %s (commit %s)\n", VERSION_TEXT, version_commit);
}

/* From here on every word is the command's. */
static error_t command(struct reading *reading, struct argp_state *state) {
    reading->num_arguments = 1;
    reading->options->launch.command = state->argv + state->next - 1;
    state->next = state->argc;
    return 0;
}

/* What was refused is the word before the next one, or among the letters of
 * that one. */
static error_t refused(struct reading *reading,
                       const struct argp_state *state) {
    const struct argp_option *options = reading->verb->options;
    char text[256] = "a flag that is not known";
    int next = state->next;
    if (!wrong_flag(options, state->argv[next - 1], text, sizeof text) &&
        next < state->argc)
        wrong_flag(options, state->argv[next], text, sizeof text);
    return wrong(reading, "%s", text);
}

/* argp takes the beginning of a flag's name for the flag, here the one that it
 * has just read with the value VALUE, and its neighbour for that value. */
static bool is_cut(struct reading *reading, const char *value,
                   const struct argp_state *state) {
    const struct argp_option *options = reading->verb->options;
    const char *word = state->argv[state->next - 1];
    char text[256];
    if (value && value == word)
        word = state->argv[state->next - 2];
    if (!wrong_flag_cut(options, word))
        return false;
    wrong_flag(options, word, text, sizeof text);
    wrong(reading, "%s", text);
    return true;
}

static error_t parse(int key, char *text, struct argp_state *state) {
    struct reading *reading = state->input;
    struct options *options = reading->options;
    bool is_flag = key > 0 && key < ARGP_KEY_END;
    if (is_flag && is_cut(reading, text, state))
        return EINVAL;
    switch (key) {
    case VERB_KEY_HELP:
        options->shown = true;
        /* argp_state_help() is silent under ARGP_NO_ERRS. */
        argp_help(state->root_argp, stdout,
                  ARGP_HELP_USAGE | ARGP_HELP_DOC | ARGP_HELP_LONG,
                  state->name);
        return 0;
    case VERB_KEY_VERSION:
        show_version(options);
        return 0;
    case VERB_KEY_SET:
        return add_set(reading, text);
    case VERB_KEY_LOCAL_RANK:
        return set_local_rank(reading, text);
    case VERB_KEY_JOIN_TIMEOUT:
        return seconds(reading, text);
    case VERB_KEY_WAY:
        return lane(reading, text);
    case VERB_KEY_LINK:
        return gbits(reading, text);
    case VERB_KEY_PS:
        options->ps_given = true;
        return count(reading, text, &options->num_ps);
    case VERB_KEY_WORKERS:
        options->workers_given = true;
        return count(reading, text, &options->num_workers);
    case VERB_KEY_STEP:
        return step(reading, text);
    case ARGP_KEY_ARG:
        if (options->verb == OPTIONS_LAUNCH)
            return command(reading, state);
        return argument(reading, text);
    case ARGP_KEY_ERROR:
        return reading->status ? 0 : refused(reading, state);
    default:
        break;
    }
    error_t known = bench_flag(reading, key, text);
    if (known == ARGP_ERR_UNKNOWN)
        known = simulate_flag(reading, key, text);
    if (known == ARGP_ERR_UNKNOWN)
        known = launch_flag(reading, key, text);
    if (known == ARGP_ERR_UNKNOWN)
        known = compare_flag(reading, key, text);
    return known == ARGP_ERR_UNKNOWN ? flag(options, key, text) : known;
}

static enum status read_verb(struct options *options, const struct verb *verb,
                             int argc, char **argv, struct failure *why) {
    const struct verb *part = argc > 1 ? verb_part(verb, argv[1]) : NULL;
    if (part)
        verb = part;
    struct reading reading = {.options = options, .verb = verb, .why = why};
    char name[64], text[1024];
    struct argp argp = {verb->options, parse, verb->arguments, text, NULL,
                        NULL,          NULL};
    snprintf(text, sizeof text, "%s\v%s", verb->text,
             verb->after ? verb->after : "");
    snprintf(name, sizeof name, "capstan %s", verb->name);
    argv[0] = name;
    unsigned flags = ARGP_NO_EXIT | ARGP_NO_HELP | ARGP_NO_ERRS;
    if (options->verb == OPTIONS_LAUNCH)
        flags |= ARGP_IN_ORDER;
    error_t error = argp_parse(&argp, argc, argv, flags, NULL, &reading);
    argv[0] = NULL;
    if (reading.status || options->shown)
        return reading.status;
    if (error)
        return status_fail(why, STATUS_CONFIG,
                           "`capstan %s --help` shows what there is",
                           verb->name);
    enum status status = options_check(options, why);
    if (status)
        return status;
    if (reading.num_arguments < verb->min_arguments)
        return status_fail(why, STATUS_CONFIG,
                           "capstan %s takes %s; `capstan %s --help` tells "
                           "more",
                           verb->name, verb->arguments, verb->name);
    return STATUS_OK;
}

enum status options_read(struct options *options, int argc, char **argv,
                         struct failure *why) {
    *options = (struct options){.num_ps = 1, .num_workers = 1};
    bench_options_open(&options->bench);
    simulate_options_open(&options->simulate);
    compare_options_open(&options->compare);
    if (argc < 2) {
        verb_show_all(stderr);
        return status_fail(why, STATUS_CONFIG, "no verb");
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") ||
        !strcmp(argv[1], "help")) {
        options->shown = true;
        verb_show_all(stdout);
        return STATUS_OK;
    }
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
        show_version(options);
        return STATUS_OK;
    }
    const struct verb *verb = verb_find(argv[1], &options->verb);
    if (!verb)
        return status_fail(why, STATUS_CONFIG,
                           "no verb '%s'; `capstan --help` lists them",
                           argv[1]);
    options->words = argv + 2;
    return read_verb(options, verb, argc - 1, argv + 1, why);
}
