/* SPDX-License-Identifier: Apache-2.0 */
/* Readers claim batches in order and fill them in any order; the consumer takes
 * them in order. Two locks: that of `waiter` guards the counters,
 * `source_mutex`, locked first, the source, which is asked for batches in
 * order. Neither is held while samples are converted. */
#include "worker/data/loader.h"

#include "core/base/byte_size.h"
#include "core/base/time.h"
#include "core/base/waiter.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

enum { ALIGNMENT = 64, PAGE = 4096 };

struct slot {
    struct batch batch; /* as loader_next returns it */
    enum status status; /* of filling it */
    struct failure why;
    uint64_t completed; /* 1 + the number of the complete batch in it */
};

struct reader {
    struct loader *loader;
    pthread_t thread;
    struct batch_claim claim;
};

/* A ring of depth + 1 slots: the viewed batch and up to depth ahead of it. Only
 * the reader that has claimed a batch touches its slot. Batches are counted
 * from 0 since the loader opened. */
struct loader {
    const struct batch_source_table *table;
    struct batch_source *source;
    struct batch_spec spec;
    struct slot *slots;
    void *memory; /* of all slots, without their ids */
    size_t bytes;
    uint32_t depth; /* of all readers together; 0: no threads */
    uint64_t first;
    /* At least one, which has no thread if depth is 0. */
    struct reader *readers;
    uint32_t num_readers, started;

    pthread_mutex_t source_mutex; /* of the source's claims */

    struct waiter waiter; /* for a slot's `completed`, or a counter below */
    uint64_t claimed, consumed;
};

static struct slot *loader_slot_of(struct loader *loader, uint64_t batch) {
    return &loader->slots[batch % ((uint64_t)loader->depth + 1)];
}

/* Waits for a free slot; false: the loader is closing. */
static bool claim_number(struct loader *loader, uint64_t *batch) {
    waiter_enter(&loader->waiter);
    while (loader->depth &&
           loader->claimed - loader->consumed >= loader->depth &&
           waiter_wait(&loader->waiter, TIME_NEVER, NULL))
        ;
    bool go_on = !loader->waiter.cancelled;
    *batch = loader->claimed;
    loader->claimed += go_on;
    waiter_leave(&loader->waiter);
    return go_on;
}

/* Claims the next batch, BATCH since the loader opened, with its samples. */
static bool loader_claim(struct reader *reader, uint64_t *batch) {
    struct loader *loader = reader->loader;
    pthread_mutex_lock(&loader->source_mutex);
    bool go_on = claim_number(loader, batch);
    if (go_on) {
        struct slot *slot = loader_slot_of(loader, *batch);
        slot->batch.number = loader->first + *batch;
        reader->claim.number = slot->batch.number;
        slot->status =
            loader->table->claim(loader->source, &reader->claim, &slot->why);
    }
    pthread_mutex_unlock(&loader->source_mutex);
    return go_on;
}

static void loader_fill(struct reader *reader, struct slot *slot) {
    const struct loader *loader = reader->loader;
    if (!slot->status)
        slot->status = loader->table->fill(loader->source, &reader->claim,
                                           &slot->batch, &slot->why);
}

