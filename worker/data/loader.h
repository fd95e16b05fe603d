/* SPDX-License-Identifier: Apache-2.0 */
/* Reader threads that prepare micro batches ahead of the trainer. The batches
 * do not depend on the number of readers or the depth. */
#ifndef CAPSTAN_LOADER_H
#define CAPSTAN_LOADER_H

#include "core/base/status.h"
#include "worker/data/batch.h"
#include "worker/data/dataset.h"

#include <stddef.h>
#include <stdint.h>

struct loader;

/* As torch's num_workers and prefetch_factor: each reader is DEPTH (>= 1)
 * batches ahead; without readers (0) a batch is prepared when it is
 * requested. */
struct loader_prefetch {
    uint32_t readers, depth;
};

/* Borrows DATASET, whose batches have SPEC's columns. Delivers micro batches
 * FIRST, FIRST + 1, ... of its share by OPTIONS. */
enum status loader_open(struct loader **out, const struct dataset *dataset,
                        const struct batch_spec *spec,
                        const struct sampler_options *options, uint64_t first,
                        struct loader_prefetch prefetch,
                        struct failure *why) MUST_CHECK;
void loader_close(struct loader **loader); /* stops and joins the threads */

/* All memory of the batches' columns, in whole pages; a view. */
void *loader_memory(const struct loader *loader, size_t *bytes);

/* The samples of batch NUMBER, or 0 behind the end of this share's epoch. */
uint32_t loader_size(const struct loader *loader, uint64_t number);

/* The next batch, a view until the next call; waits for its reader. Fails as
 * the dataset's claim and fill. */
enum status loader_next(struct loader *loader, const struct batch **out,
                        struct failure *why) MUST_CHECK;

/* The batch that loader_next will return, if a reader has it complete: a view
 * until the next call but one. NULL: not yet, or it failed. */
const struct batch *loader_peek(struct loader *loader);

#endif
