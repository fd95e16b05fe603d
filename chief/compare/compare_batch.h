/* SPDX-License-Identifier: Apache-2.0 */
/* The batch that each replica computes in a step; it is the same in all cases
 * of a comparison. */
#ifndef CAPSTAN_COMPARE_BATCH_H
#define CAPSTAN_COMPARE_BATCH_H

#include "proto/base/status.h"
#include "proto/config/job/job.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* All 0: the run solves it from the job. */
struct compare_batch {
    uint32_t micro, accumulation;
};

/* Solves the batch of JOB for the largest number of TRAINERS in the comparison,
 * all on one machine if LOCAL. *OUT is 0 if it depends on their number of
 * devices; the first finished run gives it then. STATUS_CONFIG: it is
 * impossible with any number of devices. */
enum status compare_batch_find(struct compare_batch *out, const struct job *job,
                               uint32_t trainers, bool local,
                               struct failure *why) MUST_CHECK;

/* Takes the batch from RUN, the object of a finished run, unless it is known.
 */
void compare_batch_update(struct compare_batch *batch, const json_t *run);

/* Increases the accumulation until a replica's step has at least SAMPLES, if
 * the batch is known. */
void compare_batch_grow(struct compare_batch *batch, uint32_t samples);

/* Samples of a replica's step. */
double compare_batch_samples(const struct compare_batch *batch);

#endif
