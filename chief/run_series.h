/* SPDX-License-Identifier: Apache-2.0 */
/* Consecutive runs of one chief with the same members. After each run a process
 * closes its part and joins the next run as it would join a new chief. This
 * interface holds what differs from a single run. */
#ifndef CAPSTAN_RUN_SERIES_H
#define CAPSTAN_RUN_SERIES_H

#include "core/base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct run;
struct roster_slot;

/* One run of a series. */
struct run_series {
    uint32_t ps; /* how many ps hold blocks; 0: all */
    bool first;  /* members join for the first time, which may take long */
    bool continues[2]; /* whether another run follows: [0] after a failure, [1]
                          after success */
    double limit;  /* seconds the run may take once all members have joined */
    int64_t began; /* when all members had joined; set by the chief */
    json_t *measured; /* at its end; owned by the caller */
};

/* Seconds within which this chief listens for the next run if this one ends
 * with STATUS; it may wait for goodbyes first. 0: no run follows, or RUN
 * belongs to no series. The series continues after STATUS_FAILED; a lost member
 * or a configuration error would affect the next run too. */
double run_series_next_within(const struct run *run, enum status status);

/* Stops a run that exceeds its time limit, or whose members of the previous run
 * have not rejoined in time. */
void run_series_step(struct run *run, int64_t now);

/* Must every member stay for the series to continue? Runs with fewer members
 * would not be comparable. */
bool run_series_requires_all(const struct run *run);

#endif
