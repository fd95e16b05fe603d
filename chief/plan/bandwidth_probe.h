/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the network bandwidth before the first view, while no training
 * traffic interferes: rank 0 and one ps send each other bytes. One pair is
 * enough, because network_bound assumes that all hosts have equal links. */
#ifndef CAPSTAN_BANDWIDTH_PROBE_H
#define CAPSTAN_BANDWIDTH_PROBE_H

#include "chief/control/roster.h"
#include "proto/messages/message.h"

#include <stdbool.h>
#include <stdint.h>

struct run;

struct run_bandwidth {
    double gbits;         /* of each host in each direction, 10^9 bits/s; 0:
                             unknown */
    bool measured;        /* gbits was measured, not given */
    bool logged;          /* the measurement */
    int64_t requested_at; /* of a measurement, 0: not yet */
    int64_t aggregate_requested_at; /* when a measurement with all trainers at
                                       once was requested, 0: not yet */
    uint32_t aggregate_reports;     /* trainers that have reported it */
    double aggregate_gbits;         /* their sum; 0: unknown */
};

/* True when no more measurements are expected. Requests one if the bandwidth
 * was not given and every ps and trainer has a host of its own; stops waiting
 * for it after a second. */
bool bandwidth_probe_is_done(struct run *run, int64_t now);

/* Gbit/s that all trainers together exchange with ps 0 at the same time, once
 * each has reported its part; NAN: unknown. Measured only in a series. */
double bandwidth_probe_aggregate_gbits(const struct run *run);

/* The report of rank 0, or of each trainer. Reports that are out of range or
 * were not requested are ignored. */
void bandwidth_probe_receive(struct run *run, const struct roster_slot *slot,
                             const Capstan__Measured *measured);

#endif
