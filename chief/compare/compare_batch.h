/* SPDX-License-Identifier: Apache-2.0 */
/* What each replica of a comparison's runs computes on in a step: the same in
 * every case. */
#ifndef CAPSTAN_COMPARE_BATCH_H
#define CAPSTAN_COMPARE_BATCH_H

#include "proto/base/status.h"
#include "proto/config/job/job.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* All 0: as a run solves the job's. */
struct compare_batch {
    uint32_t micro, accumulation;
};

/* As JOB has it for the most TRAINERS that are compared, all on one machine
 * where HERE; *OUT is 0 where that depends on how many devices they have: the
 * first run that ends tells. STATUS_CONFIG: no number of devices would do. */
enum status compare_batch_find(struct compare_batch *out, const struct job *job,
                               uint32_t trainers, bool local,
                               struct failure *why) MUST_CHECK;

/* RUN is the object of a run: as it has solved the batch, unless that is known.
 */
void compare_batch_update(struct compare_batch *batch, const json_t *run);

/* Makes a replica's step one of SAMPLES at least, by accumulation, if it is
 * known. */
void compare_batch_grow(struct compare_batch *batch, uint32_t samples);

/* Samples of a replica's step. */
double compare_batch_samples(const struct compare_batch *batch);

#endif
