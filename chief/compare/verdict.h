/* SPDX-License-Identifier: Apache-2.0 */
/* What several runs of one case say together: throughput, where the time went,
 * the bound by the formulas of predict.h, what limits it. Pure: from the runs'
 * JSON objects to one. */
#ifndef CAPSTAN_VERDICT_H
#define CAPSTAN_VERDICT_H

#include "chief/compare/predict.h"

#include <jansson.h>
#include <stdbool.h>

struct verdict_case {
    enum predict_mode mode; /* PREDICT_RING stands for all-reduce */
    unsigned workers, ps;
    double samples;      /* of a replica's step */
    bool here;           /* all processes on one machine: they use no link, and
                            what is known of links counts for predictions */
    double link_gbits;   /* of every link; 0: as below */
    double worker_gbits; /* between two workers; 0: not known */
    double pair_gbits;   /* between a worker and a ps; 0: as RUNS have it */
    double all_gbits;    /* between all workers and a ps; 0: not known */
    double latency;      /* seconds, where a link is known */
    bool clip;
};

struct verdict {
    struct predict_case given; /* what was measured, as the formulas take it */
    bool linked;               /* the rate of the hosts' links is known, or
                                  assumed */
    double rate;               /* median examples a second; NAN: no run */
    double mean, half;         /* the mean and half of its interval, as
                                  docs/compare.md has it; NAN: fewer than three
                                  runs have none */
    json_t *object;            /* as docs/compare.md has it; the caller's */
};

/* The median of what RUNS, JSON objects, have at KEY; NAN: none has. */
double verdict_median(const json_t *runs, const char *key);

/* RUNS: JSON objects of finished runs, possibly none. */
struct verdict verdict_of(const struct verdict_case *of, const json_t *runs);

/* Fills `speed_up`, `ideal_speed_up` (its replicas) and `efficiency` of each of
 * COUNT verdicts against the one of its mode and ps with the fewest replicas;
 * null where that is alone. */
void verdict_scale(const struct verdict *verdicts, unsigned count);

/* Is A faster than B beyond the spread of their runs: do their intervals not
 * overlap? Never where one has no spread. */
bool verdict_faster(const struct verdict *a, const struct verdict *b);

#endif
