/* SPDX-License-Identifier: Apache-2.0 */
/* The units of one ps: the blocks of its shard, then its partitions. */
#ifndef CAPSTAN_UNITS_H
#define CAPSTAN_UNITS_H

#include "proto/holder/row_shard.h"
#include "ps/units/shard.h"

struct units {
    struct shard *shard;
    struct row_shard *rows; /* NULL: there are no tables */
};

static inline uint32_t units_count(const struct units *units) {
    return shard_blocks(units->shard) +
           (units->rows ? row_shard_partitions(units->rows) : 0);
}

/* Unit B, by its number on this ps. */
static inline struct unit units_find(const struct units *units, uint32_t b) {
    uint32_t blocks = shard_blocks(units->shard);
    return b < blocks
               ? (struct unit){&shard_units, units->shard, b}
               : (struct unit){&row_shard_units, units->rows, b - blocks};
}

#endif
