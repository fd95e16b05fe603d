/* SPDX-License-Identifier: Apache-2.0 */
/* Readers claim batches in order and fill them in any order; the consumer takes
 * them in order. Two locks: `mutex` guards the counters, `sampler_mutex` the
 * sampler, which draws an epoch's order once for all readers. Neither is held
 * while samples are converted, and never both. */
#include "worker/data/loader.h"

#include "proto/config/byte_size.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

enum { ALIGNMENT = 64, PAGE = 4096 };

struct slot {
    struct loader_batch batch; /* as loader_next returns it */
    float *inputs;             /* [micro_batch, features] */
    uint32_t *labels;          /* [micro_batch] */
    uint64_t completed;        /* 1 + the number of the complete batch in it */
};

struct reader {
    struct loader *loader;
    pthread_t thread;
    uint32_t *indices; /* [micro_batch] */
};

/* A ring of depth + 1 slots: the viewed batch and up to depth ahead of it. Only
 * the reader that has claimed a batch touches its slot. Batches are counted
 * from 0 since the loader opened. */
struct loader {
    const struct dataset *dataset;
    struct slot *slots;
    void *memory; /* of all slots */
    size_t bytes;
    uint32_t depth; /* of all readers together; 0: no threads */
    uint64_t first;
    /* At least one, which has no thread if depth is 0. */
    struct reader *readers;
    uint32_t num_readers, started;

    /* Guards the sampler, which caches an epoch. */
    pthread_mutex_t sampler_mutex;
    struct sampler *sampler;

    pthread_mutex_t mutex;
    pthread_cond_t changed; /* a slot's `completed`, or a counter below */
    uint64_t claimed, consumed;
    bool stopping;
};

static struct slot *loader_slot_of(struct loader *loader, uint64_t batch) {
    return &loader->slots[batch % ((uint64_t)loader->depth + 1)];
}

static void loader_fill(const struct reader *reader, uint64_t batch) {
    struct loader *loader = reader->loader;
    struct slot *slot = loader_slot_of(loader, batch);
    size_t features = loader->dataset->features;
    slot->batch.number = loader->first + batch;
    pthread_mutex_lock(&loader->sampler_mutex);
    slot->batch.count =
        sampler_batch(loader->sampler, slot->batch.number, reader->indices);
    pthread_mutex_unlock(&loader->sampler_mutex);
    for (uint32_t i = 0; i < slot->batch.count; i++)
        slot->labels[i] = dataset_sample(loader->dataset, reader->indices[i],
                                         slot->inputs + i * features);
}

/* Waits for a free slot; false: the loader is closing. */
static bool claim_batch(struct loader *loader, uint64_t *batch) {
    pthread_mutex_lock(&loader->mutex);
    while (!loader->stopping &&
           loader->claimed - loader->consumed >= loader->depth)
        pthread_cond_wait(&loader->changed, &loader->mutex);
    bool go_on = !loader->stopping;
    *batch = loader->claimed;
    loader->claimed += go_on;
    pthread_mutex_unlock(&loader->mutex);
    return go_on;
}

static void *run_reader(void *argument) {
    const struct reader *reader = argument;
    struct loader *loader = reader->loader;
    uint64_t batch;
    while (claim_batch(loader, &batch)) {
        loader_fill(reader, batch);
        pthread_mutex_lock(&loader->mutex);
        loader_slot_of(loader, batch)->completed = batch + 1;
        pthread_cond_broadcast(&loader->changed);
        pthread_mutex_unlock(&loader->mutex);
    }
    return NULL;
}

/* Slots are adjacent, each at a multiple of 64 bytes: inputs, then labels. */
static void place_slots(struct loader *loader, size_t values, size_t stride) {
    for (size_t i = 0; i <= loader->depth; i++) {
        struct slot *slot = &loader->slots[i];
        slot->inputs = (float *)((char *)loader->memory + i * stride);
        slot->labels = (uint32_t *)(slot->inputs + values);
        slot->batch.inputs = slot->inputs;
        slot->batch.labels = slot->labels;
    }
}

static enum status loader_no_memory(const struct loader *loader,
                                    size_t micro_batch, struct failure *why) {
    char bytes[16];
    byte_size_text(loader->bytes, bytes, sizeof bytes);
    return status_fail(
        why, FAILURE_TOO_LITTLE_MEMORY,
        "no memory for %zu batches of %zu samples read ahead, %s: lower "
        "data.prefetch_factor or data.num_workers, or halve "
        "train_micro_batch_size_per_gpu and double "
        "gradient_accumulation_steps",
        (size_t)loader->depth + 1, micro_batch, bytes);
}

