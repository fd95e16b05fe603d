/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the plan's units (blocks, and partitions of tables) are on this ps,
 * and whether a message's are valid. */
#ifndef CAPSTAN_BLOCK_INDEX_H
#define CAPSTAN_BLOCK_INDEX_H

#include "core/tensor/layout.h"
#include "proto/job/job.h"
#include "proto/messages/message.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BLOCK_INDEX_NOT_LOCAL UINT32_MAX

/* Borrows LAYOUT. */
struct block_index {
    const struct layout *layout;
    enum job_wire wire;
    uint32_t *local; /* by plan number; BLOCK_INDEX_NOT_LOCAL: not here */
    uint32_t sizes[MESSAGE_MAX_BLOCKS]; /* of the last message checked: bytes of
                                           each unit in its payload, */
    uint32_t assigned[MESSAGE_MAX_BLOCKS]; /* and behind them of the rows that a
                                              push sets */
};

/* Local block i is the plan's block, or partition, IDS[i], ascending. False: no
 * memory. */
bool block_index_open(struct block_index *index, const struct layout *layout,
                      const uint32_t *ids, uint32_t num_blocks,
                      enum job_wire wire);

/* Frees the map. A zeroed struct may be closed. */
void block_index_close(struct block_index *index);

/* Checks that HEADER's units are local, in order and of the kind that it is
 * about, their encoding is right and PAYLOAD bytes are their size. Returns
 * NULL, or what is wrong. Changes the units to local numbers, and sets the
 * sizes. */
const char *block_index_check(struct block_index *index,
                              Capstan__DataHeader *header, size_t payload);

#endif
