/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of a simulated ps: which cut a block's state belongs to, and its
 * way to the disk, as proto/holder/snapshot_agent.c has it. */
#ifndef CAPSTAN_SIMULATED_SNAPSHOT_AGENT_H
#define CAPSTAN_SIMULATED_SNAPSHOT_AGENT_H

#include "tests/simulation/simulated.h"

/* Ps P's exchange wants block B held as it is at VERSION. */
void simulated_snapshot_agent_snapshot(struct simulated *s, uint32_t p,
                                       uint32_t b, uint64_t version);

/* The chief's orders about cuts; others are left alone. */
void simulated_snapshot_agent_order(struct simulated *s, uint32_t p,
                                    const struct simulated_message *order);

/* Writes go on, and are told when they are over. */
void simulated_snapshot_agent_step(struct simulated *s, uint32_t p);

#endif
