/* SPDX-License-Identifier: Apache-2.0 */
/* How a run ends: trainers leave the loop, the last evaluation, checkpoint and
 * export, the stop order and its goodbyes. Signals too. */
#ifndef CAPSTAN_SHUTDOWN_H
#define CAPSTAN_SHUTDOWN_H

#include "chief/run.h"

/* SLOT is out of the loop, says goodbye, or has failed. */
void shutdown_receive_left(struct run *run, struct roster_slot *slot,
                           const Capstan__Left *left);

/* SLOT has heard the stop order and leaves. */
void shutdown_receive_goodbye(struct run *run, struct roster_slot *slot);

/* A signal here or at a ps: one checkpoint within timeouts.grace, then all
 * end. A second one ends at once. */
void shutdown_interrupt(struct run *run, enum status status);

/* What the end waits for next. */
void shutdown_step(struct run *run, int64_t now);

#endif
