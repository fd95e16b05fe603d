/* SPDX-License-Identifier: Apache-2.0 */
/* What the passes of all models share: hooks, the loss and its way to the
 * host. */
#ifndef CAPSTAN_MODEL_PASS_H
#define CAPSTAN_MODEL_PASS_H

#include "worker/models/model.h"

/* The arguments of a model's gradient, or of its evaluate (`gradients` NULL),
 * with the device that computes. */
struct model_pass {
    const struct device_ops *ops;
    struct device *device;
    const struct batch *batch;
    float *const *weights, *const *gradients;
    bool add;
    const struct model_hooks *hooks;
};

/* Calls the hook for COUNT parameters from FIRST on. Submits the enqueued work
 * first: the host may have to wait for weights, and the device continues
 * meanwhile. */
void model_pass_need(const struct model_pass *pass, uint32_t first,
                     uint32_t count);

void model_pass_done(const struct model_pass *pass, uint32_t parameter);

/* Runs OP on STREAM_COMPUTE. */
void model_pass_run(const struct model_pass *pass, struct op op);

/* `prepare` of device.h. STATUS_CONFIG: the device does not support OP. */
enum status model_pass_prepare(const struct device_ops *ops,
                               struct device *device, struct op op,
                               struct failure *why) MUST_CHECK;

/* The loss of the last pass of an instance. */
struct model_loss {
    const struct device_ops *ops;
    struct device *device;
    struct model_loss_result *on_device;
    struct model_loss_result *on_host; /* a page of its own unless the device's
                                          memory is the host's */
    struct device_event *event;
    uint32_t count; /* samples */
};

/* False: no memory. */
bool model_loss_open(struct model_loss *loss, const struct device_ops *ops,
                     struct device *device);

/* Frees what LOSS, perhaps all zero or half open, has. */
void model_loss_close(struct model_loss *loss);

/* Prepares model_loss_compute for MAX_BATCH samples. Fails as
 * model_pass_prepare. */
enum status model_loss_prepare(const struct model_loss *loss,
                               enum job_loss kind, uint32_t max_batch,
                               uint32_t out, struct failure *why) MUST_CHECK;

/* The loss of logits Z [count, OUT] for LABELS and WEIGHTS [count] (NULL: 1
 * each); DZ receives the gradient of SCALE * (sum
 * of the losses), or is NULL. Its download has its own stream, so that the
 * backward pass need not wait for it. */
void model_loss_compute(struct model_loss *loss, enum job_loss kind,
                        const float *z, const uint32_t *labels,
                        const float *weights, float *dz, uint32_t out,
                        float scale);

/* The result as far as it is known without waiting. */
struct model_result model_loss_known(const struct model_loss *loss);

/* As `settle` of model.h. */
enum status model_loss_settle(const struct model_loss *loss,
                              struct model_result *result, struct failure *why);

#endif
