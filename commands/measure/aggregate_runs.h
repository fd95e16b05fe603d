/* SPDX-License-Identifier: Apache-2.0 */
/* Aggregates several runs of one case: throughput, where the time went, the
 * bound by the formulas of cost_model.h, and what limits it. Pure: JSON objects
 * of runs in, one object out. */
#ifndef CAPSTAN_AGGREGATE_RUNS_H
#define CAPSTAN_AGGREGATE_RUNS_H

#include "commands/measure/cost_model.h"

#include <jansson.h>
#include <stdbool.h>

struct aggregate_runs_case {
    enum cost_model_mode mode; /* COST_MODEL_RING: all-reduce */
    unsigned workers, ps;
    double samples;    /* per step of a replica */
    bool local;        /* all processes are on one machine and use no link; the
                          bandwidths below only serve predictions */
    double link_gbits; /* of every link; 0: the following ones apply */
    double worker_gbits; /* between two workers; 0: unknown */
    double pair_gbits;   /* between a worker and a ps; 0: from RUNS */
    double all_gbits;    /* between all workers and a ps; 0: unknown */
    double latency;      /* seconds, if a bandwidth is known */
    bool clip;
};

struct aggregate {
    struct cost_model_case given; /* the measured input of the model */
    bool linked; /* the bandwidth of the hosts' links is known or assumed */
    double rate; /* mean examples per second; NAN: no run */
    double half_width; /* of its confidence interval, see docs/compare.md; NAN
                          with fewer than three runs */
    json_t *object;    /* see docs/compare.md; owned by the caller */
};

/* The median of the values at KEY in RUNS, JSON objects; NAN: there is none. */
double aggregate_runs_median(const json_t *runs, const char *key);

/* RUNS: JSON objects of finished runs, possibly none. */
struct aggregate aggregate_runs(const struct aggregate_runs_case *spec,
                                const json_t *runs);

/* Fills `speed_up` (over one replica, scaled from the case with the same mode
 * and ps and the fewest replicas), `ideal_speed_up` (its replicas) and
 * `efficiency` (their ratio) of each of COUNT AGGREGATES; null if no case with
 * another number of replicas was measured. */
void aggregate_runs_add_scaling(const struct aggregate *aggregates,
                                unsigned count);

/* Is A faster than B beyond the spread of their runs, so that their intervals
 * do not overlap? False if either has no interval. */
bool aggregate_runs_is_faster(const struct aggregate *a,
                              const struct aggregate *b);

#endif
