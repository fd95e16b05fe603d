/* SPDX-License-Identifier: Apache-2.0 */
/* Sets the first weights and state of a shard, by the seed or from a
 * checkpoint. For gigabytes this takes longer than a ps may be silent, so a
 * background task does it; until that is closed, it alone touches the shard. */
#ifndef CAPSTAN_SHARD_INIT_H
#define CAPSTAN_SHARD_INIT_H

#include "core/base/status.h"
#include "ps/units/units.h"

#include <stdint.h>

/* All borrowed. */
struct shard_init {
    struct units units;
    uint64_t seed;
    const char *folder, *manifest; /* of a checkpoint; NULL: by the seed */
    const char *base;              /* its base's manifest; NULL: no delta */
    struct shard_copy {
        int fd;   /* without a folder: the file of a part, in memory, */
        int base; /* that of its base, if there is one, */
    } copy;
    uint32_t part; /* and which of the manifest's it is: its units are set */
    const uint32_t *ids;  /* of the units, in the layout */
    uint64_t *rule_steps; /* of these, from the checkpoint */
};

/* A background_task_function; CONTEXT is a struct shard_init. It stops at the
 * next block when CANCEL is readable. */
enum status shard_init_run(void *context, int cancel,
                           struct failure *why) MUST_CHECK;

#endif
