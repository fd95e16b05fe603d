/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated chief's cuts, as chief/snapshot/snapshot_coordinator.c has them.
 */
#ifndef CAPSTAN_SIMULATED_COORDINATOR_H
#define CAPSTAN_SIMULATED_COORDINATOR_H

#include "tests/simulation/simulated.h"

/* False when none can be had now. At the END it is at once. */
bool simulated_coordinator_begin(struct simulated *s, bool save, bool joins,
                                 bool end);

/* Ps P has answered the question, or holds or has written its part, or failed.
 */
void simulated_coordinator_ps_answered(struct simulated *s, uint32_t p,
                                       const struct simulated_control *mark);
void simulated_coordinator_ps_done(struct simulated *s, uint32_t p,
                                   const struct simulated_control *done);

/* How many ps hold units: the lowest. */
uint32_t simulated_coordinator_num_parts(const struct simulated *s);

/* Is a round still being agreed on? Is any cut not over? */
bool simulated_coordinator_is_agreeing(const struct simulated *s);
bool simulated_coordinator_is_pending(const struct simulated *s);

/* With staleness: asks for a copy in memory. */
void simulated_coordinator_begin_copy(struct simulated *s);

/* No cut takes longer than a step may. */
void simulated_coordinator_check(struct simulated *s);

#endif
