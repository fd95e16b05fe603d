/* SPDX-License-Identifier: Apache-2.0 */
/* Which case of a comparison is faster: as measured, beyond the spread of the
 * runs (docs/compare.md), and as predicted. Pure. */
#ifndef CAPSTAN_RANKING_H
#define CAPSTAN_RANKING_H

#include "chief/compare/aggregate_runs.h"

/* For each number of workers among COUNT verdicts, of rounds (all-reduce and
 * synchronous ps): `fastest` (mode and ps; null: none beyond the spread);
 * `faster_ps` and `slower_ps`, the numbers of ps whose rounds are faster or
 * slower than all-reduce's beyond the spread, and `fast_ps`, those whose rounds
 * have a spread and are not slower; `measured_ps` (from which on every number
 * is of the latter; null: from none on); `predicted_ps` and its `formula`
 * (null: no link's rate is known, or none); `measured_answer` and
 * `predicted_answer`, which say it in words (null: fewer than two were
 * measured; no link's rate is known). The caller's. */
json_t *ranking_compute(const struct aggregate *aggregates, unsigned count);

/* How a round by ps compares with one by all-reduce, a ring, in GIVEN, and from
 * how many ps on that is otherwise, in words: a JSON string, the caller's. */
json_t *ranking_predict(const struct cost_model_case *given);

#endif
