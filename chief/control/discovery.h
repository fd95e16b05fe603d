/* SPDX-License-Identifier: Apache-2.0 */
/* Announces the chief's address to listed peers that have not joined, since
 * they may not know a chief, and once to each that has: whether its address
 * accepts a connection tells what a refusal means later (port_probe.h). */
#ifndef CAPSTAN_DISCOVERY_H
#define CAPSTAN_DISCOVERY_H

#include "chief/control/roster.h"
#include "core/base/log.h"
#include "proto/cluster/cluster.h"

#include <stdint.h>

struct discovery;

struct discovery_settings {
    void *zmq;
    const char *source, *address; /* a local address to connect from, or NULL;
                                     the chief's, as peers reach it; "":
                                     unknown, nothing is announced */
    const struct link_keys *keys; /* the run's, or NULL */
    const struct cluster *cluster;
    struct roster *roster;
    const struct log *log;
};

/* Borrows all. NULL: no memory. */
struct discovery *discovery_open(const struct discovery_settings *settings);

/* Ends all announcements and clears *DISCOVERY. */
void discovery_close(struct discovery **discovery);

/* Starts and advances announcements that are due, a few at a time. Logs once of
 * each peer if it has other keys. */
void discovery_step(struct discovery *discovery, int64_t now);

#endif
