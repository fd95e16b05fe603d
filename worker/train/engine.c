/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which memory of the device is had, and given back: first nothing
 * of it may be under way any more. What cannot be had is told with the keys
 * that need less of it (device_advise). */
#include "worker/train/engine.h"

/* What takes memory of the device. */
static enum status open_parts(struct engine *engine, const struct job *job,
                              const struct layout *layout, struct arena *arena,
                              const struct engine_use *use,
                              struct failure *why) {
    const struct device *device = &engine->device;
    uint32_t batch = use->micro_batch;
    uint32_t features = job->model.layers[0];
    bool trains = use->micro_batch > 0;
    enum status status =
        use->resident
            ? ferry_open_resident(&engine->ferry, device, layout, arena, why)
            : ferry_open(&engine->ferry, device, layout, arena, trains, why);
    if (use->evaluates && batch < EVALUATION_BATCH)
        batch = EVALUATION_BATCH;
    if (!status)
        status = mlp_open(&engine->mlp, &job->model, device->ops,
                          device->handle, batch, why);
    if (!status && trains)
        status = intake_open(&engine->intake, device, use->micro_batch,
                             features, why);
    if (!status && use->evaluates)
        status = intake_open(&engine->trial, device, EVALUATION_BATCH, features,
                             why);
    return status;
}

enum status engine_find(struct engine *engine, const struct device_wish *wish,
                        const struct log *log, struct failure *why) {
    *engine = (struct engine){0};
    return device_open(&engine->device, wish, log, why);
}

enum status engine_open(struct engine *engine, const struct job *job,
                        const struct layout *layout, struct arena *arena,
                        const struct engine_use *use, struct failure *why) {
    enum status status = open_parts(engine, job, layout, arena, use, why);
    if (status)
        device_advise(&engine->device, job, why);
    if (status)
        engine_close(engine);
    return status;
}

void engine_rest(struct engine *engine) {
    const struct device *device = &engine->device;
    if (device->ops)
        device->ops->synchronize(device->handle, NULL);
}

void engine_close(struct engine *engine) {
    engine_rest(engine);
    intake_close(&engine->intake);
    intake_close(&engine->trial);
    mlp_close(&engine->mlp);
    ferry_close(&engine->ferry);
    device_close(&engine->device);
}

enum status engine_evaluate(struct engine *engine,
                            const struct evaluation_part *part,
                            struct evaluation *out, struct failure *why) {
    struct ferry *ferry = &engine->ferry;
    ferry_renew(ferry);
    for (uint32_t p = 0; p < ferry->layout->num_parameters; p++)
        ferry_bring(ferry, p);
    ferry_land(ferry);
    return evaluation_run(out, engine->mlp, &engine->trial, part,
                          ferry->weights, why);
}
