/* SPDX-License-Identifier: Apache-2.0 */
/* A set of samples and the micro batches that are drawn from it, as tables of
 * functions: one implementation for each way of storing data. */
#ifndef CAPSTAN_DATASET_H
#define CAPSTAN_DATASET_H

#include "proto/base/status.h"
#include "worker/data/batch.h"
#include "worker/data/sampler.h"

/* What one thread has claimed of a source and then fills a batch from. All
 * zero: nothing. Threads reuse it; the loader frees `memory`. */
struct batch_claim {
    uint64_t number; /* of the batch */
    uint32_t count;
    void *memory;
    size_t bytes;
};

struct batch_source; /* the implementation's own type */

struct batch_source_table {
    /* Claims the samples of the next batch, CLAIM's number: one thread at a
     * time, numbers in order from the first one on. */
    enum status (*claim)(struct batch_source *source, struct batch_claim *claim,
                         struct failure *why);

    /* Fills BATCH, whose columns have room for a micro batch, from CLAIM; by
     * several threads at once. */
    enum status (*fill)(struct batch_source *source,
                        const struct batch_claim *claim, struct batch *batch,
                        struct failure *why);

    /* Frees *SOURCE (may be NULL) and clears it. */
    void (*close)(struct batch_source **source);
};

/* An implementation's dataset begins with it. */
struct dataset {
    const struct dataset_table *table;
    uint64_t count;       /* samples */
    uint32_t features;    /* values of a sample's input */
    uint32_t num_classes; /* largest label + 1 */
};

struct dataset_table {
    const struct batch_source_table *batches;

    /* A trainer's share, by OPTIONS, from micro batch FIRST on, without end.
     * Borrows DATASET. */
    enum status (*share)(struct batch_source **out,
                         const struct dataset *dataset,
                         const struct sampler_options *options, uint64_t first,
                         struct failure *why);

    /* Samples FIRST to END - 1, in order, in batches of SIZE. Borrows
     * DATASET. */
    enum status (*range)(struct batch_source **out,
                         const struct dataset *dataset, uint64_t first,
                         uint64_t end, uint32_t size, struct failure *why);

    /* Frees *DATASET (not NULL) and clears it. */
    void (*free)(struct dataset **dataset);
};

/* Room for BYTES in CLAIM's memory; what was in it is lost. */
enum status batch_claim_reserve(struct batch_claim *claim, size_t bytes,
                                struct failure *why) MUST_CHECK;

/* Frees *DATASET (may be NULL) and clears it. */
void dataset_free(struct dataset **dataset);

#endif
