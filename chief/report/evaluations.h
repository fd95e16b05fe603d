/* SPDX-License-Identifier: Apache-2.0 */
/* Accuracy on the test set: each trainer reports its part, the chief adds up.
 * In synchronous runs the parts go by rank, on the weights that each trainer
 * holds after the round; otherwise they are handed out, on a snapshot, and a
 * dead trainer's goes to a living one. */
#ifndef CAPSTAN_EVALUATIONS_H
#define CAPSTAN_EVALUATIONS_H

#include "chief/run.h"

/* A part has come. */
void evaluations_receive_part(struct run *run, const struct roster_slot *slot,
                              const Capstan__Evaluated *report);

/* Hands out the snapshots that all ps hold and what a dead trainer leaves, and
 * ends the evaluations that wait for nobody any more. */
void evaluations_step(struct run *run);

/* Is a part of an evaluation still awaited? */
bool evaluations_pending(const struct run *run);

/* Does the newest evaluation of a synchronous run lack a part that will not
 * come? Then one of a snapshot is to be ordered. */
bool evaluations_are_missing(const struct run *run);

#endif
