/* SPDX-License-Identifier: Apache-2.0 */
/* How a run ends: trainers leave the loop; the last evaluation, checkpoint and
 * export follow; then the stop order and the goodbyes. Handles signals too. */
#ifndef CAPSTAN_SHUTDOWN_H
#define CAPSTAN_SHUTDOWN_H

#include "chief/control/roster.h"
#include "core/base/status.h"
#include "proto/messages/message.h"

#include <stdbool.h>
#include <stdint.h>

struct run;

struct run_shutdown {
    enum failure_code interrupted; /* by a signal here, or for REASON */
    char reason[640];
    uint64_t interrupted_step;     /* the run's step then */
    int64_t grace_deadline;        /* end of timeouts.grace */
    bool final_snapshot_requested; /* the last snapshot was requested */
    bool is_ordered;               /* the stop order was sent */
};

/* SLOT's trainer has left the training loop. */
void shutdown_receive_finished(struct run *run, struct roster_slot *slot,
                               const Capstan__Finished *finished);

/* SLOT's member cannot go on, which ends the run unless it is a joiner. In
 * all-reduce it may have lost a peer: then the peer is looked for first. */
void shutdown_receive_failed(struct run *run, struct roster_slot *slot,
                             const Capstan__Failed *failed);

/* SLOT's member waits for a last checkpoint. */
void shutdown_receive_interrupted(struct run *run,
                                  const struct roster_slot *slot,
                                  const Capstan__Interrupted *interrupted);

/* SLOT's member leaves, after the stop order or of its own accord. */
void shutdown_receive_goodbye(struct run *run, struct roster_slot *slot);

/* A signal arrived here or at a ps, or a ps has another REASON: the run writes
 * one checkpoint within timeouts.grace (timeouts.step without a signal) and
 * ends with CODE. A second signal ends it at once. */
void shutdown_interrupt(struct run *run, enum failure_code code,
                        const char *reason);

enum { SHUTDOWN_END_TEXT = 2048 /* bytes */ };

/* Writes why RUN ends to TEXT; behind it, of a resumable run, what the same
 * command does, unless a checkpoint may still be completed. */
void shutdown_end_text(const struct run *run, char *text, size_t size);

/* Sends the stop order of a run that is stopped, and advances its shutdown by
 * one step. */
void shutdown_step(struct run *run, int64_t now);

#endif
