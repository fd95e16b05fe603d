/* SPDX-License-Identifier: Apache-2.0 */
/* An epoch's order is a function of seed and epoch alone, so that a trainer
 * that resumes or joins draws the same order as the others without
 * communication. */
#include "worker/data/sampler.h"

#include "core/tensor/philox.h"
#include "proto/plan/run_schedule.h"

#include <inttypes.h>
#include <stdlib.h>

/* Philox streams of epochs' orders are 2^32 + epoch; those below 2^32 are for
 * the parameters' initial weights. */
#define FIRST_STREAM (UINT64_C(1) << 32)
#define NO_EPOCH UINT64_MAX

struct sampler {
    struct sampler_options options;
    uint64_t share; /* samples of this rank in an epoch */
    uint64_t batches_per_epoch;
    uint64_t epoch;  /* the epoch that `order` holds */
    uint32_t *order; /* [num_samples]; NULL: file order */
};

static enum status sampler_check(const struct sampler_options *options,
                                 struct failure *why) {
    if (options->num_samples == 0 || options->micro_batch == 0)
        return status_fail(why, FAILURE_DATA_TOO_SMALL,
                           "found %u samples in batches of %u, expected at "
                           "least 1 of each",
                           options->num_samples, options->micro_batch);
    if (options->rank >= options->num_ranks)
        return status_fail(why, FAILURE_DATA_TOO_SMALL,
                           "found rank %u of %u trainers, expected less",
                           options->rank, options->num_ranks);
    return STATUS_OK;
}

static enum status count_batches(struct sampler *sampler, struct failure *why) {
    const struct sampler_options *options = &sampler->options;
    sampler->share =
        run_schedule_share_samples(options->num_samples, options->num_ranks);
    sampler->batches_per_epoch =
        run_schedule_share_batches(options->num_samples, options->num_ranks,
                                   options->micro_batch, options->drop_last);
    if (sampler->batches_per_epoch > 0)
        return STATUS_OK;
    return status_fail(why, FAILURE_DATA_TOO_SMALL,
                       "data.drop_last leaves no batch in an epoch: a "
                       "trainer's share is %" PRIu64 " samples (%u over %u "
                       "trainers), the micro batch %u; make "
                       "train_micro_batch_size_per_gpu %" PRIu64
                       " or less, or drop_last false",
                       sampler->share, options->num_samples, options->num_ranks,
                       options->micro_batch, sampler->share);
}

enum status sampler_open(struct sampler **out,
                         const struct sampler_options *options,
                         struct failure *why) {
    enum status status = sampler_check(options, why);
    if (status)
        return status;
    struct sampler *sampler = malloc(sizeof *sampler);
    if (!sampler)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a sampler");
    *sampler = (struct sampler){.options = *options, .epoch = NO_EPOCH};
    status = count_batches(sampler, why);
    if (status)
        goto fail;
    if (options->shuffle) {
        sampler->order = malloc(options->num_samples * sizeof(uint32_t));
        if (!sampler->order) {
            status = status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                                 "no memory for the order of %u samples",
                                 options->num_samples);
            goto fail;
        }
    }
    *out = sampler;
    return STATUS_OK;
fail:
    sampler_close(&sampler);
    return status;
}

void sampler_close(struct sampler **sampler) {
    if (!sampler || !*sampler)
        return;
    free((*sampler)->order);
    free(*sampler);
    *sampler = NULL;
}

uint64_t sampler_batches_per_epoch(const struct sampler *sampler) {
    return sampler->batches_per_epoch;
}

/* Fisher-Yates from file order: equal on every rank. */
static void shuffle(struct sampler *sampler, uint64_t epoch) {
    struct philox_sequence sequence;
    philox_sequence_open(&sequence, sampler->options.seed,
                         FIRST_STREAM + epoch);
    uint32_t *order = sampler->order;
    for (uint32_t i = 0; i < sampler->options.num_samples; i++) {
        uint32_t j = philox_below(&sequence, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    sampler->epoch = epoch;
}

uint32_t sampler_batch(struct sampler *sampler, uint64_t batch,
                       uint32_t *indices) {
    const struct sampler_options *options = &sampler->options;
    uint64_t epoch = batch / sampler->batches_per_epoch;
    if (sampler->order && sampler->epoch != epoch)
        shuffle(sampler, epoch);
    uint64_t first = batch % sampler->batches_per_epoch * options->micro_batch;
    uint64_t left = sampler->share - first;
    uint32_t count =
        left < options->micro_batch ? (uint32_t)left : options->micro_batch;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t place = options->rank + (first + i) * options->num_ranks;
        uint32_t wrapped = (uint32_t)(place % options->num_samples);
        indices[i] = sampler->order ? sampler->order[wrapped] : wrapped;
    }
    return count;
}
