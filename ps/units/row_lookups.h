/* SPDX-License-Identifier: Apache-2.0 */
/* The LOOKUP messages of trainers, kept until all their partitions have been
 * read: each partition may become readable at another time, one answer has them
 * all. A newer lookup of a rank replaces an older one in the partitions that it
 * names; the older one is then never answered.
 *
 * A trainer mostly pushes the rows that it has looked up, so the last lookups
 * of a rank are remembered: a push with the same list needs not be read again,
 * and its rows' numbers are known. One thread calls. */
#ifndef CAPSTAN_ROW_LOOKUPS_H
#define CAPSTAN_ROW_LOOKUPS_H

#include "core/net/shm/buffer.h"
#include "proto/holder/row_shard.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct row_lookups;

/* What a lookup reads of one partition, and where the floats go. */
struct row_lookup_part {
    uint32_t block; /* as in the message's answer */
    uint32_t p;
    const char *bytes; /* [list.size], of the lookup's */
    struct row_list list;
    uint32_t at; /* of the answer's floats */
};

struct row_lookup {
    struct row_lookup *next;
    uint32_t peer, rank;
    uint64_t seq, clock;
    uint32_t num_parts, num_read;
    uint32_t open_parts; /* that wait or are being read: into the floats */
    unsigned references; /* of cells, rows remembered, work in progress */
    size_t rows;         /* of all parts */
    char *bytes;         /* [room_bytes]: the message's lists */
    size_t room_bytes;
    struct buffer *floats;
    struct row_lookup_part *parts; /* [room], by ascending p */
    uint32_t room;
};

/* For NUM_PARTITIONS of a ps. NULL: no memory. */
struct row_lookups *row_lookups_open(uint32_t num_partitions,
                                     uint32_t num_ranks);

/* Frees all and clears *LOOKUPS (may be NULL). */
void row_lookups_close(struct row_lookups **lookups);

/* A lookup for NUM_PARTS parts, which the caller fills, of a message with the
 * lists BYTES [SIZE], which are copied; NULL: no memory. It is freed by
 * row_lookups_drop. */
struct row_lookup *row_lookups_new(struct row_lookups *lookups,
                                   uint32_t num_parts, const void *bytes,
                                   size_t size);

/* LOOKUP, filled, becomes one of the last of its rank. */
void row_lookups_remember(struct row_lookups *lookups,
                          struct row_lookup *lookup);

/* One of the last lookups of RANK with just the list of PUSHED, of partition P;
 * *PART: its number there, and at first a guess of it. NULL: none. Whoever does
 * not use it at once holds it. */
struct row_lookup *row_lookups_find(const struct row_lookups *lookups,
                                    uint32_t rank, uint32_t p,
                                    const struct row_part *pushed,
                                    uint32_t *part);

/* Another use of LOOKUP, ended by row_lookups_drop. */
struct row_lookup *row_lookups_hold(struct row_lookup *lookup);

/* LOOKUP waits for partition P; its part there has number PART. */
void row_lookups_wait(struct row_lookups *lookups, struct row_lookup *lookup,
                      uint32_t p, uint32_t part);

/* The lookup of RANK with number SEQ that waits for partition P, and its PART
 * there; it waits no more. NULL: it has been replaced. The caller drops it. */
struct row_lookup *row_lookups_take(struct row_lookups *lookups, uint32_t p,
                                    uint32_t rank, uint64_t seq,
                                    uint32_t *part);

/* A part of LOOKUP that has waited has been read, or never will be. The last
 * one releases the floats, as a remembered lookup may live long. */
void row_lookups_end_part(struct row_lookup *lookup);

/* Ends the use of LOOKUP by its creator or taker. */
void row_lookups_drop(struct row_lookups *lookups, struct row_lookup *lookup);

#endif
