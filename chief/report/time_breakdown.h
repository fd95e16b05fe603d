/* SPDX-License-Identifier: Apache-2.0 */
/* Where the steps of a run went, for its JSON object: what `capstan compare`
 * lays beside the formulas. */
#ifndef CAPSTAN_TIME_BREAKDOWN_H
#define CAPSTAN_TIME_BREAKDOWN_H

#include "chief/run.h"

#include <jansson.h>

/* Adds to OBJECT `parameters`, `replicas`, `micro_batch`, `accumulation`,
 * `wire_bytes`, `bytes_per_step` and `seconds_per_step` as docs/compare.md has
 * them; null where there is no plan or no step yet. */
void time_breakdown_add(json_t *object, const struct run *run);

#endif
