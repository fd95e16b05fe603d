/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/models/model_pass.h"

#include <stddef.h>
#include <stdlib.h>

enum { PAGE = 4096 };

/* The bytes after `correct` are padding. */
struct model_loss_result {
    double loss;
    uint32_t correct;
};
enum {
    RESULT_BYTES =
        offsetof(struct model_loss_result, correct) + sizeof(uint32_t)
};

void model_pass_need(const struct model_pass *pass, uint32_t first,
                     uint32_t count) {
    if (!pass->hooks || !pass->hooks->need)
        return;
    pass->ops->capture_end(pass->device);
    pass->hooks->need(pass->hooks->context, first, count);
    pass->ops->capture_begin(pass->device);
}

void model_pass_done(const struct model_pass *pass, uint32_t parameter) {
    if (pass->hooks && pass->hooks->done)
        pass->hooks->done(pass->hooks->context, parameter);
}

void model_pass_run(const struct model_pass *pass, struct op op) {
    pass->ops->run(pass->device, STREAM_COMPUTE, op);
}

enum status model_pass_prepare(const struct device_ops *ops,
                               struct device *device, struct op op,
                               struct failure *why) {
    if (!ops->supports(device, op))
        return status_fail(why, FAILURE_DEVICE_UNUSABLE,
                           "device %s does not compute op %u of %u samples, %u "
                           "inputs and %u outputs",
                           ops->name, op.kind, op.n, op.in, op.out);
    return ops->prepare(device, op, why);
}

bool model_loss_open(struct model_loss *loss, const struct device_ops *ops,
                     struct device *device) {
    *loss = (struct model_loss){.ops = ops, .device = device};
    loss->event = ops->event_open(device);
    loss->on_device = ops->allocate(device, sizeof *loss->on_device);
    loss->on_host = ops->async ? aligned_alloc(PAGE, PAGE) : loss->on_device;
    if (!loss->event || !loss->on_device || !loss->on_host)
        return false;
    if (ops->async)
        ops->pin(device, loss->on_host,
                 PAGE); /* if it fails, downloads are slower */
    return true;
}

void model_loss_close(struct model_loss *loss) {
    const struct device_ops *ops = loss->ops;
    if (!ops)
        return;
    if (loss->event)
        ops->event_close(loss->device, &loss->event);
    if (ops->async && loss->on_host) {
        ops->unpin(loss->device, loss->on_host);
        free(loss->on_host);
    }
    ops->release(loss->device, loss->on_device);
}

enum status model_loss_prepare(const struct model_loss *loss,
                               enum job_loss kind, uint32_t max_batch,
                               uint32_t out, struct failure *why) {
    return model_pass_prepare(
        loss->ops, loss->device,
        op_loss(kind, NULL, NULL, NULL, NULL, max_batch, out, 1, NULL, NULL),
        why);
}

void model_loss_compute(struct model_loss *loss, enum job_loss kind,
                        const float *z, const uint32_t *labels,
                        const float *weights, float *dz, uint32_t out,
                        float scale) {
    const struct device_ops *ops = loss->ops;
    ops->run(loss->device, STREAM_COMPUTE,
             op_loss(kind, z, labels, weights, dz, loss->count, out, scale,
                     &loss->on_device->loss, &loss->on_device->correct));
    ops->record(loss->device, STREAM_COMPUTE, loss->event);
    ops->stream_wait(loss->device, STREAM_GRADIENTS, loss->event);
    ops->download(loss->device, STREAM_GRADIENTS, loss->on_host,
                  loss->on_device, RESULT_BYTES);
    ops->record(loss->device, STREAM_GRADIENTS, loss->event);
}

struct model_result model_loss_known(const struct model_loss *loss) {
    if (loss->ops->async)
        return (struct model_result){0};
    return (struct model_result){loss->on_host->loss, loss->on_host->correct,
                                 loss->count};
}

enum status model_loss_settle(const struct model_loss *loss,
                              struct model_result *result,
                              struct failure *why) {
    *result = (struct model_result){0};
    enum status status = loss->ops->event_sync(loss->device, loss->event, why);
    if (!status)
        *result = (struct model_result){loss->on_host->loss,
                                        loss->on_host->correct, loss->count};
    return status;
}
