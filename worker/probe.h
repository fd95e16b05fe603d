/* Measures what the network passes between this host and one ps, both ways at
 * once: bursts of messages that the ps sends back as they are, twice as many
 * each time, until one lasts long enough to be timed. Over within LIMIT. */
#ifndef CAPSTAN_PROBE_H
#define CAPSTAN_PROBE_H

#include "proto/base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

struct probe_settings {
    void *zmq;
    uint64_t run, incarnation;
    const char *address; /* host:port of the ps; copied */
};

struct probe;

/* Looks the address up and connects; probe_step goes on. */
enum status probe_open(struct probe **out,
                       const struct probe_settings *settings, int64_t now,
                       struct failure *why) MUST_CHECK;

/* Closes the connection and clears *PROBE (may be NULL). */
void probe_close(struct probe **probe);

/* For zmq_poll. */
zmq_pollitem_t probe_poll_item(struct probe *probe);

/* When probe_step is due next without an event. */
int64_t probe_deadline(const struct probe *probe);

/* Sends and receives what can be. True when it is over. */
bool probe_step(struct probe *probe, int64_t now);

/* Then: payload bytes a second of the longest burst that came back whole; 0:
 * none did, or the ps is on this very host. */
double probe_rate(const struct probe *probe);

#endif
