/* SPDX-License-Identifier: Apache-2.0 */
/* Calls listed peers that have not joined: they may know no chief. */
#ifndef CAPSTAN_CRIER_H
#define CAPSTAN_CRIER_H

#include "chief/control/roster.h"
#include "proto/base/log.h"
#include "proto/config/cluster/cluster.h"

#include <stdint.h>

struct crier;

/* ADDRESS is mine, as peers reach it; "": not known, nobody is called. NULL: no
 * memory. Borrows CLUSTER and ROSTER. */
struct crier *crier_open(void *zmq, const struct cluster *cluster,
                         const struct roster *roster, const char *address);

/* Ends all calls and clears *CRIER. */
void crier_close(struct crier **crier);

/* Calls the next ones when it is time, a few at once. */
void crier_step(struct crier *crier, int64_t now);

#endif
