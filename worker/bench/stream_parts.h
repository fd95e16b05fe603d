/* SPDX-License-Identifier: Apache-2.0 */
/* What a stream is made of: for stream.c, its links and memory, and
 * stream_lap.c, what goes over them. */
#ifndef CAPSTAN_STREAM_PARTS_H
#define CAPSTAN_STREAM_PARTS_H

#include "proto/net/link/link.h"
#include "proto/net/messages/message.h"
#include "proto/net/shm/buffer.h"
#include "worker/bench/stream.h"

struct stream_server {
    struct link *link;
    bool lane;            /* over shared memory */
    uint32_t *ids, count; /* of the lap's vector, in the plan's order */
    uint32_t next;        /* of `ids` to be sent of this vector */
    size_t under_way;     /* bytes, and */
    uint32_t messages;    /* messages without an answer, the oldest: */
    uint32_t oldest, left[LAP_CREDIT_MESSAGES]; /* its blocks without one */
    int64_t heard;
};

struct stream {
    struct stream_settings settings;
    struct stream_server *servers;
    struct link **links; /* theirs */
    zmq_pollitem_t *items;
    uint64_t *clocks; /* of each block */
    uint64_t seq, clock;
    struct buffer *out;
    char *in;
    struct message_arena arena;
    unsigned char header[MESSAGE_MAX_HEADER];

    /* The lap. */
    enum lap_kind kind;
    uint32_t first, count;
    uint64_t sent, answered; /* blocks */
    bool between;            /* a vector is whole on its way */
};

/* Fails with the words that ps P is silent. */
enum status stream_silent(const struct stream *stream, uint32_t p,
                          struct failure *why);

#endif
