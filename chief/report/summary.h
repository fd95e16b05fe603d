/* SPDX-License-Identifier: Apache-2.0 */
/* The summary at the end of a run: speed, loss and accuracy, where the time
 * went, and which job key would help. */
#ifndef CAPSTAN_SUMMARY_H
#define CAPSTAN_SUMMARY_H

#include "chief/run.h"

#include <jansson.h>

/* The summary as an object, described in docs/running.md; the caller owns it.
 */
json_t *summary_object(const struct run *run);

/* Logs the last lines for people; with JSON also prints the object on standard
 * output. */
void summary_print(const struct run *run, bool json);

/* Writes the object to the file at PATH; logs a warning if that fails. */
void summary_save(const struct run *run, const char *path);

/* Where the time of each step went; `capstan compare` compares it with the cost
 * model. Adds to OBJECT `parameters`, `replicas`, `micro_batch`,
 * `accumulation`, `wire_bytes`, `bytes_per_step` and `seconds_per_step` as
 * described in docs/compare.md; null if there is no plan or no step yet. */
void time_breakdown_add(json_t *object, const struct run *run);

#endif
