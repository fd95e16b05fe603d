/* SPDX-License-Identifier: Apache-2.0 */
/* Reader threads that prepare micro batches ahead of the trainer. The batches
 * do not depend on the number of readers or the depth. */
#ifndef CAPSTAN_LOADER_H
#define CAPSTAN_LOADER_H

#include "proto/base/status.h"
#include "worker/data/dataset.h"
#include "worker/data/sampler.h"

#include <stddef.h>
#include <stdint.h>

/* inputs [count, features], labels [count]. */
struct loader_batch {
    uint64_t number; /* micro batch number from the start of the run */
    uint32_t count;
    const float *inputs;
    const uint32_t *labels;
};

struct loader;

/* As torch's num_workers and prefetch_factor: each reader is DEPTH (>= 1)
 * batches ahead; without readers (0) a batch is prepared when it is
 * requested. */
struct loader_prefetch {
    uint32_t readers, depth;
};

/* Borrows DATASET; has its own sampler by OPTIONS. Delivers micro batches
 * FIRST, FIRST + 1, ... */
enum status loader_open(struct loader **out, const struct dataset *dataset,
                        const struct sampler_options *options, uint64_t first,
                        struct loader_prefetch prefetch,
                        struct failure *why) MUST_CHECK;
void loader_close(struct loader **loader); /* stops and joins the threads */

/* All memory of the batches, in whole pages; a view. */
void *loader_memory(const struct loader *loader, size_t *bytes);

/* The next batch, a view until the next call; waits for its reader. */
const struct loader_batch *loader_next(struct loader *loader);

#endif
