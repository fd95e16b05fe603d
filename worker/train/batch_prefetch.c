/* SPDX-License-Identifier: Apache-2.0 */
/* Double buffering on the device: while one batch is used, the next is uploaded
 * to the other slot. One event marks an uploaded batch and one the end of its
 * last use, so that neither stream overtakes the other, and the host waits only
 * until its copy of a batch may be overwritten. */
#include "worker/train/batch_prefetch.h"

static struct batch_prefetch_slot *batch_prefetch_slot_of(
    struct batch_prefetch *prefetch, uint64_t batch) {
    return &prefetch->slots[batch % BATCH_PREFETCH_SLOTS];
}

static bool open_slot(const struct device *device,
                      struct batch_prefetch_slot *slot, size_t max_batch,
                      uint32_t features) {
    const struct ops *ops = device->ops;
    size_t inputs = max_batch * features * sizeof *slot->inputs;
    slot->inputs = ops->allocate(device->handle, inputs);
    slot->labels =
        ops->allocate(device->handle, max_batch * sizeof *slot->labels);
    slot->uploaded = ops->event_open(device->handle);
    slot->consumed = ops->event_open(device->handle);
    return slot->inputs && slot->labels && slot->uploaded && slot->consumed;
}

enum status batch_prefetch_open(struct batch_prefetch *prefetch,
                                const struct device *device, uint32_t max_batch,
                                uint32_t features, struct failure *why) {
    bool complete = true;
    *prefetch = (struct batch_prefetch){.device = device, .features = features};
    for (int i = 0; device->ops->async && complete && i < BATCH_PREFETCH_SLOTS;
         i++)
        complete = open_slot(device, &prefetch->slots[i], max_batch, features);
    if (complete)
        return STATUS_OK;
    batch_prefetch_close(prefetch);
    return status_fail(
        why, FAILURE_DEVICE_MEMORY,
        "no memory on device %s for %d batches of %u samples, of %zu bytes",
        device->name, BATCH_PREFETCH_SLOTS, max_batch,
        BATCH_PREFETCH_SLOTS * (size_t)max_batch * (features + 1) *
            sizeof(float));
}

void batch_prefetch_close(struct batch_prefetch *prefetch) {
    const struct device *device = prefetch->device;
    for (int i = 0; device && i < BATCH_PREFETCH_SLOTS; i++) {
        struct batch_prefetch_slot *slot = &prefetch->slots[i];
        device->ops->release(device->handle, slot->inputs);
        device->ops->release(device->handle, slot->labels);
        if (slot->uploaded)
            device->ops->event_close(device->handle, &slot->uploaded);
        if (slot->consumed)
            device->ops->event_close(device->handle, &slot->consumed);
    }
    *prefetch = (struct batch_prefetch){0};
}

bool batch_prefetch_ready(const struct batch_prefetch *batch_prefetch) {
    return batch_prefetch->pushed > batch_prefetch->popped;
}

void batch_prefetch_push(struct batch_prefetch *prefetch,
                         const struct loader_batch *batch) {
    const struct ops *ops = prefetch->device->ops;
    struct ops_device *handle = prefetch->device->handle;
    struct batch_prefetch_slot *slot =
        batch_prefetch_slot_of(prefetch, prefetch->pushed++);
    slot->batch = *batch;
    if (!ops->async)
        return;
    size_t values = (size_t)batch->count * prefetch->features;
    ops->stream_wait(handle, OPS_SAMPLES, slot->consumed);
    ops->upload(handle, OPS_SAMPLES, slot->inputs, batch->inputs,
                values * sizeof *slot->inputs);
    ops->upload(handle, OPS_SAMPLES, slot->labels, batch->labels,
                batch->count * sizeof *slot->labels);
    ops->record(handle, OPS_SAMPLES, slot->uploaded);
    slot->batch.inputs = slot->inputs;
    slot->batch.labels = slot->labels;
}

const struct loader_batch *batch_prefetch_pop(struct batch_prefetch *prefetch) {
    const struct device *device = prefetch->device;
    struct batch_prefetch_slot *slot =
        batch_prefetch_slot_of(prefetch, prefetch->popped++);
    if (device->ops->async)
        device->ops->stream_wait(device->handle, OPS_COMPUTE, slot->uploaded);
    return &slot->batch;
}

void batch_prefetch_release(struct batch_prefetch *prefetch) {
    const struct device *device = prefetch->device;
    if (device->ops->async)
        device->ops->record(
            device->handle, OPS_COMPUTE,
            batch_prefetch_slot_of(prefetch, prefetch->popped - 1)->consumed);
}

enum status batch_prefetch_sync(struct batch_prefetch *prefetch,
                                struct failure *why) {
    const struct device *device = prefetch->device;
    if (!device->ops->async || !prefetch->pushed)
        return STATUS_OK;
    return device->ops->event_sync(
        device->handle,
        batch_prefetch_slot_of(prefetch, prefetch->pushed - 1)->uploaded, why);
}
