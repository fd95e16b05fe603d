/* SPDX-License-Identifier: Apache-2.0 */
/* What several runs of one case say together: throughput, where the time went,
 * the bound by the formulas of cost_model.h, what limits it. Pure: from the
 * runs' JSON objects to one. */
#ifndef CAPSTAN_AGGREGATE_RUNS_H
#define CAPSTAN_AGGREGATE_RUNS_H

#include "chief/compare/cost_model.h"

#include <jansson.h>
#include <stdbool.h>

struct aggregate_runs_case {
    enum cost_model_mode mode; /* COST_MODEL_RING stands for all-reduce */
    unsigned workers, ps;
    double samples;      /* of a replica's step */
    bool local;          /* all processes on one machine: they use no link, and
                           what is known of links counts for predictions */
    double link_gbits;   /* of every link; 0: as below */
    double worker_gbits; /* between two workers; 0: not known */
    double pair_gbits;   /* between a worker and a ps; 0: as RUNS have it */
    double all_gbits;    /* between all workers and a ps; 0: not known */
    double latency;      /* seconds, where a link is known */
    bool clip;
};

struct aggregate {
    struct cost_model_case
        given;               /* what was measured, as the formulas take it */
    bool linked;             /* the rate of the hosts' links is known, or
                                assumed */
    double rate;             /* median examples a second; NAN: no run */
    double mean, half_width; /* the mean and half of its interval, as
                          docs/compare.md has it; NAN: fewer than three
                          runs have none */
    json_t *object;          /* as docs/compare.md has it; the caller's */
};

/* The median of what RUNS, JSON objects, have at KEY; NAN: none has. */
double aggregate_runs_median(const json_t *runs, const char *key);

/* RUNS: JSON objects of finished runs, possibly none. */
struct aggregate aggregate_runs(const struct aggregate_runs_case *spec,
                                const json_t *runs);

/* Fills `speed_up`, `ideal_speed_up` (its replicas) and `efficiency` of each of
 * COUNT verdicts against the one of its mode and ps with the fewest replicas;
 * null where that is alone. */
void aggregate_runs_add_scaling(const struct aggregate *aggregates,
                                unsigned count);

/* Is A faster than B beyond the spread of their runs: do their intervals not
 * overlap? Never where one has no spread. */
bool aggregate_runs_is_faster(const struct aggregate *a,
                              const struct aggregate *b);

#endif
