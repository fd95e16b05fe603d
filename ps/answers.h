/* SPDX-License-Identifier: Apache-2.0 */
/* What a ps sends: weights to trainers, several blocks together where they are
 * answers to one request; receipts, of several requests together; and single
 * words. */
#ifndef CAPSTAN_ANSWERS_H
#define CAPSTAN_ANSWERS_H

#include "proto/net/link/link.h"
#include "proto/net/messages/message.h"
#include "ps/consistency/exchange.h"
#include "ps/dense/shard.h"

#include <stdbool.h>
#include <stdint.h>

/* All pointers are borrowed. */
struct answers_settings {
    struct link *link;
    uint64_t run, incarnation; /* in every header */
    const struct shard *shard;
    const uint32_t *ids; /* plan's number of each of the shard's blocks */
    enum job_wire wire;  /* what weights leave in */
    const struct rule_loops *loops; /* to convert by; NULL: the best */
    bool alike; /* several readers are due the same blocks, as in rounds */
    uint32_t num_ranks;
};

struct answers;

/* NULL: no memory. */
struct answers *answers_open(const struct answers_settings *settings);

/* Drops what is due and clears *ANSWERS. */
void answers_close(struct answers **answers);

/* RANK is reached by PEER from now on: its newest connection. */
void answers_meet(struct answers *answers, uint32_t rank, uint32_t peer);

/* The WEIGHTS (taken) of REPLY's block are due to its rank. They leave by
 * answers_flush at the latest. */
void answers_weights(struct answers *answers,
                     const struct exchange_action *reply,
                     struct buffer *weights);

/* The same without the weights: the rank is told that its gradient counts, with
 * the clock of the last of those told together. */
void answers_taken(struct answers *answers,
                   const struct exchange_action *reply);

/* Sends what is due. */
void answers_flush(struct answers *answers);

/* The same, but receipts for less than 64 KiB of gradients wait for more. */
void answers_flush_most(struct answers *answers);

/* The update number of the plan's first block, told in every answer of
 * weights; 0: it is not here. */
void answers_step(struct answers *answers, uint64_t step);

/* The loss scale and the skipped steps of the plan's first block, told with its
 * step. */
void answers_scaler(struct answers *answers, double scale, uint64_t skipped);

/* Sends HEADER, whose run and sender are filled in, and PAYLOAD (taken; NULL:
 * none) to PEER. A peer that is gone is no error: it asks again. */
void answers_send(struct answers *answers, uint32_t peer,
                  Capstan__DataHeader *header, struct link_payload *payload);

/* The same to who may be a stranger: it is told neither run nor sender, and
 * nothing while it does not read what it was told before. */
void answers_refuse(struct answers *answers, uint32_t peer,
                    Capstan__DataHeader *header);

#endif
