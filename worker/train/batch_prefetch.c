/* SPDX-License-Identifier: Apache-2.0 */
/* Double buffering on the device: while one batch is used, the next is uploaded
 * to the other slot. One event marks an uploaded batch and one the end of its
 * last use, so that neither stream overtakes the other, and the host waits only
 * until its copy of a batch may be overwritten. */
#include "worker/train/batch_prefetch.h"

#include <stdlib.h>

enum { PAGE = 4096 };

static struct batch_prefetch_slot *batch_prefetch_slot_of(
    struct batch_prefetch *prefetch, uint64_t batch) {
    return &prefetch->slots[batch % BATCH_PREFETCH_SLOTS];
}

static bool open_slot(struct batch_prefetch *prefetch, int i,
                      size_t max_batch) {
    const struct local_device *device = prefetch->device;
    const struct device_ops *ops = device->ops;
    const struct batch_spec *spec = &prefetch->spec;
    struct batch_prefetch_slot *slot = &prefetch->slots[i];
    bool complete = true;
    for (uint32_t c = 0; complete && c < spec->num_columns; c++) {
        slot->columns[c] = ops->allocate(
            device->handle, batch_column_bytes(&spec->columns[c], max_batch));
        complete = slot->columns[c] != NULL;
    }
    if (spec->numbered) {
        slot->number = ops->allocate(device->handle, sizeof *slot->number);
        complete = complete && slot->number;
    }
    slot->uploaded = ops->event_open(device->handle);
    slot->consumed = ops->event_open(device->handle);
    return complete && slot->uploaded && slot->consumed;
}

/* A copy of pageable memory would make the host wait for the stream. */
static bool open_numbers(struct batch_prefetch *prefetch) {
    prefetch->numbers = aligned_alloc(PAGE, PAGE);
    if (prefetch->numbers)
        local_device_pin(prefetch->device, prefetch->numbers, PAGE);
    return prefetch->numbers;
}

/* Uploads and conversions are in one stream, so that one memory is enough. */
static bool open_pixels(struct batch_prefetch *prefetch, size_t max_batch) {
    const struct local_device *device = prefetch->device;
    bool complete = true;
    for (uint32_t c = 0; complete && c < prefetch->spec.num_columns; c++) {
        const struct batch_column *column = &prefetch->spec.columns[c];
        if (!column->pixels)
            continue;
        prefetch->pixels[c] = device->ops->allocate(
            device->handle, batch_column_host_bytes(column, max_batch));
        complete = prefetch->pixels[c];
    }
    return complete;
}

enum status batch_prefetch_open(struct batch_prefetch *prefetch,
                                const struct local_device *device,
                                uint32_t max_batch,
                                const struct batch_spec *spec,
                                struct failure *why) {
    *prefetch = (struct batch_prefetch){.device = device, .spec = *spec};
    bool complete = !device->ops->async || open_pixels(prefetch, max_batch);
    if (device->ops->async && complete && spec->numbered)
        complete = open_numbers(prefetch);
    for (int i = 0; device->ops->async && complete && i < BATCH_PREFETCH_SLOTS;
         i++)
        complete = open_slot(prefetch, i, max_batch);
    if (complete)
        return STATUS_OK;
    batch_prefetch_close(prefetch);
    return status_fail(
        why, FAILURE_DEVICE_MEMORY,
        "no memory on device %s for %d batches of %u samples, of %zu bytes",
        device->name, BATCH_PREFETCH_SLOTS, max_batch,
        BATCH_PREFETCH_SLOTS * batch_bytes(spec, max_batch));
}

