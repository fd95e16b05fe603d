/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated ps: the real exchange, symbols for weights, and what
 * ps/server.c and proto/holder/snapshot_agent.c do around it. */
#ifndef CAPSTAN_SIMULATED_PS_H
#define CAPSTAN_SIMULATED_PS_H

#include "tests/simulation/simulated.h"

/* A new incarnation of ps P, which knows nothing yet; and its end, whichever.
 */
void simulated_ps_open(struct simulated *s, uint32_t p, bool keeps);
void simulated_ps_close(struct simulated *s, uint32_t p);

/* MESSAGE has come by the connection FROM: a trainer's or the chief's. */
void simulated_ps_receive(struct simulated *s, uint32_t p,
                          const struct simulated_peer *from,
                          const struct simulated_message *message);

/* What is due now. */
void simulated_ps_step(struct simulated *s, uint32_t p);

#endif
