/* SPDX-License-Identifier: Apache-2.0 */
/* Selects the samples that a trainer reads, as torch's DistributedSampler: an
 * epoch's order is a permutation by (seed, epoch), or file order; rank r of n
 * takes r, r+n, r+2n, ..., wrapped so that all have ceil(N / n). */
#ifndef CAPSTAN_SAMPLER_H
#define CAPSTAN_SAMPLER_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Datasets that are not in memory cut shares by trainers, and those by devices;
 * the sampler does not know `device` and `epoch_batches`. */
struct sampler_options {
    uint32_t num_samples; /* N > 0; a dataset sets its own */
    uint32_t rank, num_ranks;
    uint32_t device, num_devices; /* of the trainer; 0 of 0: it has one */
    uint32_t micro_batch;
    uint64_t epoch_batches; /* of the plan; 0: as many as the share has */
    uint64_t seed;
    bool shuffle;
    bool drop_last; /* an epoch's short last batch is dropped */
};

struct sampler;

/* STATUS_CONFIG when a count is 0 or an epoch has no batch. */
enum status sampler_open(struct sampler **out,
                         const struct sampler_options *options,
                         struct failure *why) MUST_CHECK;

/* Frees *SAMPLER (may be NULL) and clears it. */
void sampler_close(struct sampler **sampler);

/* Micro batches of one epoch of this rank. */
uint64_t sampler_batches_per_epoch(const struct sampler *sampler);

/* The samples of micro batch BATCH, counted from the start of the run (epoch =
 * BATCH / batches per epoch). INDICES has room for micro_batch; returns how
 * many, at least 1. The result does not depend on the order of calls. */
uint32_t sampler_batch(struct sampler *sampler, uint64_t batch,
                       uint32_t *indices);

#endif
