/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of a simulated ps: which cut a block's state belongs to, and its
 * way to the disk, as ps/dense/cutter.c has it. */
#ifndef CAPSTAN_SIMULATED_CUTTER_H
#define CAPSTAN_SIMULATED_CUTTER_H

#include "tests/simulation/simulated.h"

/* Ps P's exchange wants block B held as it is at VERSION. */
void simulated_cutter_snapshot(struct simulated *s, uint32_t p, uint32_t b,
                               uint64_t version);

/* The chief's orders about cuts; others are left alone. */
void simulated_cutter_obey(struct simulated *s, uint32_t p,
                           const struct simulated_message *order);

/* Writes go on, and are told when they are over. */
void simulated_cutter_step(struct simulated *s, uint32_t p);

#endif