void batch_prefetch_close(struct batch_prefetch *prefetch) {
    const struct local_device *device = prefetch->device;
    for (int i = 0; device && i < BATCH_PREFETCH_SLOTS; i++) {
        struct batch_prefetch_slot *slot = &prefetch->slots[i];
        for (uint32_t c = 0; c < prefetch->spec.num_columns; c++)
            device->ops->release(device->handle, slot->columns[c]);
        device->ops->release(device->handle, slot->number);
        if (slot->uploaded)
            device->ops->event_close(device->handle, &slot->uploaded);
        if (slot->consumed)
            device->ops->event_close(device->handle, &slot->consumed);
    }
    for (uint32_t c = 0; c < prefetch->spec.num_columns; c++)
        if (prefetch->pixels[c])
            device->ops->release(device->handle, prefetch->pixels[c]);
    if (prefetch->numbers)
        local_device_unpin(device, prefetch->numbers);
    free(prefetch->numbers);
    *prefetch = (struct batch_prefetch){0};
}

static void upload_column(struct batch_prefetch *prefetch,
                          struct batch_prefetch_slot *slot, uint32_t c) {
    const struct device_ops *ops = prefetch->device->ops;
    struct device *handle = prefetch->device->handle;
    const struct batch_column *column = &prefetch->spec.columns[c];
    size_t bytes = batch_column_host_bytes(column, slot->batch.count);
    void *to = column->pixels ? (void *)prefetch->pixels[c] : slot->columns[c];
    ops->upload(handle, STREAM_SAMPLES, to, slot->batch.columns[c], bytes);
    if (column->pixels)
        ops->run(handle, STREAM_SAMPLES,
                 op_pixels(prefetch->pixels[c], bytes, slot->columns[c]));
}

static void upload_number(struct batch_prefetch *prefetch,
                          struct batch_prefetch_slot *slot) {
    const struct local_device *device = prefetch->device;
    uint64_t *number = &prefetch->numbers[slot - prefetch->slots];
    *number = slot->batch.number;
    device->ops->upload(device->handle, STREAM_SAMPLES, slot->number, number,
                        sizeof *number);
    slot->batch.device_number = slot->number;
}

bool batch_prefetch_ready(const struct batch_prefetch *batch_prefetch) {
    return batch_prefetch->pushed > batch_prefetch->popped;
}

void batch_prefetch_push(struct batch_prefetch *prefetch,
                         const struct batch *batch) {
    const struct device_ops *ops = prefetch->device->ops;
    struct device *handle = prefetch->device->handle;
    struct batch_prefetch_slot *slot =
        batch_prefetch_slot_of(prefetch, prefetch->pushed++);
    slot->batch = *batch;
    if (!ops->async)
        return;
    ops->stream_wait(handle, STREAM_SAMPLES, slot->consumed);
    for (uint32_t c = 0; c < prefetch->spec.num_columns; c++) {
        if (prefetch->spec.columns[c].type != BATCH_ROWS)
            upload_column(prefetch, slot, c);
        slot->batch.columns[c] = slot->columns[c];
    }
    if (prefetch->numbers)
        upload_number(prefetch, slot);
    ops->record(handle, STREAM_SAMPLES, slot->uploaded);
}

const struct batch *batch_prefetch_peek(const struct batch_prefetch *prefetch) {
    return &prefetch->slots[prefetch->popped % BATCH_PREFETCH_SLOTS].batch;
}

const struct batch *batch_prefetch_pop(struct batch_prefetch *prefetch) {
    const struct local_device *device = prefetch->device;
    struct batch_prefetch_slot *slot =
        batch_prefetch_slot_of(prefetch, prefetch->popped++);
    if (device->ops->async)
        device->ops->stream_wait(device->handle, STREAM_COMPUTE,
                                 slot->uploaded);
    return &slot->batch;
}

void batch_prefetch_release(struct batch_prefetch *prefetch) {
    const struct local_device *device = prefetch->device;
    if (device->ops->async)
        device->ops->record(
            device->handle, STREAM_COMPUTE,
            batch_prefetch_slot_of(prefetch, prefetch->popped - 1)->consumed);
}

enum status batch_prefetch_sync(struct batch_prefetch *prefetch,
                                struct failure *why) {
    const struct local_device *device = prefetch->device;
    if (!device->ops->async || !prefetch->pushed)
        return STATUS_OK;
    return device->ops->event_sync(
        device->handle,
        batch_prefetch_slot_of(prefetch, prefetch->pushed - 1)->uploaded, why);
}
