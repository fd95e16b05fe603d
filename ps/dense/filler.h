/* SPDX-License-Identifier: Apache-2.0 */
/* Sets the first weights and state of a shard on a thread of its own, by the
 * seed or from a checkpoint: gigabytes take longer than a ps may be silent. */
#ifndef CAPSTAN_FILLER_H
#define CAPSTAN_FILLER_H

#include "proto/base/status.h"
#include "ps/dense/shard.h"

#include <stdbool.h>
#include <stdint.h>

/* All borrowed until the filler closes; nobody else touches SHARD till then. */
struct filler_settings {
    struct shard *shard;
    uint64_t seed;
    const char *folder, *manifest; /* of a checkpoint; NULL: by the seed */
};

struct filler;

/* Starts the thread. */
enum status filler_open(struct filler **out,
                        const struct filler_settings *settings,
                        struct failure *why) MUST_CHECK;

/* Stops it at the next block, waits for its end and clears *FILLER (may be
 * NULL). */
void filler_close(struct filler **filler);

/* Polls readable once it is done. */
int filler_descriptor(const struct filler *filler);

/* Is all set? Then STATUS, with WHY, is how it went. */
bool filler_done(struct filler *filler, enum status *status,
                 struct failure *why);

#endif
