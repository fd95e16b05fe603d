/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks the cases of a comparison: as measured, beyond the spread of the runs
 * (docs/compare.md), and as predicted. Pure. */
#ifndef CAPSTAN_RANKING_H
#define CAPSTAN_RANKING_H

#include "commands/measure/aggregate_runs.h"

/* Ranks the synchronous cases (all-reduce and synchronous ps) among COUNT
 * AGGREGATES for each number of workers. `fastest`: mode and ps; null: none
 * beyond the spread. `faster_ps`, `slower_ps`: the numbers of ps that are
 * faster or slower than all-reduce beyond the spread. `fast_ps`: those that
 * have a spread and are not slower. `measured_ps`: from which on every number
 * is in `fast_ps`; null: none. `predicted_ps` and its `formula`; null: no
 * bandwidth is known, or no number of ps is enough. `measured_answer`,
 * `predicted_answer`: the same in words; null: fewer than two cases were
 * measured, or no bandwidth is known. Rates are in UNIT, such as "examples", a
 * second. The caller owns the result. */
json_t *ranking_compute(const struct aggregate *aggregates, unsigned count,
                        const char *unit);

/* Compares, for GIVEN, a step by ps with one by ring all-reduce, and says from
 * how many ps on the result changes: a JSON string, owned by the caller. */
json_t *ranking_predict(const struct cost_model_case *given);

#endif
