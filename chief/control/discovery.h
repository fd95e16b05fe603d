/* SPDX-License-Identifier: Apache-2.0 */
/* Announces the chief's address to listed peers that have not joined, since
 * they may not know a chief. */
#ifndef CAPSTAN_DISCOVERY_H
#define CAPSTAN_DISCOVERY_H

#include "chief/control/roster.h"
#include "core/base/log.h"
#include "proto/cluster/cluster.h"

#include <stdint.h>

struct discovery;

/* ADDRESS is the chief's, as peers reach it; "": unknown, nothing is announced.
 * SOURCE is a local address to connect from, or NULL; KEYS are the run's, or
 * NULL. Borrows all. NULL: no memory. */
struct discovery *discovery_open(void *zmq, const char *source,
                                 const struct link_keys *keys,
                                 const struct cluster *cluster,
                                 const struct roster *roster,
                                 const char *address);

/* Ends all announcements and clears *DISCOVERY. */
void discovery_close(struct discovery **discovery);

/* Starts and advances announcements that are due, a few at a time. */
void discovery_step(struct discovery *discovery, int64_t now);

#endif
