/* SPDX-License-Identifier: Apache-2.0 */
/* Sets the first weights and state of a shard on a thread of its own, by the
 * seed or from a checkpoint: for gigabytes this takes longer than a ps may be
 * silent. */
#ifndef CAPSTAN_SHARD_INIT_H
#define CAPSTAN_SHARD_INIT_H

#include "proto/base/status.h"
#include "ps/dense/shard.h"

#include <stdbool.h>
#include <stdint.h>

/* All borrowed until shard_init_close; no other thread touches SHARD until
 * then. */
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

/* Stops the thread at the next block, joins it and clears *SHARD_INIT (may be
 * NULL). */
void shard_init_close(struct shard_init **shard_init);

/* Readable once it is done. */
int shard_init_descriptor(const struct shard_init *shard_init);

/* True once, when it is done; STATUS, with WHY, is then the result. */
bool shard_init_done(struct shard_init *shard_init, enum status *status,
                     struct failure *why);

#endif
