/* SPDX-License-Identifier: Apache-2.0 */
/* Outgoing messages of a ps: weights, batched by request; acks, batched across
 * requests; and single messages. */
#ifndef CAPSTAN_REPLY_QUEUE_H
#define CAPSTAN_REPLY_QUEUE_H

#include "core/net/link/link.h"
#include "proto/messages/member.h"
#include "proto/messages/message.h"
#include "ps/consistency/update_core.h"
#include "ps/units/shard.h"

#include <stdbool.h>
#include <stdint.h>

/* All pointers are borrowed. */
struct reply_queue_settings {
    struct link *link;
    const struct process *process; /* borrowed */
    const struct shard *shard;
    const uint32_t *ids; /* plan's number of each block of the shard, then of
                            each partition */
    enum job_wire wire;  /* encoding of weights in messages */
    bool same_weights; /* all ranks read the same versions (synchronous rounds)
                        */
    bool tells_rounds; /* weights bring the version of their blocks */
    uint32_t num_ranks;
};

struct reply_queue;

/* NULL: no memory. */
struct reply_queue *reply_queue_open(
    const struct reply_queue_settings *settings);

/* Drops pending replies and clears *QUEUE. */
void reply_queue_close(struct reply_queue **queue);

/* Replies to RANK go to PEER from now on: its newest connection. */
void reply_queue_set_peer(struct reply_queue *queue, uint32_t rank,
                          uint32_t peer);

/* A buffer for BYTES of a reply, which a reader on this host maps while there
 * is room for it; NULL: no memory. */
struct buffer *reply_queue_take_buffer(struct reply_queue *queue, size_t bytes);

/* Queues WEIGHTS (taken; MEAN: gradients in their place) of REPLY's block for
 * its rank. They are sent at the latest by reply_queue_flush. */
void reply_queue_put_weights(struct reply_queue *queue,
                             const struct update_core_action *reply,
                             struct buffer *weights, bool mean);

/* Queues an ack: the block's gradient is accepted, no weights are sent. Batched
 * acks carry the request and clock of the last one. MEAN: the round had no
 * bytes; batched only with others of its clock. */
void reply_queue_put_ack(struct reply_queue *queue,
                         const struct update_core_action *reply, bool mean);

/* Sends everything pending, or all that is for RANK. */
void reply_queue_flush(struct reply_queue *queue);
void reply_queue_flush_rank(struct reply_queue *queue, uint32_t rank);

/* Sends pending weights, and acks that cover at least 64 KiB of gradients.
 * Smaller ack batches stay queued. */
void reply_queue_flush_ready(struct reply_queue *queue);

/* What the replies say of update_core_brought. */
void reply_queue_set_brought(struct reply_queue *queue, uint64_t version);

/* Sets the version of the plan's first block, sent in every weights reply; 0:
 * the block is on another ps. */
void reply_queue_set_step(struct reply_queue *queue, uint64_t step);

/* Sets the round of a requested snapshot (update_core_due) and the lowest live
 * rank, sent in every reply. */
void reply_queue_set_due(struct reply_queue *queue, uint64_t round,
                         uint32_t lead);

/* Sets the header's fields of the same names, as the lead has last sent them.
 */
void reply_queue_set_epoch(struct reply_queue *queue, uint64_t epoch,
                           uint64_t first);

/* Sets the loss scale and the number of skipped steps of the plan's first
 * block, sent with its step. */
void reply_queue_set_scaler(struct reply_queue *queue, double scale,
                            uint64_t skipped);

/* Sends HEADER, with run and sender filled in, and PAYLOAD (taken; NULL: none)
 * to PEER. A lost connection is no error: the peer retries. */
void reply_queue_send(struct reply_queue *queue, uint32_t peer,
                      Capstan__DataHeader *header,
                      struct link_payload *payload);

/* Sends HEADER, with run and sender filled in, to RANK's newest connection. */
void reply_queue_send_to(struct reply_queue *queue, uint32_t rank,
                         Capstan__DataHeader *header);

/* Sends HEADER to a peer that may be unknown, without run or sender. Dropped
 * while too many earlier ones are unread (link_reply). */
void reply_queue_refuse(struct reply_queue *queue, uint32_t peer,
                        Capstan__DataHeader *header);

#endif
