#include "worker/loader.h"

#include "proto/conf/byte_size.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

enum { ALIGNMENT = 64, PAGE = 4096 };

struct slot {
    struct loader_batch batch; /* as its viewer sees it */
    float *inputs;             /* [micro_batch, features] */
    uint32_t *labels;          /* [micro_batch] */
};

/* A ring of depth + 1 slots: the batch on view and up to depth ahead of it.
 * The reader alone touches the slots that hold neither. */
struct loader {
    const struct dataset *dataset;
    struct sampler *sampler;
    uint32_t *indices; /* [micro_batch], the reader's */
    struct slot *slots;
    void *memory; /* of all slots */
    size_t bytes;
    uint32_t depth;
    uint64_t first;
    pthread_t reader;

    pthread_mutex_t mutex;
    pthread_cond_t changed;  /* one of the three below */
    uint64_t written, taken; /* batches since the loader opened */
    bool stopping;
};

static struct slot *slot_of(struct loader *loader, uint64_t batch) {
    return &loader->slots[batch % ((uint64_t)loader->depth + 1)];
}

static void fill(struct loader *loader, struct slot *slot, uint64_t number) {
    slot->batch.number = number;
    slot->batch.count = sampler_batch(loader->sampler, number, loader->indices);
    size_t features = loader->dataset->features;
    for (uint32_t i = 0; i < slot->batch.count; i++)
        slot->labels[i] = dataset_sample(loader->dataset, loader->indices[i],
                                         slot->inputs + i * features);
}

/* Waits for a free slot; false: the loader is closing. */
static bool wait_for_room(struct loader *loader) {
    pthread_mutex_lock(&loader->mutex);
    while (!loader->stopping &&
           loader->written - loader->taken >= loader->depth)
        pthread_cond_wait(&loader->changed, &loader->mutex);
    bool go_on = !loader->stopping;
    pthread_mutex_unlock(&loader->mutex);
    return go_on;
}

static void *read_ahead(void *argument) {
    struct loader *loader = argument;
    for (uint64_t next = 0; wait_for_room(loader); next++) {
        fill(loader, slot_of(loader, next), loader->first + next);
        pthread_mutex_lock(&loader->mutex);
        loader->written = next + 1;
        pthread_cond_signal(&loader->changed);
        pthread_mutex_unlock(&loader->mutex);
    }
    return NULL;
}

/* Slots lie one behind the other, each at a multiple of 64 bytes: its inputs,
 * then its labels. */
static void place_slots(struct loader *loader, size_t values, size_t stride) {
    for (size_t i = 0; i <= loader->depth; i++) {
        struct slot *slot = &loader->slots[i];
        slot->inputs = (float *)((char *)loader->memory + i * stride);
        slot->labels = (uint32_t *)(slot->inputs + values);
        slot->batch.inputs = slot->inputs;
        slot->batch.labels = slot->labels;
    }
}

static enum status allocate_slots(struct loader *loader, size_t micro_batch,
                                  struct failure *why) {
    size_t num_slots = (size_t)loader->depth + 1;
    size_t values = micro_batch * loader->dataset->features;
    size_t stride = values * sizeof(float) + micro_batch * sizeof(uint32_t);
    stride = (stride + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    loader->bytes = (num_slots * stride + PAGE - 1) / PAGE * PAGE;
    loader->indices = calloc(micro_batch, sizeof *loader->indices);
    loader->slots = calloc(num_slots, sizeof *loader->slots);
    loader->memory = aligned_alloc(PAGE, loader->bytes);
    if (loader->indices && loader->slots && loader->memory) {
        place_slots(loader, values, stride);
        return STATUS_OK;
    }
    char bytes[16];
    byte_size_text(loader->bytes, bytes, sizeof bytes);
    return status_fail(
        why, STATUS_FAILED,
        "no memory for %zu batches of %zu samples read ahead, %s: lower "
        "data.prefetch_factor, or halve train_micro_batch_size_per_gpu and "
        "double gradient_accumulation_steps",
        num_slots, micro_batch, bytes);
}

static void release(struct loader *loader) {
    free(loader->memory);
    free(loader->slots);
    free(loader->indices);
    sampler_close(&loader->sampler);
    pthread_cond_destroy(&loader->changed);
    pthread_mutex_destroy(&loader->mutex);
    free(loader);
}

enum status loader_open(struct loader **out, const struct dataset *dataset,
                        const struct sampler_options *options, uint64_t first,
                        uint32_t depth, struct failure *why) {
    struct loader *loader = calloc(1, sizeof *loader);
    if (!loader)
        return status_fail(why, STATUS_FAILED, "no memory for a loader");
    loader->dataset = dataset;
    loader->depth = depth;
    loader->first = first;
    pthread_mutex_init(&loader->mutex, NULL);
    pthread_cond_init(&loader->changed, NULL);
    enum status status = sampler_open(&loader->sampler, options, why);
    if (!status)
        status = allocate_slots(loader, options->micro_batch, why);
    if (status)
        goto fail;
    int error = pthread_create(&loader->reader, NULL, read_ahead, loader);
    if (error) {
        status = status_errno(why, STATUS_RETRY, error,
                              "cannot start the thread that reads data");
        goto fail;
    }
    *out = loader;
    return STATUS_OK;
fail:
    release(loader);
    return status;
}

void loader_close(struct loader **loader) {
    if (!loader || !*loader)
        return;
    pthread_mutex_lock(&(*loader)->mutex);
    (*loader)->stopping = true;
    pthread_cond_signal(&(*loader)->changed);
    pthread_mutex_unlock(&(*loader)->mutex);
    pthread_join((*loader)->reader, NULL);
    release(*loader);
    *loader = NULL;
}

void *loader_memory(const struct loader *loader, size_t *bytes) {
    *bytes = loader->bytes;
    return loader->memory;
}

const struct loader_batch *loader_next(struct loader *loader) {
    pthread_mutex_lock(&loader->mutex);
    while (loader->written == loader->taken)
        pthread_cond_wait(&loader->changed, &loader->mutex);
    struct slot *slot = slot_of(loader, loader->taken++);
    pthread_cond_signal(&loader->changed);
    pthread_mutex_unlock(&loader->mutex);
    return &slot->batch;
}
