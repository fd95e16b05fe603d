/* SPDX-License-Identifier: Apache-2.0 */
/* Sets the first weights and state of a shard on a thread of its own, by the
 * seed or from a checkpoint: gigabytes take longer than a ps may be silent. */
#ifndef CAPSTAN_SHARD_INIT_H
#define CAPSTAN_SHARD_INIT_H

#include "proto/base/status.h"
#include "ps/dense/shard.h"

#include <stdbool.h>
#include <stdint.h>

/* All borrowed until the filler closes; nobody else touches SHARD till then. */
struct shard_init_settings {
    struct shard *shard;
    uint64_t seed;
    const char *folder, *manifest; /* of a checkpoint; NULL: by the seed */
};

struct shard_init;

/* Starts the thread. */
enum status shard_init_open(struct shard_init **out,
                            const struct shard_init_settings *settings,
                            struct failure *why) MUST_CHECK;

/* Stops it at the next block, waits for its end and clears *FILLER (may be
 * NULL). */
void shard_init_close(struct shard_init **shard_init);

/* Polls readable once it is done. */
int shard_init_descriptor(const struct shard_init *shard_init);

/* Is all set? Then STATUS, with WHY, is how it went. */
bool shard_init_done(struct shard_init *shard_init, enum status *status,
                     struct failure *why);

#endif
