/* SPDX-License-Identifier: Apache-2.0 */
/* Measures what the network passes between this host and one ps, both ways at
 * once: bursts of messages that the ps sends back as they are, twice as many
 * each time, until one lasts long enough to be timed. Over within LIMIT. */
#ifndef CAPSTAN_LINK_PROBE_H
#define CAPSTAN_LINK_PROBE_H

#include "proto/base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

struct link_probe_settings {
    void *zmq;
    uint64_t run, incarnation;
    const char *address; /* host:port of the ps; copied */
};

struct link_probe;

/* Looks the address up and connects; link_probe_step goes on. */
enum status link_probe_open(struct link_probe **out,
                            const struct link_probe_settings *settings,
                            int64_t now, struct failure *why) MUST_CHECK;

/* Closes the connection and clears *PROBE (may be NULL). */
void link_probe_close(struct link_probe **probe);

/* For zmq_poll. */
zmq_pollitem_t link_probe_poll_item(struct link_probe *probe);

/* When link_probe_step is due next without an event. */
int64_t link_probe_deadline(const struct link_probe *probe);

/* Sends and receives what can be. True when it is over. */
bool link_probe_step(struct link_probe *probe, int64_t now);

/* Then: payload bytes a second of the longest burst that came back whole; 0:
 * none did, or the ps is on this very host. */
double link_probe_rate(const struct link_probe *probe);

#endif
