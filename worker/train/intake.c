/* SPDX-License-Identifier: Apache-2.0 */
/* Two places on the device: while one batch is computed with, the next is on
 * its way into the other. `here` says that a batch has come, `free` that what
 * reads it has been done, so neither stream overtakes the other, and the host
 * waits only until its own copy of a batch may be written again. */
#include "worker/train/intake.h"

static struct intake_place *place_of(struct intake *intake, uint64_t batch) {
    return &intake->places[batch % INTAKE_PLACES];
}

static bool open_place(const struct device *device, struct intake_place *place,
                       size_t max_batch, uint32_t features) {
    const struct ops *ops = device->ops;
    size_t inputs = max_batch * features * sizeof *place->inputs;
    place->inputs = ops->allocate(device->handle, inputs);
    place->labels =
        ops->allocate(device->handle, max_batch * sizeof *place->labels);
    place->here = ops->event_open(device->handle);
    place->free = ops->event_open(device->handle);
    return place->inputs && place->labels && place->here && place->free;
}

enum status intake_open(struct intake *intake, const struct device *device,
                        uint32_t max_batch, uint32_t features,
                        struct failure *why) {
    bool complete = true;
    *intake = (struct intake){.device = device, .features = features};
    for (int i = 0; device->ops->later && complete && i < INTAKE_PLACES; i++)
        complete = open_place(device, &intake->places[i], max_batch, features);
    if (complete)
        return STATUS_OK;
    intake_close(intake);
    return status_fail(
        why, STATUS_FAILED,
        "no memory on device %s for %d batches of %u samples, of %zu bytes",
        device->name, INTAKE_PLACES, max_batch,
        INTAKE_PLACES * (size_t)max_batch * (features + 1) * sizeof(float));
}

void intake_close(struct intake *intake) {
    const struct device *device = intake->device;
    for (int i = 0; device && i < INTAKE_PLACES; i++) {
        struct intake_place *place = &intake->places[i];
        device->ops->release(device->handle, place->inputs);
        device->ops->release(device->handle, place->labels);
        if (place->here)
            device->ops->event_close(device->handle, &place->here);
        if (place->free)
            device->ops->event_close(device->handle, &place->free);
    }
    *intake = (struct intake){0};
}

bool intake_ready(const struct intake *intake) {
    return intake->put > intake->taken;
}

void intake_put(struct intake *intake, const struct loader_batch *batch) {
    const struct ops *ops = intake->device->ops;
    struct ops_device *handle = intake->device->handle;
    struct intake_place *place = place_of(intake, intake->put++);
    place->batch = *batch;
    if (!ops->later)
        return;
    size_t values = (size_t)batch->count * intake->features;
    ops->follow(handle, OPS_SAMPLES, place->free);
    ops->upload(handle, OPS_SAMPLES, place->inputs, batch->inputs,
                values * sizeof *place->inputs);
    ops->upload(handle, OPS_SAMPLES, place->labels, batch->labels,
                batch->count * sizeof *place->labels);
    ops->record(handle, OPS_SAMPLES, place->here);
    place->batch.inputs = place->inputs;
    place->batch.labels = place->labels;
}

const struct loader_batch *intake_take(struct intake *intake) {
    const struct device *device = intake->device;
    struct intake_place *place = place_of(intake, intake->taken++);
    if (device->ops->later)
        device->ops->follow(device->handle, OPS_COMPUTE, place->here);
    return &place->batch;
}

void intake_done(struct intake *intake) {
    const struct device *device = intake->device;
    if (device->ops->later)
        device->ops->record(device->handle, OPS_COMPUTE,
                            place_of(intake, intake->taken - 1)->free);
}

enum status intake_await(struct intake *intake, struct failure *why) {
    const struct device *device = intake->device;
    if (!device->ops->later || !intake->put)
        return STATUS_OK;
    return device->ops->await(device->handle,
                              place_of(intake, intake->put - 1)->here, why);
}
