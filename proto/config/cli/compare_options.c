/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cli/compare_options.h"

#include "proto/config/cli/cli_number.h"
#include "proto/config/decimal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_LIST_LENGTH = 256, MAX_PROCESSES = 1024 };

void compare_options_open(struct compare_options *compare) {
    *compare = (struct compare_options){.ps = {{1}, 1},
                                        .workers = {{2}, 1},
                                        .repeats = 3,
                                        .limit = 600,
                                        .latency_us = 50,
                                        .overlap = 2.0 / 3,
                                        .target = 0.875};
}

#define FLAG(name, member, min, max)                                           \
    CLI_NUMBER(struct compare_options, name, member, min, max)

/* Flags with a number. */
static const struct cli_number reals[COMPARE_OPTIONS_KEYS] = {
    [COMPARE_OPTIONS_LIMIT] = FLAG("limit", limit, 1, 1e6),
    [COMPARE_OPTIONS_LINK] = FLAG("link-gbits", link_gbits, 1e-3, 1e5),
    [COMPARE_OPTIONS_LATENCY] = FLAG("latency-us", latency_us, 0, 1e6),
    [COMPARE_OPTIONS_COMPUTE] = FLAG("compute-ms", compute_ms, 0, 1e7),
    [COMPARE_OPTIONS_INPUT] = FLAG("input-ms", input_ms, 0, 1e7),
    [COMPARE_OPTIONS_UPDATE] = FLAG("update-gbytes", update_gbytes, 1e-3, 1e5),
    [COMPARE_OPTIONS_OVERLAP] = FLAG("overlap", overlap, 0, 1),
    [COMPARE_OPTIONS_TARGET] = FLAG("target", target, 0.01, 0.999),
    [COMPARE_OPTIONS_INNER] = FLAG("inner-gbits", inner_gbits, 1e-3, 1e6),
};

static const struct cli_number counts[COMPARE_OPTIONS_KEYS] = {
    [COMPARE_OPTIONS_STEPS] = FLAG("steps", steps, 1, 1e12),
    [COMPARE_OPTIONS_REPEATS] = FLAG("repeats", repeats, 1, JOB_MAX_REPEATS),
    [COMPARE_OPTIONS_PER_HOST] = FLAG("gpus-per-host", per_host, 1, 64),
};

static const struct cli_amount parameters = {
    "params",
    offsetof(struct compare_options, parameters),
    {AMOUNT_PARAMETERS, 1, UINT64_C(10000000000000), 1}};

/* Adds one number to LIST. Returns NULL, or the problem. */
static const char *add_number(struct job_counts *list, const char *text) {
    uint64_t value;
    if (!decimal_parse(text, &value) || value < 1 || value > MAX_PROCESSES)
        return "numbers from 1 to 1024, such as 1,2,4, not '%s'";
    if (list->count && list->values[list->count - 1] >= value)
        return "ascending numbers, such as 1,2,4; '%s' is not above the one "
               "before it";
    if (list->count == JOB_MAX_COUNTS)
        return "at most 16 numbers; '%s' is one too many";
    list->values[list->count++] = (unsigned)value;
    return NULL;
}

static bool set_list(struct job_counts *list, const char *flag,
                     const char *text, char *problem, size_t size) {
    char words[MAX_LIST_LENGTH], error_text[128], *rest = NULL;
    list->count = 0;
    snprintf(words, sizeof words, "%s", text);
    char *word = strtok_r(words, ",", &rest);
    const char *error = word ? NULL : "numbers such as 1,2,4, not '%s'";
    for (; word && !error; word = strtok_r(NULL, ",", &rest)) {
        error = add_number(list, word);
        text = word;
    }
    if (!error)
        return true;
    snprintf(error_text, sizeof error_text, error, text);
    snprintf(problem, size, "--%s takes %s", flag, error_text);
    return false;
}

