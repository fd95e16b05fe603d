/* A reader thread that prepares micro batches ahead of the trainer. What it
 * delivers is the same for any depth. */
#ifndef CAPSTAN_LOADER_H
#define CAPSTAN_LOADER_H

#include "proto/base/status.h"
#include "worker/dataset.h"
#include "worker/sampler.h"

#include <stddef.h>
#include <stdint.h>

/* inputs [count, features], labels [count]. */
struct loader_batch {
    uint64_t number; /* micro batch, from the start of the run */
    uint32_t count;
    const float *inputs;
    const uint32_t *labels;
};

struct loader;

/* Borrows DATASET; keeps its own sampler by OPTIONS. Delivers micro batches
 * FIRST, FIRST + 1, ...; at most DEPTH (>= 1) ahead. */
enum status loader_open(struct loader **out, const struct dataset *dataset,
                        const struct sampler_options *options, uint64_t first,
                        uint32_t depth, struct failure *why) MUST_CHECK;
void loader_close(struct loader **loader); /* stops and joins the thread */

/* All the memory that batches lie in, of whole pages; view. */
void *loader_memory(const struct loader *loader, size_t *bytes);

/* Views the next batch until the next call; waits for the reader (which waits
 * for nobody). */
const struct loader_batch *loader_next(struct loader *loader);

#endif
