/* SPDX-License-Identifier: Apache-2.0 */
/* Runs that one chief leads one after another, with the same members: each
 * process takes all of its part down, comes back and joins the next run, as it
 * would another chief's. What is different from a run that stands alone. */
#ifndef CAPSTAN_RUN_SERIES_H
#define CAPSTAN_RUN_SERIES_H

#include "proto/base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct run;
struct roster_slot;

/* One run of a series. */
struct run_series {
    uint32_t ps;       /* so many of the ps hold blocks; 0: all */
    bool first;        /* members come for the first time: they may take long */
    bool continues[2]; /* another follows if this one fails, and if it does not
                        */
    double limit;      /* seconds it may take from when all are here */
    int64_t began;     /* when they were; the chief's */
    json_t *measured;  /* what is known of it at its end; the caller's */
};

/* Within how many seconds this chief, who may have to wait for goodbyes first,
 * is back for the next run when this one ends with STATUS; 0: there is none, or
 * RUN is no run of a series. A run that failed on its own is followed by the
 * next; who is gone, or what is wrong with the configuration, would be so in
 * the next one too. */
double run_series_next_within(const struct run *run, enum status status);

/* Ends a run that takes longer than it may, or to which somebody of the one
 * before has not come back. */
void run_series_step(struct run *run, int64_t now);

/* Does the series end when somebody is gone? Runs with fewer members would not
 * be like the others. */
bool run_series_requires_all(const struct run *run);

#endif
