/* SPDX-License-Identifier: Apache-2.0 */
/* The LOOKUP messages of trainers, kept until all their partitions have been
 * read: each partition may become readable at another time, one answer has them
 * all. A newer lookup of a rank replaces an older one in the partitions that it
 * names; the older one is then never answered. One thread calls. */
#ifndef CAPSTAN_ROW_LOOKUPS_H
#define CAPSTAN_ROW_LOOKUPS_H

#include "proto/net/messages/data.pb-c.h"
#include "proto/net/shm/buffer.h"
#include "ps/dense/gradient_inbox.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct row_lookups;

/* What a lookup reads of one partition, and where the floats go. */
struct row_lookup_part {
    uint32_t block;    /* as in the message's answer */
    const void *bytes; /* the lists: row_keys.h */
    uint32_t size;
    uint32_t floats, at; /* of the answer */
};

struct row_lookup {
    struct row_lookup *next;
    uint32_t peer, rank;
    uint64_t seq, clock;
    uint32_t num_parts, num_read;
    unsigned references; /* of cells and of work in progress */
    struct gradient_payload *payload;
    struct buffer *floats;
    struct row_lookup_part *parts; /* [room] */
    uint32_t room;
};

/* For NUM_PARTITIONS of a ps. NULL: no memory. */
struct row_lookups *row_lookups_open(uint32_t num_partitions,
                                     uint32_t num_ranks,
                                     struct gradient_inbox *inbox);

/* Frees all and clears *LOOKUPS (may be NULL). */
void row_lookups_close(struct row_lookups **lookups);

/* A lookup for NUM_PARTS parts, which the caller fills; NULL: no memory. It is
 * freed by row_lookups_drop. */
struct row_lookup *row_lookups_new(struct row_lookups *lookups,
                                   uint32_t num_parts);

/* LOOKUP waits for partition P; its part there has number PART. */
void row_lookups_wait(struct row_lookups *lookups, struct row_lookup *lookup,
                      uint32_t p, uint32_t part);

/* The lookup of RANK with number SEQ that waits for partition P, and its PART
 * there; it waits no more. NULL: it has been replaced. The caller drops it. */
struct row_lookup *row_lookups_take(struct row_lookups *lookups, uint32_t p,
                                    uint32_t rank, uint64_t seq,
                                    uint32_t *part);

/* Ends the use of LOOKUP by its creator or taker. */
void row_lookups_drop(struct row_lookups *lookups, struct row_lookup *lookup);

#endif
