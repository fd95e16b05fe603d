/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the plan's blocks a ps holds, and whether a message fits them. */
#ifndef CAPSTAN_HOLDING_H
#define CAPSTAN_HOLDING_H

#include "proto/config/job/job.h"
#include "proto/net/messages/message.h"
#include "proto/tensor/layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HOLDING_NOT_MINE UINT32_MAX

/* Borrows LAYOUT. */
struct holding {
    const struct layout *layout;
    enum job_wire wire;
    uint32_t *local; /* of the plan's block: mine, or HOLDING_NOT_MINE */
};

/* Local block i is the plan's block IDS[i], ascending. False: no memory. */
bool holding_open(struct holding *holding, const struct layout *layout,
                  const uint32_t *ids, uint32_t num_blocks, enum job_wire wire);

/* Frees the map; an empty struct may be closed too. */
void holding_close(struct holding *holding);

/* NULL when HEADER's blocks are mine, its encoding is theirs and PAYLOAD bytes
 * are their size, else what is wrong. Its blocks become local numbers. */
const char *holding_check(const struct holding *holding,
                          Capstan__DataHeader *header, size_t payload);

#endif
