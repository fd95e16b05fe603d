/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a bench_stream_client: for bench_stream_client.c, its links and
 * memory, and bench_stream_iteration.c, its messages. */
#ifndef CAPSTAN_BENCH_STREAM_CLIENT_INTERNAL_H
#define CAPSTAN_BENCH_STREAM_CLIENT_INTERNAL_H

#include "commands/measure/bench_stream_client.h"
#include "core/net/shm/buffer.h"
#include "proto/messages/ps_links.h"

struct bench_stream_client_server {
    struct link *link; /* view */
    bool over_shm;
    uint32_t *ids,
        count;     /* blocks of the iteration's vector, in the plan's order */
    uint32_t next; /* index in `ids` of the next block to send */
    size_t in_flight;  /* bytes, and */
    uint32_t messages; /* messages not answered, the oldest, and per message */
    uint32_t oldest,
        left[BENCH_ITERATION_CREDIT_MESSAGES]; /* its blocks not answered */
    int64_t answered_at;
    int64_t logged_wait; /* start of the wait that was logged last */
};

struct bench_stream_client {
    struct bench_stream_client_settings settings;
    struct bench_stream_client_server *servers;
    struct ps_links *links;
    zmq_pollitem_t *items;
    uint64_t *clocks; /* per block */
    uint64_t seq, clock;
    struct buffer *out;
    char *in;

    /* The iteration. */
    enum bench_iteration_kind kind;
    uint32_t first, count;
    uint64_t sent, answered; /* blocks */
    bool vector_sent;        /* a vector has been sent completely */
};

/* Follows the wait for ps P, which lasts since SINCE, at NOW: logs it once,
 * after a few seconds. STATUS_RETRY naming the ps: its time is up. */
enum status bench_stream_client_check_wait(struct bench_stream_client *client,
                                           uint32_t p, int64_t since,
                                           int64_t now, struct failure *why);

#endif
