/* SPDX-License-Identifier: Apache-2.0 */
/* What each replica of a comparison's runs computes on in a step: the same in
 * every case. */
#ifndef CAPSTAN_COMPARISON_BATCH_H
#define CAPSTAN_COMPARISON_BATCH_H

#include "proto/base/status.h"
#include "proto/config/job/job.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* All 0: as a run solves the job's. */
struct comparison_batch {
    uint32_t micro, accumulation;
};

/* As JOB has it for the most TRAINERS that are compared, all on one machine
 * where HERE; *OUT is 0 where that depends on how many devices they have: the
 * first run that ends tells. STATUS_CONFIG: no number of devices would do. */
enum status comparison_batch_find(struct comparison_batch *out,
                                  const struct job *job, uint32_t trainers,
                                  bool here, struct failure *why) MUST_CHECK;

/* RUN is the object of a run: as it has solved the batch, unless that is known.
 */
void comparison_batch_learn(struct comparison_batch *batch, const json_t *run);

/* Makes a replica's step one of SAMPLES at least, by accumulation, if it is
 * known. */
void comparison_batch_widen(struct comparison_batch *batch, uint32_t samples);

/* Samples of a replica's step. */
double comparison_batch_samples(const struct comparison_batch *batch);

#endif
