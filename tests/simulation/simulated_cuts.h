/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated chief's cuts, as chief/snapshot/cuts.c has them. */
#ifndef CAPSTAN_SIMULATED_CUTS_H
#define CAPSTAN_SIMULATED_CUTS_H

#include "tests/simulation/simulated.h"

/* False when none can be had now. At the END it is at once. */
bool simulated_cuts_ask(struct simulated *s, bool save, bool joins, bool end);

/* Ps P has answered the question, or holds or has written its part, or failed.
 */
void simulated_cuts_marked(struct simulated *s, uint32_t p,
                           const struct simulated_letter *mark);
void simulated_cuts_done(struct simulated *s, uint32_t p,
                         const struct simulated_letter *done);

/* Is a round still being agreed on? Is any cut not over? */
bool simulated_cuts_asking(const struct simulated *s);
bool simulated_cuts_pending(const struct simulated *s);

/* No cut takes longer than a step may. */
void simulated_cuts_check(struct simulated *s);

#endif
