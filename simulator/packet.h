/* SPDX-License-Identifier: Apache-2.0 */
/* A message of a simulated run, and a queue of them. */
#ifndef CAPSTAN_PACKET_H
#define CAPSTAN_PACKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum packet_kind { PACKET_PUSH, PACKET_WEIGHTS, PACKET_NORM };

/* FROM and TO are processes: workers by rank, then ps. */
struct packet {
    struct packet *next;
    enum packet_kind kind;
    uint32_t from, to;
    uint64_t clock, seq;
    uint64_t bytes; /* of its blocks */
    uint32_t count;
    uint32_t blocks[];
};

struct packet_queue {
    struct packet *first, *last;
};

/* A copy of HEAD with room for COUNT blocks, copied from BLOCKS; the caller
 * frees it. NULL: no memory. */
struct packet *packet_new(const struct packet *head, const uint32_t *blocks,
                          uint32_t count);

/* Appends PACKET and takes ownership. */
void packet_queue_push(struct packet_queue *packet_queue,
                       struct packet *packet);

/* Removes the first and returns it; NULL if there is none. */
struct packet *packet_queue_pop(struct packet_queue *packet_queue);

/* Frees all packets in the queue. */
void packet_queue_clear(struct packet_queue *packet_queue);

#endif
