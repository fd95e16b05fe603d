/* SPDX-License-Identifier: Apache-2.0 */
/* What a service is made of: for server.c, which carries out what the exchange
 * decides, and server_messages.c, which tells it what has come. */
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
                           that wants a receipt */
    struct reply_queue *reply_queue;
    struct work_items *work_items;
    struct gradient_inbox *gradient_inbox;
    double *sums; /* [num_blocks]: square sums of the round being clipped */
    uint32_t num_summed; /* of them are here */
    double norm;         /* the last that the chief has told */
    int64_t update_ns;   /* spent on updates so far, on any thread */
};

/* Tells the exchange what FRAME with HEADER brings, and answers what needs no
 * decision. NULL, or why it is refused. Blocks in HEADER become local. */
const char *server_receive(struct server *server, struct link_frame *frame,
                           Capstan__DataHeader *header);

#endif
