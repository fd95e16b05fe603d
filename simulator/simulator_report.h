/* SPDX-License-Identifier: Apache-2.0 */
/* The output of `capstan bench --simulate`: one case, or the sweep of 1 to 256
 * workers by 1 to 64 ps. */
#ifndef CAPSTAN_SIMULATOR_REPORT_H
#define CAPSTAN_SIMULATOR_REPORT_H

#include "commands/cli/options.h"
#include "core/base/status.h"
#include "simulator/simulator.h"

#include <stdbool.h>
#include <stdio.h>

struct simulator_report {
    const struct layout *layout;      /* borrowed */
    const double *forward, *backward; /* [num_parameters] seconds; borrowed */
    struct simulator_costs costs;     /* as measured */
    double parallel_efficiency;       /* struct simulator_config */
    uint32_t cores;                   /* if the flags do not set it */
    uint32_t num_ps, num_workers;     /* without --sweep */
    uint32_t replicas; /* of all workers, which share a batch of this size; 0:
                          no job */
    uint32_t micro_batch, accumulation;
    uint64_t staleness;
    bool clip, bf16, json;
};

/* Payload bytes a second of an Ethernet link of GBITS over TCP: 1448 of each
 * 1514 bytes of a frame. */
double simulator_report_link_rate(double gbits);

/* The case that REPORT and the flags describe. */
void simulator_report_config(struct simulator_config *config,
                             const struct simulator_report *report,
                             const struct options *flags);

/* Simulates and prints to OUT: a table, or one JSON object. */
enum status simulator_report_print(FILE *out,
                                   const struct simulator_report *report,
                                   const struct options *flags,
                                   struct failure *why) MUST_CHECK;

#endif
