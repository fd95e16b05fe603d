/* SPDX-License-Identifier: Apache-2.0 */
/* What a ps sends: weights to trainers, several blocks together where they are
 * answers to one request; receipts, of several requests together; and single
 * words. */
#ifndef CAPSTAN_REPLY_QUEUE_H
#define CAPSTAN_REPLY_QUEUE_H

#include "proto/net/link/link.h"
#include "proto/net/messages/message.h"
#include "ps/consistency/update_core.h"
#include "ps/dense/shard.h"

#include <stdbool.h>
#include <stdint.h>

/* All pointers are borrowed. */
struct reply_queue_settings {
    struct link *link;
    uint64_t run, incarnation; /* in every header */
    const struct shard *shard;
    const uint32_t *ids; /* plan's number of each of the shard's blocks */
    enum job_wire wire;  /* what weights leave in */
    const struct rule_loops *loops; /* to convert by; NULL: the best */
    bool same_weights; /* several readers are due the same blocks, as in rounds
                        */
    uint32_t num_ranks;
};

struct reply_queue;

/* NULL: no memory. */
struct reply_queue *reply_queue_open(
    const struct reply_queue_settings *settings);

/* Drops what is due and clears *ANSWERS. */
void reply_queue_close(struct reply_queue **reply_queue);

/* RANK is reached by PEER from now on: its newest connection. */
void reply_queue_set_peer(struct reply_queue *reply_queue, uint32_t rank,
                          uint32_t peer);

/* The WEIGHTS (taken) of REPLY's block are due to its rank. They leave by
 * reply_queue_flush at the latest. */
void reply_queue_put_weights(struct reply_queue *reply_queue,
                             const struct update_core_action *reply,
                             struct buffer *weights);

/* The same without the weights: the rank is told that its gradient counts, with
 * the clock of the last of those told together. */
void reply_queue_put_ack(struct reply_queue *reply_queue,
                         const struct update_core_action *reply);

/* Sends what is due. */
void reply_queue_flush(struct reply_queue *reply_queue);

/* The same, but receipts for less than 64 KiB of gradients wait for more. */
void reply_queue_flush_ready(struct reply_queue *reply_queue);

/* The update number of the plan's first block, told in every answer of
 * weights; 0: it is not here. */
void reply_queue_set_step(struct reply_queue *reply_queue, uint64_t step);

/* The loss scale and the skipped steps of the plan's first block, told with its
 * step. */
void reply_queue_set_scaler(struct reply_queue *reply_queue, double scale,
                            uint64_t skipped);

/* Sends HEADER, whose run and sender are filled in, and PAYLOAD (taken; NULL:
 * none) to PEER. A peer that is gone is no error: it asks again. */
void reply_queue_send(struct reply_queue *reply_queue, uint32_t peer,
                      Capstan__DataHeader *header,
                      struct link_payload *payload);

/* The same to who may be a stranger: it is told neither run nor sender, and
 * nothing while it does not read what it was told before. */
void reply_queue_refuse(struct reply_queue *reply_queue, uint32_t peer,
                        Capstan__DataHeader *header);

#endif
