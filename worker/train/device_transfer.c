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

static uint64_t padded_elements(const struct device_transfer *device_transfer,
                                uint32_t parameter) {
    uint64_t elements = device_transfer->layout->parameters[parameter].elements;
    return (elements + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
}

static size_t device_transfer_bytes_of(
    const struct device_transfer *device_transfer, uint32_t parameter) {
    return device_transfer->layout->parameters[parameter].elements *
           sizeof(float);
}

/* Divides the device's memory among the parameters. */
static void assign_memory(struct device_transfer *device_transfer,
                          bool gradients) {
    float *next = device_transfer->memory;
    for (uint32_t p = 0; p < device_transfer->layout->num_parameters; p++) {
        device_transfer->weights[p] = next;
        next += padded_elements(device_transfer, p);
    }
    for (uint32_t p = 0;
         gradients && p < device_transfer->layout->num_parameters; p++) {
        device_transfer->gradients[p] = next;
        next += padded_elements(device_transfer, p);
    }
}

static bool device_transfer_open_events(
    struct device_transfer *device_transfer) {
    const struct device *device = device_transfer->device;
    device_transfer->uploaded = device->ops->event_open(device->handle);
    device_transfer->computed = device->ops->event_open(device->handle);
    bool complete = device_transfer->uploaded && device_transfer->computed;
    for (uint32_t p = 0; p < device_transfer->layout->num_parameters; p++) {
        device_transfer->downloaded[p] =
            device->ops->event_open(device->handle);
        complete = complete && device_transfer->downloaded[p];
    }
    return complete;
}

static bool allocate_lists(struct device_transfer *device_transfer) {
    uint32_t count = device_transfer->layout->num_parameters;
    device_transfer->weights = calloc(count, sizeof *device_transfer->weights);
    device_transfer->gradients =
        calloc(count, sizeof *device_transfer->gradients);
    device_transfer->current = calloc(count, sizeof *device_transfer->current);
    device_transfer->downloaded =
        calloc(count, sizeof *device_transfer->downloaded);
    return device_transfer->weights && device_transfer->gradients &&
           device_transfer->current && device_transfer->downloaded;
}

/* Allocates FLOATS, and the lists and events. */
static enum status device_transfer_allocate(
    struct device_transfer *device_transfer, uint64_t floats, bool gradients,
    struct failure *why) {
    const struct device *device = device_transfer->device;
    size_t bytes = floats * sizeof(float);
    if (allocate_lists(device_transfer))
        device_transfer->memory = device->ops->allocate(device->handle, bytes);
    if (!device_transfer->memory ||
        !device_transfer_open_events(device_transfer))
        return status_fail(why, FAILURE_DEVICE_MEMORY,
                           "no memory on device %s for weights%s of %zu bytes",
                           device->name, gradients ? " and gradients" : "",
                           bytes);
    return STATUS_OK;
}

static uint64_t arena_floats(const struct device_transfer *device_transfer) {
    return buffer_bytes(device_transfer->arena->weights) / sizeof(float);
}

static void device_transfer_pin(const struct device_transfer *device_transfer) {
    struct buffer *own[] = {device_transfer->arena->weights,
                            device_transfer->arena->gradients};
    for (int i = 0; i < 2; i++)
        if (own[i])
            device_pin(device_transfer->device, buffer_data(own[i]),
                       buffer_bytes(own[i]));
}

static void device_transfer_unpin(
    const struct device_transfer *device_transfer) {
    struct buffer *own[] = {device_transfer->arena->weights,
                            device_transfer->arena->gradients};
    for (int i = 0; i < 2; i++)
        if (own[i])
            device_unpin(device_transfer->device, buffer_data(own[i]));
}

enum status device_transfer_open(struct device_transfer *device_transfer,
                                 const struct device *device,
                                 const struct layout *layout,
                                 struct arena *arena, bool gradients,
                                 struct failure *why) {
    uint64_t floats = 0;
    *device_transfer =
        (struct device_transfer){.device = device,
                                 .layout = layout,
                                 .arena = arena,
                                 .weights = arena->weight_of,
                                 .gradients = arena->gradient_of};
    if (!device->ops->async)
        return STATUS_OK;
    for (uint32_t p = 0; p < layout->num_parameters; p++)
        floats += padded_elements(device_transfer, p) * (gradients ? 2 : 1);
    enum status status =
        device_transfer_allocate(device_transfer, floats, gradients, why);
    if (status) {
        device_transfer_close(device_transfer);
        return status;
    }
    assign_memory(device_transfer, gradients);
    device_transfer_pin(device_transfer);
    return STATUS_OK;
}

/* Arena and device then have the same offsets, padding included, so that a
 * collective works on one contiguous range. */
/* Padding takes part in the sums. */
static enum status zero_memory(const struct device_transfer *device_transfer,
                               uint64_t floats, struct failure *why) {
    const struct device *device = device_transfer->device;
    device->ops->fill(device->handle, OPS_EXCHANGE, device_transfer->memory,
                      floats, 0);
    return device->ops->synchronize(device->handle, why);
}

enum status device_transfer_open_resident(
    struct device_transfer *device_transfer, const struct device *device,
    const struct layout *layout, struct arena *arena, struct failure *why) {
    *device_transfer = (struct device_transfer){
        .device = device, .layout = layout, .arena = arena, .resident = true};
    uint64_t floats = arena_floats(device_transfer);
    enum status status =
        device_transfer_allocate(device_transfer, 2 * floats, true, why);
    if (!status)
        status = zero_memory(device_transfer, 2 * floats, why);
    if (status) {
        device_transfer_close(device_transfer);
        return status;
    }
    for (uint32_t p = 0; p < layout->num_parameters; p++) {
        device_transfer->weights[p] =
            device_transfer->memory + arena->offsets[p];
        device_transfer->gradients[p] = device_transfer->weights[p] + floats;
    }
    device_pin(device, buffer_data(arena->weights),
               buffer_bytes(arena->weights));
    return STATUS_OK;
}

struct reducer_device_arena device_transfer_arena(
    const struct device_transfer *device_transfer) {
    return (struct reducer_device_arena){
        .ops = device_transfer->device->ops,
        .device = device_transfer->device->handle,
        .weights = device_transfer->memory,
        .gradients = device_transfer->memory + arena_floats(device_transfer),
        .complete = device_transfer->downloaded};
}

static void device_transfer_close_events(
    struct device_transfer *device_transfer) {
    const struct device *device = device_transfer->device;
    struct ops_event **both[] = {&device_transfer->uploaded,
                                 &device_transfer->computed};
    for (uint32_t p = 0; device_transfer->downloaded &&
                         p < device_transfer->layout->num_parameters;
         p++)
        if (device_transfer->downloaded[p])
            device->ops->event_close(device->handle,
                                     &device_transfer->downloaded[p]);
    for (int i = 0; i < 2; i++)
        if (*both[i])
            device->ops->event_close(device->handle, both[i]);
}

void device_transfer_close(struct device_transfer *device_transfer) {
    const struct device *device = device_transfer->device;
    if (device && device->ops->async) {
        device_transfer_close_events(device_transfer);
        device_transfer_unpin(device_transfer);
        device->ops->release(device->handle, device_transfer->memory);
        free(device_transfer->weights);
        free(device_transfer->gradients);
        free(device_transfer->current);
        free(device_transfer->downloaded);
    }
    *device_transfer = (struct device_transfer){0};
}

void device_transfer_invalidate(struct device_transfer *device_transfer) {
    for (uint32_t p = 0;
         device_transfer->memory && p < device_transfer->layout->num_parameters;
         p++)
        device_transfer->current[p] = false;
}

void device_transfer_upload(struct device_transfer *device_transfer,
                            uint32_t parameter) {
    const struct ops *ops = device_transfer->device->ops;
    struct ops_device *handle = device_transfer->device->handle;
    if (!device_transfer->memory || device_transfer->resident ||
        device_transfer->current[parameter])
        return;
    ops->upload(handle, OPS_WEIGHTS, device_transfer->weights[parameter],
                device_transfer->arena->weight_of[parameter],
                device_transfer_bytes_of(device_transfer, parameter));
    device_transfer->current[parameter] = true;
    device_transfer->upload_pending = true;
}

void device_transfer_wait(struct device_transfer *device_transfer) {
    const struct ops *ops = device_transfer->device->ops;
    struct ops_device *handle = device_transfer->device->handle;
    if (!device_transfer->upload_pending)
        return;
    ops->record(handle, OPS_WEIGHTS, device_transfer->uploaded);
    ops->stream_wait(handle, OPS_COMPUTE, device_transfer->uploaded);
    device_transfer->upload_pending = false;
}

void device_transfer_record(struct device_transfer *device_transfer,
                            uint32_t parameter) {
    const struct device *device = device_transfer->device;
    if (device_transfer->memory)
        device->ops->record(device->handle, OPS_COMPUTE,
                            device_transfer->downloaded[parameter]);
}

/* Starts the download once the work recorded by EVENT is done. */
static void device_transfer_download_block(
    struct device_transfer *device_transfer, uint32_t parameter,
    struct ops_event *event) {
    const struct ops *ops = device_transfer->device->ops;
    struct ops_device *handle = device_transfer->device->handle;
    ops->stream_wait(handle, OPS_GRADIENTS, event);
    ops->download(handle, OPS_GRADIENTS,
                  device_transfer->arena->gradient_of[parameter],
                  device_transfer->gradients[parameter],
                  device_transfer_bytes_of(device_transfer, parameter));
    ops->record(handle, OPS_GRADIENTS, device_transfer->downloaded[parameter]);
}

void device_transfer_download_recorded(struct device_transfer *device_transfer,
                                       uint32_t parameter) {
    if (device_transfer->memory)
        device_transfer_download_block(device_transfer, parameter,
                                       device_transfer->downloaded[parameter]);
}

void device_transfer_download(struct device_transfer *device_transfer,
                              uint32_t parameter) {
    const struct device *device = device_transfer->device;
    if (!device_transfer->memory)
        return;
    if (device_transfer->resident) {
        device_transfer_record(device_transfer, parameter);
        return;
    }
    device->ops->record(device->handle, OPS_COMPUTE, device_transfer->computed);
    device_transfer_download_block(device_transfer, parameter,
                                   device_transfer->computed);
}

enum status device_transfer_sync(struct device_transfer *device_transfer,
                                 uint32_t parameter, struct failure *why) {
    if (!device_transfer->memory || device_transfer->resident)
        return STATUS_OK;
    return device_transfer->device->ops->event_sync(
        device_transfer->device->handle, device_transfer->downloaded[parameter],
        why);
}
