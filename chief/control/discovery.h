/* SPDX-License-Identifier: Apache-2.0 */
/* Calls listed peers that have not joined: they may know no chief. */
#ifndef CAPSTAN_DISCOVERY_H
#define CAPSTAN_DISCOVERY_H

#include "chief/control/roster.h"
#include "proto/base/log.h"
#include "proto/config/cluster/cluster.h"

#include <stdint.h>

struct discovery;

/* ADDRESS is mine, as peers reach it; "": not known, nobody is called. NULL: no
 * memory. Borrows CLUSTER and ROSTER. */
struct discovery *discovery_open(void *zmq, const struct cluster *cluster,
                                 const struct roster *roster,
                                 const char *address);

/* Ends all calls and clears *CRIER. */
void discovery_close(struct discovery **discovery);

/* Calls the next ones when it is time, a few at once. */
void discovery_step(struct discovery *discovery, int64_t now);

#endif
