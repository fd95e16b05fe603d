/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the costs of a message, a byte and an update on this machine, for
 * simulated runs. Only this file of the folder uses clocks and sockets. */
#ifndef CAPSTAN_CALIBRATION_H
#define CAPSTAN_CALIBRATION_H

#include "core/base/status.h"
#include "core/tensor/optimizer.h"
#include "simulator/simulator.h"

/* Fills COSTS except `step`, in about SECONDS. Messages and bytes are measured
 * as processor time of a TCP loopback round trip, divided evenly among the
 * threads that a message passes; `wake` by the clock, as sleeping cores compute
 * nothing; copies and RULE's updates in memory larger than a core's caches.
 * STATUS_RETRY if there are no ports or no memory. */
enum status calibration_measure(struct simulator_costs *costs,
                                const struct optimizer *rule, double seconds,
                                struct failure *why) MUST_CHECK;

#endif
