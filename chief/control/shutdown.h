/* SPDX-License-Identifier: Apache-2.0 */
/* How a run ends: trainers leave the loop; the last evaluation, checkpoint and
 * export follow; then the stop order and the goodbyes. Handles signals too. */
#ifndef CAPSTAN_SHUTDOWN_H
#define CAPSTAN_SHUTDOWN_H

#include "chief/control/roster.h"
#include "proto/base/status.h"
#include "proto/net/messages/message.h"

#include <stdbool.h>
#include <stdint.h>

struct run;

struct run_shutdown {
    enum status interrupted;       /* status of a signal here or at a ps */
    int64_t grace_deadline;        /* end of timeouts.grace */
    bool final_snapshot_requested; /* the last snapshot was requested */
};

/* SLOT's holder has left the training loop, says goodbye, or has failed. */
void shutdown_receive_left(struct run *run, struct roster_slot *slot,
                           const Capstan__Left *left);

/* SLOT's holder has received the stop order and leaves. */
void shutdown_receive_goodbye(struct run *run, struct roster_slot *slot);

/* A signal arrived here or at a ps: the run writes one checkpoint within
 * timeouts.grace and ends. A second signal ends it at once. */
void shutdown_interrupt(struct run *run, enum status status);

/* Advances the shutdown by one step. */
void shutdown_step(struct run *run, int64_t now);

#endif
