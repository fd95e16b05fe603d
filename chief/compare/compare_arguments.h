/* SPDX-License-Identifier: Apache-2.0 */
/* What one run of a comparison is asked for: the job with what makes the case,
 * and without what a run leaves behind; alone, or as a command line of `capstan
 * local`. */
#ifndef CAPSTAN_COMPARE_ARGUMENTS_H
#define CAPSTAN_COMPARE_ARGUMENTS_H

#include "chief/compare/aggregate_runs.h"
#include "chief/compare/compare_batch.h"
#include "proto/config/cli/options.h"
#include "proto/config/job/job.h"

#include <stdbool.h>
#include <stdint.h>

enum { COMPARE_ARGUMENTS_MAX = 2 * OPTIONS_MAX_SETS + 64 };

struct compare_arguments_request {
    struct aggregate_runs_case spec;
    struct compare_batch batch;
    uint64_t steps;    /* as the run counts them; 0: the job's epochs */
    bool tests;        /* with the test set */
    bool continues[2]; /* others follow if this one fails, and if it does not */
};

struct compare_arguments {
    bool overrides_only;                   /* of settings alone */
    char *argv[COMPARE_ARGUMENTS_MAX + 1]; /* NULL-terminated */
    unsigned count;
};

/* Fills COMMAND for what is ASKED. */
void compare_arguments_build(struct compare_arguments *command,
                             const struct options *flags,
                             const struct compare_arguments_request *request);

/* The same, but the overrides of the job alone, "key.path=value" each. */
void compare_arguments_overrides(
    struct compare_arguments *command, const struct options *flags,
    const struct compare_arguments_request *request);
void compare_arguments_free(struct compare_arguments *command);

#endif
