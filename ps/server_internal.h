/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a server, shared by server.c (carries out the update core's
 * actions) and server_messages.c (turns messages into its events). */
#ifndef CAPSTAN_SERVER_INTERNAL_H
#define CAPSTAN_SERVER_INTERNAL_H

#include "proto/tensor/schedule.h"
#include "ps/dense/block_index.h"
#include "ps/dense/gradient_inbox.h"
#include "ps/reply_queue.h"
#include "ps/server.h"
#include "ps/work_item.h"

struct server {
    struct server_settings settings;
    struct update_core *update_core;
    struct shard *shard;
    struct snapshots *snapshots;
    struct schedule schedule;
    struct block_index block_index;
    uint64_t *last_ack_request; /* [num_blocks, num_ranks]: the last request
                                   that wants an ack only */
    struct reply_queue *reply_queue;
    struct work_items *work_items;
    struct gradient_inbox *gradient_inbox;
    double *sums; /* [num_blocks]: square sums of the round being clipped */
    uint32_t num_summed; /* how many of them are set */
    double norm;         /* the last norm received from the chief */
    int64_t update_ns;   /* spent on updates so far, summed over threads */
    int64_t wanted_at; /* when a trainer's weights were last asked for, or came
                        */
    bool no_memory;    /* for weights that the update core has accepted */
};

/* Gives the update core the events in FRAME with HEADER, and replies to
 * messages that need no decision. Returns NULL, or why the message is refused.
 * Changes HEADER's blocks to local numbers. */
const char *server_receive(struct server *server, struct link_frame *frame,
                           Capstan__DataHeader *header);

#endif
