/* SPDX-License-Identifier: Apache-2.0 */
/* The links of simulated hosts: full duplex, each direction at one rate, and a
 * switch between them that holds nobody up. Shared as TCP shares them: a
 * connection's messages arrive in order; the connections of a sending host take
 * turns by pieces of a message; a connection has a window of bytes under way at
 * most; a receiving link takes pieces as they come. Where links are busy their
 * connections get equal parts of them (with equal windows, max-min fair), and
 * one receiver's queue holds up nobody else's messages. No losses, no slow
 * start. Hosts without a limit, and a host to itself, take no time. Pure. */
#ifndef CAPSTAN_NETWORK_H
#define CAPSTAN_NETWORK_H

#include "simulator/timeline.h"

#include <stdbool.h>
#include <stdint.h>

enum network_direction { NETWORK_OUT, NETWORK_IN };

struct network_settings {
    uint32_t hosts, connections;
    double rate;     /* bytes a second each way a host; 0: no limit */
    int64_t latency; /* ns between two hosts */
    /* MESSAGE, as it was given to network_send, has arrived. */
    void (*deliver)(void *context, void *message);
    void *context;
    void (*drop)(
        void *message); /* one that is under way at the close; or NULL */
};

struct network;

/* Borrows AGENDA. NULL: no memory. */
struct network *network_open(struct timeline *timeline,
                             const struct network_settings *settings);

/* Frees *NETWORK (may be NULL) and clears it. */
void network_close(struct network **network);

/* Connection C leads from host FROM to host TO, which differ. */
void network_connect(struct network *network, uint32_t c, uint32_t from,
                     uint32_t to);

/* MESSAGE of BYTES (> 0) leaves by connection C. False: no memory. */
bool network_send(struct network *network, uint32_t c, uint64_t bytes,
                  void *message);

/* Seconds that HOST's link has been busy in DIRECTION with what has been
 * given to it by now. */
double network_busy(const struct network *network, uint32_t host,
                    enum network_direction direction);

#endif
