/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the network bandwidth before the first view, while no training
 * traffic interferes: rank 0 and one ps send each other bytes. One pair is
 * enough, because network_bound assumes that all hosts have equal links. */
#ifndef CAPSTAN_BANDWIDTH_PROBE_H
#define CAPSTAN_BANDWIDTH_PROBE_H

#include "chief/run.h"

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
