/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a server, shared by server.c (carries out the update core's
 * actions) and server_messages.c (turns messages into its events). */
#ifndef CAPSTAN_SERVER_INTERNAL_H
#define CAPSTAN_SERVER_INTERNAL_H

#include "core/tensor/schedule.h"
#include "ps/reply_queue.h"
#include "ps/server.h"
#include "ps/units/block_index.h"
#include "ps/units/gradient_inbox.h"
#include "ps/work_item.h"

/* What one trainer has looked up for one clock. */
struct server_asked {
    uint64_t clock;
    struct server_round bytes;
};

/* The last list of it for one partition. */
struct server_asked_part {
    uint64_t clock, size, end; /* bytes, and the last 8 of them */
};

struct server {
    struct server_settings settings;
    struct update_core *update_core;
    struct units units;
    struct row_lookups *row_lookups; /* NULL: there are no tables */
    struct row_table **held_tables;  /* [num_partitions, num_stacks], of */
    uint64_t held_id;                /* this snapshot; NULL where not opened */
    struct server_asked *asked;      /* [num_ranks] */
    struct server_asked_part *asked_parts; /* [num_partitions, num_ranks] */
    struct server_round most_asked;
    struct snapshots *snapshots;
    struct schedule schedule;
    uint64_t factor_step; /* of the step that was computed last, */
    double factor;        /* the schedule's factor */
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
    /* Of assigned weights or rows that the update core has accepted. */
    enum status assigned;
    struct failure assigned_why;
};

/* Rows of tables, in server_messages.c. */
enum status server_open_rows(struct server *server,
                             struct failure *why) MUST_CHECK;
void server_close_rows(struct server *server);

/* PART of ITEM's round, pushed by RANK, has the list of a lookup if that is the
 * same; ITEM holds it. */
void server_use_lookup(struct server *server, struct work_item *item,
                       uint32_t rank, struct row_part *part);

/* Gives ITEM the lookup of its action; false: it has been replaced. */
bool server_take_lookup(struct server *server, struct work_item *item);

/* ITEM has read its part: sends the answer if it was the last. */
void server_answer_lookup(struct server *server, struct work_item *item);

/* Gives the update core the events in FRAME with HEADER, and replies to
 * messages that need no decision. Returns NULL, or why the message is refused.
 * Changes HEADER's blocks to local numbers. */
const char *server_receive(struct server *server, struct link_frame *frame,
                           Capstan__DataHeader *header);

#endif
