/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cli/legacy_options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum kind { COUNT, REAL, PATH, GPUS, BOOL, NO_BOOL, REFUSED };

static const struct flag {
    const char *name;
    enum kind kind;
    const char *key; /* of the job; REFUSED: why */
} flags[LEGACY_OPTIONS_KEYS] = {
    [LEGACY_OPTIONS_TRAIN_STEPS] = {"train_steps", COUNT, "steps"},
    [LEGACY_OPTIONS_EPOCHS] = {"epochs", COUNT, "epochs"},
    [LEGACY_OPTIONS_BATCH_SIZE] = {"batch_size", COUNT,
                                   "train_micro_batch_size_per_gpu"},
    [LEGACY_OPTIONS_LEARNING_RATE] = {"learning_rate", REAL,
                                      "optimizer.params.lr"},
    [LEGACY_OPTIONS_DATA_DIR] = {"data_dir", PATH, "data.dir"},
    [LEGACY_OPTIONS_MODEL_DIR] = {"model_dir", PATH, "checkpoint.dir"},
    [LEGACY_OPTIONS_NUM_GPUS] = {"num_gpus", GPUS, "devices"},
    [LEGACY_OPTIONS_SYNC_REPLICAS] = {"sync_replicas", BOOL,
                                      "strategy.staleness"},
    [LEGACY_OPTIONS_NOSYNC_REPLICAS] = {"nosync_replicas", NO_BOOL,
                                        "strategy.staleness"},
    [LEGACY_OPTIONS_REPLICAS_TO_AGGREGATE] =
        {"replicas_to_aggregate", REFUSED,
         "a synchronous step takes the gradients of all trainers; leave the "
         "flag out, or train with --sync_replicas=false"},
};

/* Written anew: what strtod takes need not be a number of JSON. */
static bool set_number(const struct flag *flag, const char *text, char *set) {
    char *end;
    errno = 0;
    double number = strtod(text, &end);
    if (errno || *end || end == text || number < 0 || !isfinite(number) ||
        (flag->kind != REAL && (number > 1e15 || floor(number) != number)))
        return false;
    if (flag->kind == GPUS && number == 0)
        snprintf(set, LEGACY_OPTIONS_SET, "device=cpu");
    else
        snprintf(set, LEGACY_OPTIONS_SET, "%s=%.17g", flag->key, number);
    return true;
}

static bool set_path(const struct flag *flag, const char *text, char *set) {
    char folder[LEGACY_OPTIONS_SET] = "";
    bool relative = text[0] != '/';
    if (!*text || (relative && !getcwd(folder, sizeof folder)))
        return false;
    return snprintf(set, LEGACY_OPTIONS_SET, "%s=%s%s%s", flag->key, folder,
                    relative ? "/" : "", text) < LEGACY_OPTIONS_SET;
}

/* absl's words of a boolean flag; alone the flag is true. */
static bool set_bool(const struct flag *flag, const char *text, char *set) {
    static const char *const words[][2] = {
        {"true", "false"}, {"t", "f"}, {"1", "0"}, {"yes", "no"}, {"y", "n"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        for (int no = 0; no < 2; no++)
            if (!strcasecmp(text ? text : "true", words[i][no])) {
                bool asynchronous = no != (flag->kind == NO_BOOL);
                snprintf(set, LEGACY_OPTIONS_SET, "%s=%s", flag->key,
                         asynchronous ? "inf" : "0");
                return true;
            }
    return false;
}

bool legacy_options_set(enum legacy_options_key key, const char *text,
                        char *set, char *problem, size_t size) {
    static const char *const allowed[] = {
        [COUNT] = "a count",        [REAL] = "a number, at least 0",
        [PATH] = "a folder's path", [GPUS] = "a count",
        [BOOL] = "true or false",   [NO_BOOL] = "no value"};
    const struct flag *flag = &flags[key];
    bool done = false;
    if (flag->kind == REFUSED) {
        snprintf(problem, size, "--%s: %s", flag->name, flag->key);
        return false;
    }
    if (flag->kind == BOOL || flag->kind == NO_BOOL)
        done = set_bool(flag, text, set);
    else
        done = flag->kind == PATH ? set_path(flag, text, set)
                                  : set_number(flag, text, set);
    if (!done)
        snprintf(problem, size, "--%s takes %s, not '%s'", flag->name,
                 allowed[flag->kind], text);
    return done;
}
