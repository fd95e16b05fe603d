/* SPDX-License-Identifier: Apache-2.0 */
/* What a member keeps for a chief that takes the place of its own and adopts
 * the run: what it tells that one of itself, and what it has told the one that
 * is gone and no manifest has yet. Pure: messages in, messages out. */
#ifndef CAPSTAN_REJOIN_H
#define CAPSTAN_REJOIN_H

#include "proto/messages/channel.h"
#include "proto/messages/message.h"

#include <stdbool.h>
#include <stdint.h>

/* At most this many parts of checkpoints that are not complete; the oldest are
 * dropped, and their checkpoints with them. A trainer keeps something with
 * requested ones too. */
enum { REJOIN_REPORTS = 16, REJOIN_KEPT = 2 * REJOIN_REPORTS };

struct rejoin {
    uint64_t term; /* of the last chief that has adopted the run; 0: none */
    Capstan__Control *plan, *view; /* as received; NULL: not yet */
    /* The last of each as sent; NULL: it was not. */
    Capstan__Control *model_spec, *visible_devices, *finished, *sums;
    Capstan__Control *interrupted, *save_request;
    Capstan__Control *reports[REJOIN_KEPT]; /* of planned snapshots, and what
                                                  a trainer keeps with them */
    uint32_t num_reports;
    Capstan__Control *epochs[MESSAGE_EPOCHS];
    Capstan__Epoch *epoch_list[MESSAGE_EPOCHS]; /* those of `epochs` */
    uint32_t num_epochs;
    struct channel rendezvous; /* what it has set and others may still ask for:
                                  the chief may have had it and not passed it
                                  on */
    bool keeps, leads, keeps_on_order; /* with staleness, by the chief */
    uint32_t generation;
};

/* Frees what REJOIN has, not the struct. */
void rejoin_clear(struct rejoin *rejoin);

/* CONTROL was received from the chief, or is sent to it in order. Of what a
 * trainer receives its plan and views are not noted. */
void rejoin_note_received(struct rejoin *rejoin,
                          const Capstan__Control *control);
void rejoin_note_sent(struct rejoin *rejoin, const Capstan__Control *control);

/* Fills MESSAGE, which borrows from REJOIN and from HEARTBEAT. */
void rejoin_fill(const struct rejoin *rejoin, Capstan__Heartbeat *heartbeat,
                 Capstan__Rejoin *message);

/* A chief has ADOPTED the run: in place of what CHANNEL has for the one before,
 * it gets what the new one lacks. Answers to orders of the old one are dropped.
 * False: no memory for all. */
bool rejoin_begin_channel(struct rejoin *rejoin,
                          const Capstan__Adopted *adopted,
                          struct channel *channel);

#endif