static enum status allocate_slots(struct loader *loader, size_t micro_batch,
                                  struct failure *why) {
    size_t num_slots = (size_t)loader->depth + 1;
    size_t values = micro_batch * loader->dataset->features;
    size_t stride = values * sizeof(float) + micro_batch * sizeof(uint32_t);
    stride = (stride + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    loader->bytes = (num_slots * stride + PAGE - 1) / PAGE * PAGE;
    loader->slots = calloc(num_slots, sizeof *loader->slots);
    loader->memory = aligned_alloc(PAGE, loader->bytes);
    if (!loader->slots || !loader->memory)
        return loader_no_memory(loader, micro_batch, why);
    place_slots(loader, values, stride);
    return STATUS_OK;
}

static enum status allocate_readers(struct loader *loader, size_t micro_batch,
                                    struct failure *why) {
    loader->readers = calloc(loader->num_readers, sizeof *loader->readers);
    bool complete = loader->readers;
    for (uint32_t r = 0; complete && r < loader->num_readers; r++) {
        struct reader *reader = &loader->readers[r];
        reader->loader = loader;
        reader->indices = calloc(micro_batch, sizeof *reader->indices);
        complete = reader->indices;
    }
    return complete ? STATUS_OK : loader_no_memory(loader, micro_batch, why);
}

static enum status loader_start(struct loader *loader, struct failure *why) {
    if (!loader->depth)
        return STATUS_OK;
    for (; loader->started < loader->num_readers; loader->started++) {
        struct reader *reader = &loader->readers[loader->started];
        int error = pthread_create(&reader->thread, NULL, run_reader, reader);
        if (error)
            return status_errno(why, FAILURE_SYSTEM_REFUSED, error,
                                "cannot start a thread that reads data "
                                "(data.num_workers)");
    }
    return STATUS_OK;
}

static void loader_stop(struct loader *loader) {
    pthread_mutex_lock(&loader->mutex);
    loader->stopping = true;
    pthread_cond_broadcast(&loader->changed);
    pthread_mutex_unlock(&loader->mutex);
    for (uint32_t r = 0; r < loader->started; r++)
        pthread_join(loader->readers[r].thread, NULL);
}

void loader_close(struct loader **where) {
    struct loader *loader = where ? *where : NULL;
    if (!loader)
        return;
    loader_stop(loader);
    for (uint32_t r = 0; loader->readers && r < loader->num_readers; r++)
        free(loader->readers[r].indices);
    free(loader->memory);
    free(loader->slots);
    free(loader->readers);
    sampler_close(&loader->sampler);
    pthread_cond_destroy(&loader->changed);
    pthread_mutex_destroy(&loader->mutex);
    pthread_mutex_destroy(&loader->sampler_mutex);
    free(loader);
    *where = NULL;
}

enum status loader_open(struct loader **out, const struct dataset *dataset,
                        const struct sampler_options *options, uint64_t first,
                        struct loader_prefetch prefetch, struct failure *why) {
    struct loader *loader = calloc(1, sizeof *loader);
    *out = NULL;
    if (!loader)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a loader");
    loader->dataset = dataset;
    loader->num_readers = prefetch.readers ? prefetch.readers : 1;
    loader->depth = prefetch.readers * prefetch.depth;
    loader->first = first;
    pthread_mutex_init(&loader->sampler_mutex, NULL);
    pthread_mutex_init(&loader->mutex, NULL);
    pthread_cond_init(&loader->changed, NULL);
    enum status status = sampler_open(&loader->sampler, options, why);
    if (!status)
        status = allocate_slots(loader, options->micro_batch, why);
    if (!status)
        status = allocate_readers(loader, options->micro_batch, why);
    if (!status)
        status = loader_start(loader, why);
    if (status)
        loader_close(&loader);
    *out = loader;
    return status;
}

void *loader_memory(const struct loader *loader, size_t *bytes) {
    *bytes = loader->bytes;
    return loader->memory;
}

/* Counting this batch as consumed releases the previous slot: its view ends
 * with this call. */
const struct loader_batch *loader_next(struct loader *loader) {
    if (!loader->depth)
        loader_fill(loader->readers, loader->consumed);
    pthread_mutex_lock(&loader->mutex);
    uint64_t batch = loader->consumed;
    struct slot *slot = loader_slot_of(loader, batch);
    while (loader->depth && slot->completed != batch + 1)
        pthread_cond_wait(&loader->changed, &loader->mutex);
    loader->consumed++;
    pthread_cond_broadcast(&loader->changed);
    pthread_mutex_unlock(&loader->mutex);
    return &slot->batch;
}
