/* SPDX-License-Identifier: Apache-2.0 */
/* The core of a worker's side of the ps protocol: which blocks go to which ps
 * now, under byte credits, and which must be queried or sent again. Pure:
 * events and times in, requests out. Blocks have the plan's numbers and always
 * leave in the plan's order, also when sent again. */
#ifndef CAPSTAN_WINDOW_H
#define CAPSTAN_WINDOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    WINDOW_MAX_BLOCKS = 1024, /* per request */
    WINDOW_MIN_FLOATS =
        16 << 10 /* a smaller gradient is announced with the next one */
};

/* Arrays are borrowed. */
struct window_settings {
    uint32_t num_blocks, num_ps;
    /* Partitions of tables: from `first_push` on their pushes, from
     * `first_lookup` on their lookups, which are pulls. Their sizes change
     * while they are idle. No request has blocks of two kinds, but a query has
     * pushes of both. 0: there are none. */
    uint32_t first_push, first_lookup;
    const uint16_t *block_ps;    /* [num_blocks] */
    const uint32_t *block_bytes; /* [num_blocks] */
    uint64_t credit;             /* bytes of gradients in flight to one ps */
    uint32_t group_bytes;        /* of one request, at least one block */
    int64_t query_after;         /* ns without an answer before a query */
    int64_t retry_after;         /* ns after a request that could not leave */
};

enum window_kind {
    WINDOW_PUSH,
    WINDOW_PUSH_ZERO,
    WINDOW_PUSH_EMPTY,
    WINDOW_PUSH_OVERFLOWED,
    WINDOW_ASSIGN, /* initial weights; sent and asked for as a push is */
    WINDOW_STORE,  /* weights that the ps wants; sent once, as it asks again */
    WINDOW_PULL,
    WINDOW_QUERY
};

struct window_request {
    enum window_kind kind;
    uint32_t ps;
    uint64_t clock;
    size_t bytes; /* total of the blocks */
    uint32_t count;
    uint32_t blocks[WINDOW_MAX_BLOCKS];
};

struct window;

/* NULL: no memory. */
struct window *window_open(const struct window_settings *settings);

/* Frees *WINDOW (may be NULL) and clears it. */
void window_close(struct window **window);

/* COUNT blocks from FIRST want this KIND at CLOCK; none of them is
 * outstanding. */
void window_enqueue(struct window *window, uint32_t first, uint32_t count,
                    enum window_kind kind, uint64_t clock);

/* The next request to send at NOW; false when there is none. */
bool window_next(struct window *window, int64_t now,
                 struct window_request *request);

/* REQUEST could not leave at NOW: its blocks wait again, and its ps gets no
 * request for retry_after. Requests to other ps continue. */
void window_requeue(struct window *window, const struct window_request *request,
                    int64_t now);

/* PS has reconnected: it is queried at once. */
void window_reconnected(struct window *window, uint32_t ps);

/* Weights of BLOCK arrived as the answer to CLOCK. True if they are outstanding
 * and must be stored; a duplicate answer returns false. */
bool window_received(struct window *window, uint32_t block, uint64_t clock,
                     int64_t now);

/* How often window_received returned true for a block of PS. */
uint64_t window_received_count(const struct window *window, uint32_t ps);

/* PS has answered a query: it is not silent. */
void window_answered(struct window *window, uint32_t ps, int64_t now);

/* PS reports that BLOCK's contribution of CLOCK is missing. */
void window_missing(struct window *window, uint32_t block, uint64_t clock);

/* BLOCK's ps wants its weights of CLOCK, which the caller has while the block's
 * push of the next clock is outstanding, and after window_settle. Sent then,
 * unless that has passed. */
void window_wanted(struct window *window, uint32_t block, uint64_t clock);

/* No push follows: the caller has the weights of each block's last push. */
void window_settle(struct window *window);

/* Number of outstanding blocks, sent or not. */
uint32_t window_outstanding(const struct window *window);

/* This process itself was suspended for PAUSE: silences that began before are
 * shortened by it. */
void window_add_pause(struct window *window, int64_t pause);

/* The ps that is silent for longest, and since when: one with blocks in flight
 * since its last answer, or one that cannot be reached. False if there is
 * none. */
bool window_silent(const struct window *window, uint32_t *ps, int64_t *since);

/* The time of the next due window_next if no event occurs. */
int64_t window_deadline(const struct window *window);

#endif
