/* SPDX-License-Identifier: Apache-2.0 */
/* What `capstan bench --simulate` prints: one case, or all of 1 to 256 workers
 * by 1 to 64 ps. */
#ifndef CAPSTAN_FORECAST_H
#define CAPSTAN_FORECAST_H

#include "proto/base/status.h"
#include "proto/config/cli/simulate_options.h"
#include "simulator/model.h"

#include <stdbool.h>
#include <stdio.h>

struct forecast {
    const struct layout *layout;      /* borrowed */
    const double *forward, *backward; /* [num_parameters] seconds; borrowed */
    struct model_costs costs;         /* as measured */
    double crowded;                   /* struct model_case */
    uint32_t cores;                   /* when the flags do not say */
    uint32_t num_ps, num_workers;     /* without --sweep */
    uint32_t replicas; /* of all workers, which share a batch of this; 0: it is
                          no job's */
    uint32_t micro_batch, accumulation;
    uint64_t staleness;
    bool clip, bf16, json;
};

/* Bytes of payload a second that an Ethernet link of GBITS carries over TCP:
 * 1448 of each 1514 bytes of a frame. */
double forecast_rate(double gbits);

/* The case that FORECAST and the flags describe. */
void forecast_case(struct model_case *given, const struct forecast *forecast,
                   const struct simulate_options *flags);

/* Simulates and prints to OUT: a table, or one JSON object. */
enum status forecast_print(FILE *out, const struct forecast *forecast,
                           const struct simulate_options *flags,
                           struct failure *why) MUST_CHECK;

#endif
