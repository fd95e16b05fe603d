/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the network bandwidth between this host and one ps, in both
 * directions at once: bursts of messages that the ps echoes, each burst twice
 * as long as the one before, until one lasts long enough to be timed. The probe
 * ends within LIMIT. */
#ifndef CAPSTAN_BANDWIDTH_METER_H
#define CAPSTAN_BANDWIDTH_METER_H

#include "core/base/status.h"
#include "proto/messages/member.h"

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

struct bandwidth_meter_settings {
    const struct process *process; /* borrowed */
    const char *address;           /* host:port of the ps; copied */
    uint32_t index;                /* of the ps */
};

struct bandwidth_meter;

/* Resolves the address and connects; bandwidth_meter_step does the rest. */
enum status bandwidth_meter_open(
    struct bandwidth_meter **out,
    const struct bandwidth_meter_settings *settings, int64_t now,
    struct failure *why) MUST_CHECK;

/* Closes the connection and clears *PROBE (may be NULL). */
void bandwidth_meter_close(struct bandwidth_meter **probe);

/* For zmq_poll. */
zmq_pollitem_t bandwidth_meter_poll_item(struct bandwidth_meter *probe);

/* The time of the next due bandwidth_meter_step if no event occurs. */
int64_t bandwidth_meter_deadline(const struct bandwidth_meter *probe);

/* Sends and receives as much as possible. True when the probe has ended. */
bool bandwidth_meter_step(struct bandwidth_meter *probe, int64_t now);

/* After the end: payload bytes per second of the longest burst that came back
 * complete; 0 if none did or if the ps is on this host. */
double bandwidth_meter_rate(const struct bandwidth_meter *probe);

#endif
