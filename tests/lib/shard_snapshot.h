/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of a shard without an agent, for tests of those who read them. */
#ifndef CAPSTAN_SHARD_SNAPSHOT_H
#define CAPSTAN_SHARD_SNAPSHOT_H

#include "proto/holder/snapshots.h"
#include "ps/units/shard.h"

/* Snapshots of SHARD, whose blocks are IDS of LAYOUT. */
struct snapshots *shard_snapshot_open(const struct shard *shard,
                                      const struct layout *layout,
                                      const uint32_t *ids);

/* Holds all blocks of SHARD as they are as snapshot ID, to be read. */
void shard_snapshot_take(struct snapshots *snapshots, uint64_t id,
                         const struct shard *shard);

#endif
