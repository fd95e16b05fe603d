/* SPDX-License-Identifier: Apache-2.0 */
/* A chief that takes the place of one that has died: the real core decides by
 * what members tell, with what chief/adopt.c does around it. */
#ifndef CAPSTAN_SIMULATED_ADOPT_H
#define CAPSTAN_SIMULATED_ADOPT_H

#include "tests/simulation/simulated.h"

/* Is MESSAGE, of the process of slot I, which is no member, one that tells what
 * it has, or that asks to join before that is decided? Then it is handled. */
bool simulated_adopt_receive(struct simulated *s,
                             const struct simulated_peer *from, uint32_t i,
                             const struct simulated_message *message);
/* Decides, once that can be. */
void simulated_adopt_step(struct simulated *s);
void simulated_adopt_close(struct simulated *s);

#endif
