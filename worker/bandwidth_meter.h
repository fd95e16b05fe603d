/* SPDX-License-Identifier: Apache-2.0 */
/* Measures what the network passes between this host and one ps, both ways at
 * once: bursts of messages that the ps sends back as they are, twice as many
 * each time, until one lasts long enough to be timed. Over within LIMIT. */
#ifndef CAPSTAN_BANDWIDTH_METER_H
#define CAPSTAN_BANDWIDTH_METER_H

#include "proto/base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

struct bandwidth_meter_settings {
    void *zmq;
    uint64_t run, incarnation;
    const char *address; /* host:port of the ps; copied */
};

struct bandwidth_meter;

/* Looks the address up and connects; bandwidth_meter_step goes on. */
enum status bandwidth_meter_open(
    struct bandwidth_meter **out,
    const struct bandwidth_meter_settings *settings, int64_t now,
    struct failure *why) MUST_CHECK;

/* Closes the connection and clears *PROBE (may be NULL). */
void bandwidth_meter_close(struct bandwidth_meter **probe);

/* For zmq_poll. */
zmq_pollitem_t bandwidth_meter_poll_item(struct bandwidth_meter *probe);

/* When bandwidth_meter_step is due next without an event. */
int64_t bandwidth_meter_deadline(const struct bandwidth_meter *probe);

/* Sends and receives what can be. True when it is over. */
bool bandwidth_meter_step(struct bandwidth_meter *probe, int64_t now);

/* Then: payload bytes a second of the longest burst that came back whole; 0:
 * none did, or the ps is on this very host. */
double bandwidth_meter_rate(const struct bandwidth_meter *probe);

#endif
