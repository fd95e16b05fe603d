/* SPDX-License-Identifier: Apache-2.0 */
/* Three streams of the device work beside each other, and events order them:
 *
 *   weights:   upload p ... record brought
 *   compute:   follow brought, ... p's gradient complete, record computed
 *   gradients: follow computed, download p, record taken[p]
 *
 * The host waits for taken[p] alone, before it reads a gradient. Nothing waits
 * for weights on their way to be over before the next step's are written to the
 * arena: a step's gradients are there only once its weights have been read. */
#include "worker/train/ferry.h"

#include <stdlib.h>

enum { ALIGN_FLOATS = 64 }; /* 256 bytes: what a GPU reads at a time */

static uint64_t room_of(const struct ferry *ferry, uint32_t parameter) {
    uint64_t elements = ferry->layout->parameters[parameter].elements;
    return (elements + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
}

static size_t bytes_of(const struct ferry *ferry, uint32_t parameter) {
    return ferry->layout->parameters[parameter].elements * sizeof(float);
}

/* Deals the device's memory out. */
static void place(struct ferry *ferry, bool gradients) {
    float *next = ferry->memory;
    for (uint32_t p = 0; p < ferry->layout->num_parameters; p++) {
        ferry->weights[p] = next;
        next += room_of(ferry, p);
    }
    for (uint32_t p = 0; gradients && p < ferry->layout->num_parameters; p++) {
        ferry->gradients[p] = next;
        next += room_of(ferry, p);
    }
}

static bool open_events(struct ferry *ferry) {
    const struct device *device = ferry->device;
    ferry->brought = device->ops->event_open(device->handle);
    ferry->computed = device->ops->event_open(device->handle);
    bool complete = ferry->brought && ferry->computed;
    for (uint32_t p = 0; p < ferry->layout->num_parameters; p++) {
        ferry->taken[p] = device->ops->event_open(device->handle);
        complete = complete && ferry->taken[p];
    }
    return complete;
}

static bool allocate_lists(struct ferry *ferry) {
    uint32_t count = ferry->layout->num_parameters;
    ferry->weights = calloc(count, sizeof *ferry->weights);
    ferry->gradients = calloc(count, sizeof *ferry->gradients);
    ferry->current = calloc(count, sizeof *ferry->current);
    ferry->taken = calloc(count, sizeof *ferry->taken);
    return ferry->weights && ferry->gradients && ferry->current && ferry->taken;
}

/* So many FLOATS, with what is needed beside them. */
static enum status allocate(struct ferry *ferry, uint64_t floats,
                            bool gradients, struct failure *why) {
    const struct device *device = ferry->device;
    size_t bytes = floats * sizeof(float);
    if (allocate_lists(ferry))
        ferry->memory = device->ops->allocate(device->handle, bytes);
    if (!ferry->memory || !open_events(ferry))
        return status_fail(why, STATUS_FAILED,
                           "no memory on device %s for weights%s of %zu bytes",
                           device->name, gradients ? " and gradients" : "",
                           bytes);
    return STATUS_OK;
}

static uint64_t arena_floats(const struct ferry *ferry) {
    return buffer_bytes(ferry->arena->weights) / sizeof(float);
}

static void pin(const struct ferry *ferry) {
    struct buffer *own[] = {ferry->arena->weights, ferry->arena->gradients};
    for (int i = 0; i < 2; i++)
        if (own[i])
            device_pin(ferry->device, buffer_data(own[i]),
                       buffer_bytes(own[i]));
}

static void unpin(const struct ferry *ferry) {
    struct buffer *own[] = {ferry->arena->weights, ferry->arena->gradients};
    for (int i = 0; i < 2; i++)
        if (own[i])
            device_unpin(ferry->device, buffer_data(own[i]));
}

enum status ferry_open(struct ferry *ferry, const struct device *device,
                       const struct layout *layout, struct arena *arena,
                       bool gradients, struct failure *why) {
    uint64_t floats = 0;
    *ferry = (struct ferry){.device = device,
                            .layout = layout,
                            .arena = arena,
                            .weights = arena->weight_of,
                            .gradients = arena->gradient_of};
    if (!device->ops->later)
        return STATUS_OK;
    for (uint32_t p = 0; p < layout->num_parameters; p++)
        floats += room_of(ferry, p) * (gradients ? 2 : 1);
    enum status status = allocate(ferry, floats, gradients, why);
    if (status) {
        ferry_close(ferry);
        return status;
    }
    place(ferry, gradients);
    pin(ferry);
    return STATUS_OK;
}

/* Arena and device have the same offsets then, padding included, so that a
 * collective works on both in one piece. */
/* What is between parameters is summed with them. */
static enum status clear(const struct ferry *ferry, uint64_t floats,
                         struct failure *why) {
    const struct device *device = ferry->device;
    device->ops->fill(device->handle, OPS_EXCHANGE, ferry->memory, floats, 0);
    return device->ops->synchronize(device->handle, why);
}

enum status ferry_open_resident(struct ferry *ferry,
                                const struct device *device,
                                const struct layout *layout,
                                struct arena *arena, struct failure *why) {
    *ferry = (struct ferry){
        .device = device, .layout = layout, .arena = arena, .resident = true};
    uint64_t floats = arena_floats(ferry);
    enum status status = allocate(ferry, 2 * floats, true, why);
    if (!status)
        status = clear(ferry, 2 * floats, why);
    if (status) {
        ferry_close(ferry);
        return status;
    }
    for (uint32_t p = 0; p < layout->num_parameters; p++) {
        ferry->weights[p] = ferry->memory + arena->offsets[p];
        ferry->gradients[p] = ferry->weights[p] + floats;
    }
    device_pin(device, buffer_data(arena->weights),
               buffer_bytes(arena->weights));
    return STATUS_OK;
}

struct reducer_place ferry_place(const struct ferry *ferry) {
    return (struct reducer_place){.ops = ferry->device->ops,
                                  .device = ferry->device->handle,
                                  .weights = ferry->memory,
                                  .gradients =
                                      ferry->memory + arena_floats(ferry),
                                  .complete = ferry->taken};
}

static void close_events(struct ferry *ferry) {
    const struct device *device = ferry->device;
    struct ops_event **both[] = {&ferry->brought, &ferry->computed};
    for (uint32_t p = 0; ferry->taken && p < ferry->layout->num_parameters; p++)
        if (ferry->taken[p])
            device->ops->event_close(device->handle, &ferry->taken[p]);
    for (int i = 0; i < 2; i++)
        if (*both[i])
            device->ops->event_close(device->handle, both[i]);
}

void ferry_close(struct ferry *ferry) {
    const struct device *device = ferry->device;
    if (device && device->ops->later) {
        close_events(ferry);
        unpin(ferry);
        device->ops->release(device->handle, ferry->memory);
        free(ferry->weights);
        free(ferry->gradients);
        free(ferry->current);
        free(ferry->taken);
    }
    *ferry = (struct ferry){0};
}

void ferry_renew(struct ferry *ferry) {
    for (uint32_t p = 0; ferry->memory && p < ferry->layout->num_parameters;
         p++)
        ferry->current[p] = false;
}

void ferry_bring(struct ferry *ferry, uint32_t parameter) {
    const struct ops *ops = ferry->device->ops;
    struct ops_device *handle = ferry->device->handle;
    if (!ferry->memory || ferry->resident || ferry->current[parameter])
        return;
    ops->upload(handle, OPS_WEIGHTS, ferry->weights[parameter],
                ferry->arena->weight_of[parameter], bytes_of(ferry, parameter));
    ferry->current[parameter] = true;
    ferry->bringing = true;
}

void ferry_land(struct ferry *ferry) {
    const struct ops *ops = ferry->device->ops;
    struct ops_device *handle = ferry->device->handle;
    if (!ferry->bringing)
        return;
    ops->record(handle, OPS_WEIGHTS, ferry->brought);
    ops->follow(handle, OPS_COMPUTE, ferry->brought);
    ferry->bringing = false;
}

void ferry_note(struct ferry *ferry, uint32_t parameter) {
    const struct device *device = ferry->device;
    if (ferry->memory)
        device->ops->record(device->handle, OPS_COMPUTE,
                            ferry->taken[parameter]);
}

/* Sets out once what EVENT was recorded behind is done. */
static void download(struct ferry *ferry, uint32_t parameter,
                     struct ops_event *event) {
    const struct ops *ops = ferry->device->ops;
    struct ops_device *handle = ferry->device->handle;
    ops->follow(handle, OPS_GRADIENTS, event);
    ops->download(handle, OPS_GRADIENTS, ferry->arena->gradient_of[parameter],
                  ferry->gradients[parameter], bytes_of(ferry, parameter));
    ops->record(handle, OPS_GRADIENTS, ferry->taken[parameter]);
}

void ferry_fetch(struct ferry *ferry, uint32_t parameter) {
    if (ferry->memory)
        download(ferry, parameter, ferry->taken[parameter]);
}

void ferry_take(struct ferry *ferry, uint32_t parameter) {
    const struct device *device = ferry->device;
    if (!ferry->memory)
        return;
    if (ferry->resident) {
        ferry_note(ferry, parameter);
        return;
    }
    device->ops->record(device->handle, OPS_COMPUTE, ferry->computed);
    download(ferry, parameter, ferry->computed);
}

enum status ferry_await(struct ferry *ferry, uint32_t parameter,
                        struct failure *why) {
    if (!ferry->memory || ferry->resident)
        return STATUS_OK;
    return ferry->device->ops->await(ferry->device->handle,
                                     ferry->taken[parameter], why);
}