static void *run_reader(void *argument) {
    struct reader *reader = argument;
    struct loader *loader = reader->loader;
    uint64_t batch;
    while (loader_claim(reader, &batch)) {
        struct slot *slot = loader_slot_of(loader, batch);
        loader_fill(reader, slot);
        waiter_enter(&loader->waiter);
        slot->completed = batch + 1;
        waiter_leave_changed(&loader->waiter);
    }
    return NULL;
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

/* Slots are adjacent, each at a multiple of 64 bytes. */
static enum status allocate_slots(struct loader *loader, size_t micro_batch,
                                  struct failure *why) {
    const struct batch_spec *spec = &loader->spec;
    size_t num_slots = (size_t)loader->depth + 1;
    size_t stride = batch_bytes(spec, micro_batch);
    stride = (stride + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    loader->bytes = (num_slots * stride + PAGE - 1) / PAGE * PAGE;
    loader->slots = calloc(num_slots, sizeof *loader->slots);
    loader->memory = aligned_alloc(PAGE, loader->bytes);
    if (!loader->slots || !loader->memory)
        return loader_no_memory(loader, micro_batch, why);
    enum status status = STATUS_OK;
    for (size_t i = 0; !status && i < num_slots; i++) {
        struct batch *batch = &loader->slots[i].batch;
        batch_place(batch, spec, (char *)loader->memory + i * stride,
                    micro_batch);
        status = batch_ids_open(&batch->ids, spec, (uint32_t)micro_batch, why);
    }
    return status;
}

static enum status allocate_readers(struct loader *loader, size_t micro_batch,
                                    struct failure *why) {
    loader->readers = calloc(loader->num_readers, sizeof *loader->readers);
    if (!loader->readers)
        return loader_no_memory(loader, micro_batch, why);
    for (uint32_t r = 0; r < loader->num_readers; r++)
        loader->readers[r].loader = loader;
    return STATUS_OK;
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
    waiter_cancel(&loader->waiter);
    for (uint32_t r = 0; r < loader->started; r++)
        pthread_join(loader->readers[r].thread, NULL);
}

void loader_close(struct loader **where) {
    struct loader *loader = where ? *where : NULL;
    if (!loader)
        return;
    loader_stop(loader);
    for (uint32_t r = 0; loader->readers && r < loader->num_readers; r++)
        batch_claim_free(loader->table, &loader->readers[r].claim);
    for (uint32_t i = 0; loader->slots && i <= loader->depth; i++)
        batch_ids_close(&loader->slots[i].batch.ids, &loader->spec);
    free(loader->memory);
    free(loader->slots);
    free(loader->readers);
    loader->table->close(&loader->source);
    waiter_close(&loader->waiter);
    pthread_mutex_destroy(&loader->source_mutex);
    free(loader);
    *where = NULL;
}

enum status loader_open(struct loader **out, const struct dataset *dataset,
                        const struct batch_spec *spec,
                        const struct sampler_options *options, uint64_t first,
                        struct loader_prefetch prefetch, struct failure *why) {
    struct loader *loader = calloc(1, sizeof *loader);
    *out = NULL;
    if (!loader)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a loader");
    loader->table = dataset->table->batches;
    loader->spec = *spec;
    loader->num_readers = prefetch.readers ? prefetch.readers : 1;
    loader->depth = prefetch.readers * prefetch.depth;
    loader->first = first;
    pthread_mutex_init(&loader->source_mutex, NULL);
    waiter_open(&loader->waiter);
    enum status status = dataset->table->share(&loader->source, dataset, spec,
                                               options, first, why);
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

uint32_t loader_size(const struct loader *loader, uint64_t number) {
    return loader->table->size(loader->source, number);
}

/* Counting this batch as consumed releases the previous slot: its view ends
 * with this call. */
enum status loader_next(struct loader *loader, const struct batch **out,
                        struct failure *why) {
    uint64_t batch;
    if (!loader->depth && loader_claim(loader->readers, &batch))
        loader_fill(loader->readers, loader_slot_of(loader, batch));
    waiter_enter(&loader->waiter);
    batch = loader->consumed;
    const struct slot *slot = loader_slot_of(loader, batch);
    while (loader->depth && slot->completed != batch + 1 &&
           waiter_wait(&loader->waiter, TIME_NEVER, NULL))
        ;
    loader->consumed++;
    waiter_leave_changed(&loader->waiter);
    *out = &slot->batch;
    if (slot->status && why)
        *why = slot->why;
    return slot->status;
}

const struct batch *loader_peek(struct loader *loader) {
    waiter_enter(&loader->waiter);
    const struct slot *slot = loader_slot_of(loader, loader->consumed);
    bool ready = loader->depth && slot->completed == loader->consumed + 1 &&
                 !slot->status;
    waiter_leave(&loader->waiter);
    return ready ? &slot->batch : NULL;
}
