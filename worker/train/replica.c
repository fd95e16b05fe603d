/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/train/replica.h"

#include "proto/base/time.h"

#include <math.h>

/* A pass as its hooks see it. */
struct pass {
    struct replica *replica;
    const struct replica_step *step;
    struct replica_result *result;
};

enum status replica_load(struct replica *replica, const struct dataset *dataset,
                         const struct sampler_options *samples, uint64_t first,
                         const struct job_data *data, struct failure *why) {
    struct loader_ahead ahead = {data->num_workers, data->prefetch_factor};
    enum status status =
        loader_open(&replica->loader, dataset, samples, first, ahead, why);
    if (status)
        return status;
    size_t bytes;
    void *memory = loader_memory(replica->loader, &bytes);
    device_pin(&replica->engine.device, memory, bytes);
    return STATUS_OK;
}

/* Batches may be on their way to the device. */
static void close_loader(struct replica *replica) {
    size_t bytes;
    if (!replica->loader)
        return;
    engine_rest(&replica->engine);
    device_unpin(&replica->engine.device,
                 loader_memory(replica->loader, &bytes));
    loader_close(&replica->loader);
}

void replica_close(struct replica *replica) {
    close_loader(replica);
    engine_close(&replica->engine);
    arena_close(&replica->arena);
}

/* Each sets out as it comes. Where one does not come the pass goes on with what
 * is there, as it cannot end in its middle; whoever called it looks at goes_on
 * and throws the result away. */
static void need(void *context, uint32_t first, uint32_t count) {
    struct pass *pass = context;
    struct ferry *ferry = &pass->replica->engine.ferry;
    for (uint32_t p = first; p < first + count; p++)
        if (pass->step->need(pass->step->context, p))
            ferry_bring(ferry, p);
    ferry_land(ferry);
}

static bool take_loss(void *context, double loss) {
    struct pass *pass = context;
    pass->result->loss += loss;
    if (!isfinite(loss))
        pass->result->poisoned = true;
    return !pass->result->poisoned && pass->step->goes_on(pass->step->context);
}

/* Does a gradient still have to come from the device? */
static bool is_remote(const struct replica *replica) {
    return replica->engine.device.ops->later;
}

static void done(void *context, uint32_t parameter) {
    struct pass *pass = context;
    struct ferry *ferry = &pass->replica->engine.ferry;
    if (!is_remote(pass->replica))
        pass->step->done(pass->step->context, parameter);
    else if (pass->step->together)
        ferry_note(ferry, parameter);
    else
        ferry_take(ferry, parameter);
}

/* The next batch of the loader sets out; the view of the one before ends. */
static enum status feed(struct replica *replica, struct replica_result *result,
                        struct failure *why) {
    struct intake *intake = &replica->engine.intake;
    int64_t start = time_now();
    enum status status = intake_await(intake, why);
    if (!status)
        intake_put(intake, loader_next(replica->loader));
    result->input += time_now() - start;
    return status;
}

/* By this the loss of BATCH is multiplied: the step's gradient is the mean of
 * the accumulated micro batches' mean gradients, times the loss scale. */
static float scale_of(const struct replica_step *step,
                      const struct loader_batch *batch) {
    return 1.0f / ((float)batch->count * (float)step->job->accumulation) *
           step->factor;
}

static void add_result(struct replica_result *result,
                       const struct mlp_result *found) {
    if (!isfinite(found->loss))
        return;
    result->finite += found->loss;
    result->samples += found->count;
    result->correct += found->correct;
    result->last_loss = found->loss;
    result->last_samples = found->count;
}

/* Forward and backward over one micro batch, of which the first brings the
 * weights. Where the device goes on by itself, the next batch sets out
 * meanwhile. */
static enum status take_batch(struct pass *pass, uint32_t k,
                              struct failure *why) {
    const struct replica_step *step = pass->step;
    struct engine *engine = &pass->replica->engine;
    bool remote = is_remote(pass->replica);
    bool last = k + 1 == step->job->accumulation && !pass->result->poisoned;
    struct mlp_hooks hooks = {pass, k == 0 ? need : NULL, take_loss,
                              last && (remote || step->early) ? done : NULL};
    struct mlp_result found;
    enum status status = STATUS_OK;
    if (!intake_ready(&engine->intake))
        status = feed(pass->replica, pass->result, why);
    if (status)
        return status;
    const struct loader_batch *batch = intake_take(&engine->intake);
    mlp_gradient(engine->mlp, batch, engine->ferry.weights,
                 engine->ferry.gradients, scale_of(step, batch), k > 0, &hooks,
                 &found);
    intake_done(&engine->intake);
    if (remote) {
        status = feed(pass->replica, pass->result, why);
        if (!status)
            status = mlp_settle(engine->mlp, &found, why);
        if (!status)
            (void)take_loss(pass, found.loss); /* looked at below */
    }
    if (!status)
        add_result(pass->result, &found);
    return status;
}

enum status replica_compute(struct replica *replica,
                            const struct replica_step *step,
                            struct replica_result *result,
                            struct failure *why) {
    struct pass pass = {replica, step, result};
    enum status status = STATUS_OK;
    *result = (struct replica_result){0};
    for (uint32_t k = 0; !status && k < step->job->accumulation; k++) {
        if (k > 0 && !step->goes_on(step->context))
            return STATUS_OK;
        status = take_batch(&pass, k, why);
    }
    return status;
}
