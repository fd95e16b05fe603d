/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the arguments of one run of a comparison: the job with the settings of
 * the case, without the files that a run writes; either the overrides alone, or
 * a command line of `capstan local`. */
#ifndef CAPSTAN_COMPARE_ARGUMENTS_H
#define CAPSTAN_COMPARE_ARGUMENTS_H

#include "commands/cli/options.h"
#include "commands/measure/aggregate_runs.h"
#include "core/base/status.h"
#include "proto/job/job.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* All 0: the run solves it from the job. */
struct compare_batch {
    uint32_t micro, accumulation;
};

/* Solves the batch of JOB for the largest number of TRAINERS in the comparison,
 * all on one machine if LOCAL. *OUT is 0 if it depends on their number of
 * devices, when the first finished run gives it, or if the model is external.
 * STATUS_CONFIG: it is impossible with any number of devices. */
enum status compare_batch_find(struct compare_batch *out, const struct job *job,
                               uint32_t trainers, bool local,
                               struct failure *why) MUST_CHECK;

/* Takes the batch from RUN, the object of a finished run, unless it is known.
 */
void compare_batch_update(struct compare_batch *batch, const json_t *run);

/* Samples of a replica's step. */
double compare_batch_samples(const struct compare_batch *batch);

struct compare_arguments_request {
    struct aggregate_runs_case spec;
    struct compare_batch batch;
    uint64_t steps;    /* in the run's count; 0: as long as it trains */
    bool tests;        /* evaluates on the test set */
    bool continues[2]; /* whether other runs follow: [0] after a failure, [1]
                          after success */
};

struct compare_arguments {
    bool overrides_only; /* only "key.path=value" overrides */
    char **argv;         /* NULL-terminated */
    unsigned count;
};

/* Fills COMMAND for REQUEST. */
void compare_arguments_build(struct compare_arguments *command,
                             const struct options *flags,
                             const struct compare_arguments_request *request);

/* The same, but only the overrides of the job, "key.path=value" each. */
void compare_arguments_overrides(
    struct compare_arguments *command, const struct options *flags,
    const struct compare_arguments_request *request);
void compare_arguments_free(struct compare_arguments *command);

#endif
