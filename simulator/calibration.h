/* SPDX-License-Identifier: Apache-2.0 */
/* What a message, a byte and an update cost on this machine: the costs of a
 * simulated run. The one file of this room that touches the world. */
#ifndef CAPSTAN_CALIBRATION_H
#define CAPSTAN_CALIBRATION_H

#include "proto/base/status.h"
#include "proto/config/job/optimizer.h"
#include "simulator/simulator.h"

/* Fills COSTS but for `step`, in about SECONDS: messages and bytes by the
 * processor time of a link to and fro over TCP on this machine, shared evenly
 * among the threads that a message passes; `wake` by the clock, as cores that
 * sleep compute nothing; copies and RULE's updates in memory larger than the
 * caches of a core. STATUS_RETRY when there are no ports or no
 * memory for it. */
enum status calibration_measure(struct simulator_costs *costs,
                                const struct optimizer *rule, double seconds,
                                struct failure *why) MUST_CHECK;

#endif