static bool set_wire(struct compare_options *compare, const char *text,
                     char *problem, size_t size) {
    compare->bf16 = !strcasecmp(text, "bf16");
    if (compare->bf16 || !strcasecmp(text, "float32"))
        return true;
    snprintf(problem, size, "--wire takes float32 or bf16, not '%s'", text);
    return false;
}

/* gnuplot chooses its format by the file's ending. */
static bool set_plot(struct compare_options *compare, const char *text,
                     char *problem, size_t size) {
    const char *ending = strrchr(text, '.');
    compare->plot = text;
    if (ending && (!strcasecmp(ending, ".svg") || !strcasecmp(ending, ".png")))
        return true;
    snprintf(problem, size,
             "--plot takes a file that ends in .svg or .png, not '%s'", text);
    return false;
}

static bool set_text(struct compare_options *compare,
                     enum compare_options_key key, const char *text,
                     char *problem, size_t size) {
    switch (key) {
    case COMPARE_OPTIONS_PS:
        return set_list(&compare->ps, "ps", text, problem, size);
    case COMPARE_OPTIONS_WORKERS:
        return set_list(&compare->workers, "workers", text, problem, size);
    case COMPARE_OPTIONS_PARAMS:
        return cli_number_set_amount(&parameters, compare, text, problem, size);
    case COMPARE_OPTIONS_WIRE:
        return set_wire(compare, text, problem, size);
    case COMPARE_OPTIONS_PLOT:
        return set_plot(compare, text, problem, size);
    case COMPARE_OPTIONS_CSV:
        compare->csv = text;
        return true;
    case COMPARE_OPTIONS_VM:
        compare->vm = text;
        return true;
    case COMPARE_OPTIONS_CLIP:
        compare->clip = true;
        return true;
    default:
        compare->predict = true;
        return true;
    }
}

bool compare_options_set(struct compare_options *compare,
                         enum compare_options_key key, const char *text,
                         char *problem, size_t size) {
    compare->given |= 1u << key;
    compare->has_run_flags |=
        key >= COMPARE_OPTIONS_STEPS && key <= COMPARE_OPTIONS_PLOT;
    compare->has_predict_flags |= key >= COMPARE_OPTIONS_PARAMS &&
                                  key != COMPARE_OPTIONS_LINK &&
                                  key != COMPARE_OPTIONS_LATENCY;
    if (reals[key].flag)
        return cli_number_set_real(&reals[key], compare, text, problem, size);
    if (counts[key].flag)
        return cli_number_set_count(&counts[key], compare, text, problem, size);
    return set_text(compare, key, text, problem, size);
}

static const char *check_prediction(const struct compare_options *compare,
                                    bool has_model) {
    if (has_model)
        return "--predict runs nothing: it takes no job and no command";
    if (compare->has_run_flags)
        return "--steps, --repeats, --limit, --csv and --plot need runs; "
               "--predict makes none";
    if (compare->parameters == 0)
        return "--predict needs --params, such as 25.6M";
    if (compare->link_gbits == 0 && !compare->vm)
        return "--predict needs --link-gbits, or a --vm whose link is known";
    if (compare->ps.count > 1 || compare->workers.count > 1)
        return "--predict takes one number of --ps and one of --workers";
    return NULL;
}

bool compare_options_lists_vms(const struct compare_options *compare) {
    return compare->vm && !strcasecmp(compare->vm, "list");
}

const char *compare_options_error(const struct compare_options *compare,
                                  bool has_model) {
    if (compare_options_lists_vms(compare))
        return has_model
                   ? "--vm list runs nothing: it takes no job and no command"
                   : NULL;
    if (compare->predict)
        return check_prediction(compare, has_model);
    if (!has_model)
        return "capstan compare takes JOB.json, -- COMMAND, or --predict";
    if (compare->has_predict_flags)
        return "--params, --compute-ms and the other flags of a prediction go "
               "with --predict";
    return NULL;
}
