/* SPDX-License-Identifier: Apache-2.0 */
/* The points of a run as lines of JSON (the job's metrics.jsonl;
 * docs/metrics.md describes them). */
#ifndef CAPSTAN_JSON_LINES_H
#define CAPSTAN_JSON_LINES_H

#include "chief/report/point.h"

/* A file that is there has to be of such lines. Once the run has a plan, what
 * they tell of steps that it takes again is cut. */
enum status json_lines_open(struct point_outlet *outlet, const struct run *run,
                            struct failure *why) MUST_CHECK;

#endif
