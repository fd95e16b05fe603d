/* SPDX-License-Identifier: Apache-2.0 */
/* The links of simulated hosts: full duplex, each direction with one rate,
 * connected by a switch that never blocks. Bandwidth is shared as by TCP: a
 * connection's messages arrive in order; the connections of a sending host take
 * turns by pieces of a message; each connection has a window of bytes in
 * flight; a receiving link takes pieces in order of arrival. Connections over
 * busy links get equal shares (with equal windows, max-min fair), and one
 * receiver's queue does not delay other receivers. No losses, no slow start.
 * Hosts without a limit, and messages within a host, take no time. Pure. */
#ifndef CAPSTAN_NETWORK_H
#define CAPSTAN_NETWORK_H

#include "simulator/timeline.h"

#include <stdbool.h>
#include <stdint.h>

enum network_direction { NETWORK_OUT, NETWORK_IN };

/* At the head of what is sent, which is the network's until it has arrived. */
struct network_message {
    struct network_message *next;
    uint64_t to_send, to_arrive; /* bytes */
};

struct network_settings {
    uint32_t hosts, connections;
    double rate; /* bytes a second in each direction of a host; 0: no limit */
    int64_t latency; /* ns between two hosts */
    /* MESSAGE, as given to network_send, has arrived. */
    void (*deliver)(void *context, struct network_message *message);
    void *context;
    /* Frees a message in flight at the close; or NULL. */
    void (*drop)(struct network_message *message);
};

struct network;

/* Borrows TIMELINE. NULL: no memory. */
struct network *network_open(struct timeline *timeline,
                             const struct network_settings *settings);

/* Frees *NETWORK (may be NULL) and clears it. */
void network_close(struct network **network);

/* Defines connection C from host FROM to host TO, which differ. */
void network_connect(struct network *network, uint32_t c, uint32_t from,
                     uint32_t to);

/* Sends MESSAGE of BYTES (> 0) over connection C. */
void network_send(struct network *network, uint32_t c, uint64_t bytes,
                  struct network_message *message);

/* Seconds for which HOST's link is busy in DIRECTION with all messages given to
 * it so far. */
double network_busy(const struct network *network, uint32_t host,
                    enum network_direction direction);

#endif
