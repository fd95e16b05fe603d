/* SPDX-License-Identifier: Apache-2.0 */
/* How a run ends: trainers leave the loop, the last evaluation, checkpoint and
 * export, the stop order and its goodbyes. Signals too. */
#ifndef CAPSTAN_ENDING_H
#define CAPSTAN_ENDING_H

#include "chief/run.h"

/* SLOT is out of the loop, says goodbye, or has failed. */
void ending_left(struct run *run, struct roster_slot *slot,
                 const Capstan__Left *left);

/* SLOT has heard the stop order and leaves. */
void ending_bye(struct run *run, struct roster_slot *slot);

/* A signal here or at a ps: one checkpoint within timeouts.grace, then all
 * end. A second one ends at once. */
void ending_interrupt(struct run *run, enum status status);

/* What the end waits for next. */
void ending_step(struct run *run, int64_t now);

#endif
