/* SPDX-License-Identifier: Apache-2.0 */
/* Three streams of the device run in parallel, ordered by events:
 *
 *   weights:   upload p ... record uploaded
 *   compute:   wait uploaded, ... p's gradient complete, record computed
 *   gradients: wait computed, download p, record downloaded[p]
 *
 * The host waits only for downloaded[p], before it reads a gradient. Weights in
 * the arena may be overwritten for the next step without a wait for their
 * upload: a step's gradients are complete only after its weights were read. */
#include "worker/train/device_transfer.h"

#include <stdlib.h>

enum { ALIGN_FLOATS = 64 }; /* 256 bytes: what a GPU reads at a time */

static uint64_t padded_elements(const struct device_transfer *transfer,
                                uint32_t parameter) {
    uint64_t elements = transfer->layout->parameters[parameter].elements;
    return (elements + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
}

static size_t device_transfer_bytes_of(const struct device_transfer *transfer,
                                       uint32_t parameter) {
    return transfer->layout->parameters[parameter].elements * sizeof(float);
}

/* Divides the device's memory among the parameters. */
static void assign_memory(struct device_transfer *transfer, bool gradients) {
    float *next = transfer->memory;
    for (uint32_t p = 0; p < transfer->layout->num_parameters; p++) {
        transfer->weights[p] = next;
        next += padded_elements(transfer, p);
    }
    for (uint32_t p = 0; gradients && p < transfer->layout->num_parameters;
         p++) {
        transfer->gradients[p] = next;
        next += padded_elements(transfer, p);
    }
}

static bool device_transfer_open_events(struct device_transfer *transfer) {
    const struct local_device *device = transfer->device;
    transfer->uploaded = device->ops->event_open(device->handle);
    transfer->computed = device->ops->event_open(device->handle);
    bool complete = transfer->uploaded && transfer->computed;
    for (uint32_t p = 0; p < transfer->layout->num_parameters; p++) {
        transfer->downloaded[p] = device->ops->event_open(device->handle);
        complete = complete && transfer->downloaded[p];
    }
    return complete;
}

static bool allocate_lists(struct device_transfer *transfer) {
    uint32_t count = transfer->layout->num_parameters;
    transfer->weights = calloc(count, sizeof *transfer->weights);
    transfer->gradients = calloc(count, sizeof *transfer->gradients);
    transfer->current = calloc(count, sizeof *transfer->current);
    transfer->downloaded = calloc(count, sizeof *transfer->downloaded);
    return transfer->weights && transfer->gradients && transfer->current &&
           transfer->downloaded;
}

/* Allocates FLOATS, and the lists and events. */
static enum status device_transfer_allocate(struct device_transfer *transfer,
                                            uint64_t floats, bool gradients,
                                            struct failure *why) {
    const struct local_device *device = transfer->device;
    size_t bytes = floats * sizeof(float);
    if (allocate_lists(transfer))
        transfer->memory = device->ops->allocate(device->handle, bytes);
    if (!transfer->memory || !device_transfer_open_events(transfer))
        return status_fail(why, FAILURE_DEVICE_MEMORY,
                           "no memory on device %s for weights%s of %zu bytes",
                           device->name, gradients ? " and gradients" : "",
                           bytes);
    return STATUS_OK;
}

static uint64_t arena_floats(const struct device_transfer *transfer) {
    return buffer_bytes(transfer->arena->weights) / sizeof(float);
}

static void device_transfer_pin(const struct device_transfer *transfer) {
    struct buffer *own[] = {transfer->arena->weights,
                            transfer->arena->gradients};
    for (int i = 0; i < 2; i++)
        if (own[i])
            local_device_pin(transfer->device, buffer_data(own[i]),
                             buffer_bytes(own[i]));
}

static void device_transfer_unpin(const struct device_transfer *transfer) {
    struct buffer *own[] = {transfer->arena->weights,
                            transfer->arena->gradients};
    for (int i = 0; i < 2; i++)
        if (own[i])
            local_device_unpin(transfer->device, buffer_data(own[i]));
}

enum status device_transfer_open(struct device_transfer *transfer,
                                 const struct local_device *device,
                                 const struct layout *layout,
                                 struct arena *arena, bool gradients,
                                 struct failure *why) {
    uint64_t floats = 0;
    *transfer = (struct device_transfer){.device = device,
                                         .layout = layout,
                                         .arena = arena,
                                         .weights = arena->weight_of,
                                         .gradients = arena->gradient_of};
    if (!device->ops->async)
        return STATUS_OK;
    for (uint32_t p = 0; p < layout->num_parameters; p++)
        floats += padded_elements(transfer, p) * (gradients ? 2 : 1);
    enum status status =
        device_transfer_allocate(transfer, floats, gradients, why);
    if (status) {
        device_transfer_close(transfer);
        return status;
    }
    assign_memory(transfer, gradients);
    device_transfer_pin(transfer);
    return STATUS_OK;
}

/* Arena and device then have the same offsets, padding included, so that a
 * collective works on one contiguous range. */
/* Padding takes part in the sums. */
static enum status zero_memory(const struct device_transfer *transfer,
                               uint64_t floats, struct failure *why) {
    const struct local_device *device = transfer->device;
    device->ops->run(device->handle, STREAM_EXCHANGE,
                     op_fill(transfer->memory, floats, 0));
    device->ops->record(device->handle, STREAM_EXCHANGE, transfer->computed);
    return device->ops->event_sync(device->handle, transfer->computed, why);
}

enum status device_transfer_open_resident(struct device_transfer *transfer,
                                          const struct local_device *device,
                                          const struct layout *layout,
                                          struct arena *arena,
                                          struct failure *why) {
    *transfer = (struct device_transfer){
        .device = device, .layout = layout, .arena = arena, .resident = true};
    uint64_t floats = arena_floats(transfer);
    enum status status =
        device_transfer_allocate(transfer, 2 * floats, true, why);
    if (!status)
        status = zero_memory(transfer, 2 * floats, why);
    if (status) {
        device_transfer_close(transfer);
        return status;
    }
    for (uint32_t p = 0; p < layout->num_parameters; p++) {
        transfer->weights[p] = transfer->memory + arena->offsets[p];
        transfer->gradients[p] = transfer->weights[p] + floats;
    }
    local_device_pin(device, buffer_data(arena->weights),
                     buffer_bytes(arena->weights));
    return STATUS_OK;
}

struct reducer_device_arena device_transfer_arena(
    const struct device_transfer *transfer) {
    return (struct reducer_device_arena){.ops = transfer->device->ops,
                                         .device = transfer->device->handle,
                                         .weights = transfer->memory,
                                         .gradients = transfer->memory +
                                                      arena_floats(transfer),
                                         .complete = transfer->downloaded};
}

static void device_transfer_close_events(struct device_transfer *transfer) {
    const struct local_device *device = transfer->device;
    struct device_event **both[] = {&transfer->uploaded, &transfer->computed};
    for (uint32_t p = 0;
         transfer->downloaded && p < transfer->layout->num_parameters; p++)
        if (transfer->downloaded[p])
            device->ops->event_close(device->handle, &transfer->downloaded[p]);
    for (int i = 0; i < 2; i++)
        if (*both[i])
            device->ops->event_close(device->handle, both[i]);
}

void device_transfer_close(struct device_transfer *transfer) {
    const struct local_device *device = transfer->device;
    if (device && device->ops->async) {
        device_transfer_close_events(transfer);
        device_transfer_unpin(transfer);
        device->ops->release(device->handle, transfer->memory);
        free(transfer->weights);
        free(transfer->gradients);
        free(transfer->current);
        free(transfer->downloaded);
    }
    *transfer = (struct device_transfer){0};
}

void device_transfer_invalidate(struct device_transfer *transfer) {
    for (uint32_t p = 0;
         transfer->memory && p < transfer->layout->num_parameters; p++)
        transfer->current[p] = false;
}

void device_transfer_upload(struct device_transfer *transfer,
                            uint32_t parameter) {
    const struct device_ops *ops = transfer->device->ops;
    struct device *handle = transfer->device->handle;
    if (!transfer->memory || transfer->resident || transfer->current[parameter])
        return;
    ops->upload(handle, STREAM_WEIGHTS, transfer->weights[parameter],
                transfer->arena->weight_of[parameter],
                device_transfer_bytes_of(transfer, parameter));
    transfer->current[parameter] = true;
    transfer->upload_pending = true;
}

void device_transfer_wait(struct device_transfer *transfer) {
    const struct device_ops *ops = transfer->device->ops;
    struct device *handle = transfer->device->handle;
    if (!transfer->upload_pending)
        return;
    ops->record(handle, STREAM_WEIGHTS, transfer->uploaded);
    ops->stream_wait(handle, STREAM_COMPUTE, transfer->uploaded);
    transfer->upload_pending = false;
}

void device_transfer_record(struct device_transfer *transfer,
                            uint32_t parameter) {
    const struct local_device *device = transfer->device;
    if (transfer->memory)
        device->ops->record(device->handle, STREAM_COMPUTE,
                            transfer->downloaded[parameter]);
}

/* Starts the download once the work recorded by EVENT is done. */
static void device_transfer_download_block(struct device_transfer *transfer,
                                           uint32_t parameter,
                                           struct device_event *event) {
    const struct device_ops *ops = transfer->device->ops;
    struct device *handle = transfer->device->handle;
    ops->stream_wait(handle, STREAM_GRADIENTS, event);
    ops->download(handle, STREAM_GRADIENTS,
                  transfer->arena->gradient_of[parameter],
                  transfer->gradients[parameter],
                  device_transfer_bytes_of(transfer, parameter));
    ops->record(handle, STREAM_GRADIENTS, transfer->downloaded[parameter]);
}

void device_transfer_download_recorded(struct device_transfer *transfer,
                                       uint32_t parameter) {
    if (transfer->memory)
        device_transfer_download_block(transfer, parameter,
                                       transfer->downloaded[parameter]);
}

void device_transfer_download(struct device_transfer *transfer,
                              uint32_t parameter) {
    const struct local_device *device = transfer->device;
    if (!transfer->memory)
        return;
    if (transfer->resident) {
        device_transfer_record(transfer, parameter);
        return;
    }
    device->ops->record(device->handle, STREAM_COMPUTE, transfer->computed);
    device_transfer_download_block(transfer, parameter, transfer->computed);
}

enum status device_transfer_sync(struct device_transfer *transfer,
                                 uint32_t parameter, struct failure *why) {
    if (!transfer->memory || transfer->resident)
        return STATUS_OK;
    return transfer->device->ops->event_sync(
        transfer->device->handle, transfer->downloaded[parameter], why);
}
