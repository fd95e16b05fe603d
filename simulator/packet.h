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

/* With room for COUNT blocks, those of BLOCKS; NULL: no memory. The caller's,
 * to be freed. */
struct packet *packet_new(const struct packet *head, const uint32_t *blocks,
                          uint32_t count);

/* Takes LETTER as the last. */
void packet_queue_push(struct packet_queue *packet_queue,
                       struct packet *packet);

/* Gives the first, NULL when there is none. */
struct packet *packet_queue_pop(struct packet_queue *packet_queue);

/* Frees those in it. */
void packet_queue_clear(struct packet_queue *packet_queue);

#endif
