/* SPDX-License-Identifier: Apache-2.0 */
/* Where the time of each step went, for the JSON summary; `capstan compare`
 * compares it with the cost model. */
#ifndef CAPSTAN_TIME_BREAKDOWN_H
#define CAPSTAN_TIME_BREAKDOWN_H

#include "chief/run.h"

#include <jansson.h>

/* Adds to OBJECT `parameters`, `replicas`, `micro_batch`, `accumulation`,
 * `wire_bytes`, `bytes_per_step` and `seconds_per_step` as described in
 * docs/compare.md; null if there is no plan or no step yet. */
void time_breakdown_add(json_t *object, const struct run *run);

#endif
