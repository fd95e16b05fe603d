/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/train/device_replica.h"

#include "core/base/time.h"
#include "core/base/trace.h"

#include <math.h>

/* The context of a pass's hooks. */
struct pass {
    struct device_replica *device_replica;
    const struct device_replica_step *step;
    struct device_replica_result *result;
    uint32_t filled, last; /* micro batches that should have samples: how many,
                              and the last */
    uint32_t computed;     /* micro batches that had some */
    bool announced;        /* gradients, in the last one's backward pass */
    enum { PASS_NONE, PASS_FORWARD, PASS_BACKWARD } phase; /* of the present */
    /* When its passes begin; 0: it is not traced, or not there yet. An
     * asynchronous device computes them later: of it these are the times at
     * which they are enqueued. */
    int64_t forward, backward;
};

enum status device_replica_load(struct device_replica *replica,
                                const struct dataset *dataset,
                                const struct sampler_options *samples,
                                uint64_t first, const struct job_data *data,
                                struct failure *why) {
    struct loader_prefetch prefetch = {data->num_workers,
                                       data->prefetch_factor};
    enum status status =
        loader_open(&replica->loader, dataset, &replica->executor.spec, samples,
                    first, prefetch, why);
    if (status)
        return status;
    size_t bytes;
    void *memory = loader_memory(replica->loader, &bytes);
    local_device_pin(&replica->executor.device, memory, bytes);
    replica->next = first;
    return STATUS_OK;
}

/* Uploads may still read the loader's memory. */
static void close_loader(struct device_replica *replica) {
    size_t bytes;
    if (!replica->loader)
        return;
    executor_synchronize(&replica->executor);
    local_device_unpin(&replica->executor.device,
                       loader_memory(replica->loader, &bytes));
    loader_close(&replica->loader);
}

void device_replica_close(struct device_replica *replica) {
    close_loader(replica);
    executor_close(&replica->executor);
    arena_close(&replica->arena);
}

/* Uploads each parameter as it arrives. If one does not arrive, the pass
 * continues with the old weights, as it cannot stop in the middle; the caller
 * checks should_continue and discards the result. */
static void device_replica_need(void *context, uint32_t first, uint32_t count) {
    struct pass *pass = context;
    struct device_transfer *transfer =
        &pass->device_replica->executor.device_transfer;
    for (uint32_t p = first; p < first + count; p++)
        if (pass->step->need(pass->step->context, p))
            device_transfer_upload(transfer, p);
    device_transfer_wait(transfer);
}

static void begin_range(struct pass *pass, const char *name) {
    const struct local_device *device = &pass->device_replica->executor.device;
    device->ops->range(device->handle, name);
}

/* Of the present micro batch; later calls do nothing. */
static void enter_backward(struct pass *pass) {
    if (pass->phase != PASS_FORWARD)
        return;
    pass->phase = PASS_BACKWARD;
    pass->backward = pass->forward ? time_now() : 0;
    begin_range(pass, NULL);
    begin_range(pass, "backward");
}

static void enter_forward(struct pass *pass) {
    const struct device_replica_step *step = pass->step;
    pass->phase = PASS_FORWARD;
    pass->backward = 0;
    pass->forward = trace_begin(step->trace, step->clock + 1);
    begin_range(pass, "forward");
}

/* Micro batch K is computed, and on an asynchronous device awaited. */
static void end_passes(struct pass *pass, uint32_t k) {
    struct trace_record record = {.start = pass->forward,
                                  .duration = pass->backward - pass->forward,
                                  .step = pass->step->clock + 1,
                                  .block = k,
                                  .kind = TRACE_FORWARD};
    pass->phase = PASS_NONE;
    begin_range(pass, NULL);
    if (!pass->forward || !pass->backward)
        return;
    trace_add(pass->step->trace, &record);
    trace_end(pass->step->trace, pass->backward, TRACE_BACKWARD, record.step,
              k);
}

static bool check_loss(void *context, double loss) {
    struct pass *pass = context;
    enter_backward(pass);
    pass->result->loss += loss;
    if (!isfinite(loss))
        pass->result->nonfinite = true;
    return !pass->result->nonfinite &&
           pass->step->should_continue(pass->step->context);
}

/* True if gradients still have to be downloaded from the device. */
static bool device_replica_is_async(const struct device_replica *replica) {
    return replica->executor.device.ops->async;
}

static void device_replica_done(void *context, uint32_t parameter) {
    struct pass *pass = context;
    struct device_transfer *transfer =
        &pass->device_replica->executor.device_transfer;
    enter_backward(pass);
    if (!device_replica_is_async(pass->device_replica))
        pass->step->done(pass->step->context, parameter);
    else if (pass->step->reduce_on_device)
        device_transfer_record(transfer, parameter);
    else
        device_transfer_download(transfer, parameter);
}

/* Starts the upload of the loader's next batch; the view of the one before
 * ends. */
static enum status prefetch_next(struct device_replica *replica,
                                 const struct device_replica_step *step,
                                 struct device_replica_result *result,
                                 struct failure *why) {
    struct batch_prefetch *prefetch = &replica->executor.batch_prefetch;
    int64_t start = time_now();
    const struct batch *batch;
    enum status status = batch_prefetch_sync(prefetch, why);
    if (!status)
        status = loader_next(replica->loader, &batch, why);
    if (!status)
        batch_prefetch_push(prefetch, batch);
    result->input += time_now() - start;
    if (trace_wants(step->trace, step->clock + 1))
        trace_end(step->trace, start, TRACE_INPUT, step->clock + 1, 0);
    return status;
}

/* The factor of BATCH's loss: the step's gradient is the mean of the
 * accumulated micro batches' mean gradients, times the loss scale. */
static float scale_of(const struct pass *pass, const struct batch *batch) {
    return 1.0f / ((float)batch->count * (float)pass->filled) *
           pass->step->factor;
}

/* Which of the step's micro batches have samples. */
static void find_filled(struct pass *pass) {
    const struct device_replica *replica = pass->device_replica;
    pass->filled = 0;
    for (uint32_t k = 0; k < pass->step->job->accumulation; k++) {
        if (!loader_size(replica->loader, replica->next + k))
            continue;
        pass->filled++;
        pass->last = k;
    }
}

static void add_result(struct device_replica_result *result,
                       const struct model_result *batch_result) {
    if (!isfinite(batch_result->loss))
        return;
    result->finite_loss_sum += batch_result->loss;
    result->samples += batch_result->count;
    result->correct += batch_result->correct;
    result->last_loss = batch_result->loss;
    result->last_samples = batch_result->count;
}

/* Fills BATCH's columns of rows. *READY is false if the run ends. */
static enum status get_rows(const struct device_replica_step *step,
                            struct batch *batch, bool *ready,
                            struct failure *why) {
    enum status status = STATUS_OK;
    *ready = true;
    if (!step->embedding)
        return STATUS_OK;
    if (!embedding_is_ahead(step->embedding))
        status =
            embedding_request(step->embedding, batch, step->clock, false, why);
    *ready = !status && embedding_forward(step->embedding, batch);
    return status;
}

/* Requests the rows of the micro batch after K, if it is there and they may be
 * read before the push of this step. */
static enum status look_up_next(const struct pass *pass, uint32_t k,
                                struct failure *why) {
    const struct device_replica_step *step = pass->step;
    bool last = k + 1 == step->job->accumulation;
    if (!step->embedding || (last && !step->early_rows))
        return STATUS_OK;
    const struct batch *next = loader_peek(pass->device_replica->loader);
    return next && next->count
               ? embedding_request(step->embedding, next, step->clock + last,
                                   last, why)
               : STATUS_OK;
}

/* Forward and backward over one micro batch; the first waits for the weights.
 * On an asynchronous device the next batch is uploaded meanwhile. */
static enum status run_micro_batch(struct pass *pass, uint32_t k,
                                   struct failure *why) {
    const struct device_replica_step *step = pass->step;
    struct executor *executor = &pass->device_replica->executor;
    bool async = device_replica_is_async(pass->device_replica);
    bool last = k == pass->last && !pass->result->nonfinite;
    struct model_hooks hooks = {
        pass, pass->computed ? NULL : device_replica_need, check_loss,
        last && (async || step->early) ? device_replica_done : NULL};
    struct model_result batch_result;
    enum status status = STATUS_OK;
    if (!batch_prefetch_ready(&executor->batch_prefetch))
        status = prefetch_next(pass->device_replica, step, pass->result, why);
    if (status)
        return status;
    struct batch batch = *batch_prefetch_pop(&executor->batch_prefetch);
    bool ready = batch.count > 0;
    pass->device_replica->next++;
    pass->result->bad_lines += batch.bad_lines;
    if (ready)
        status = get_rows(step, &batch, &ready, why);
    if (ready)
        status = look_up_next(pass, k, why);
    if (!ready || status) {
        batch_prefetch_release(&executor->batch_prefetch);
        return status;
    }
    enter_forward(pass);
    executor->model->gradient(
        executor->instance, &batch, executor->device_transfer.weights,
        executor->device_transfer.gradients, scale_of(pass, &batch),
        pass->computed > 0, &hooks, &batch_result);
    pass->computed++;
    pass->announced = hooks.done != NULL;
    batch_prefetch_release(&executor->batch_prefetch);
    if (step->embedding)
        status = embedding_backward(step->embedding, &batch, why);
    if (async && !status) {
        status = prefetch_next(pass->device_replica, step, pass->result, why);
        if (!status)
            status =
                executor->model->settle(executor->instance, &batch_result, why);
        if (!status)
            (void)check_loss(
                pass,
                batch_result.loss); /* result->nonfinite is checked below */
    }
    end_passes(pass, k);
    if (!status)
        add_result(pass->result, &batch_result);
    return status;
}

/* The last micro batch had no sample after all, as all its records are bad. */
static void announce_late(struct pass *pass) {
    const struct executor *executor = &pass->device_replica->executor;
    if (!device_replica_is_async(pass->device_replica) && !pass->step->early)
        return;
    for (uint32_t p = executor->device_transfer.layout->num_parameters;
         p-- > 0;)
        device_replica_done(pass, p);
}

enum status device_replica_compute(struct device_replica *replica,
                                   const struct device_replica_step *step,
                                   struct device_replica_result *result,
                                   struct failure *why) {
    struct pass pass = {
        .device_replica = replica, .step = step, .result = result};
    enum status status = replica->ahead.status;
    *result = (struct device_replica_result){.input = replica->ahead.input};
    replica->ahead.input = 0;
    if (status) {
        *why = replica->ahead.why;
        return status;
    }
    find_filled(&pass);
    for (uint32_t k = 0; !status && k < step->job->accumulation; k++) {
        if (k > 0 && !step->should_continue(step->context))
            return STATUS_OK;
        status = run_micro_batch(&pass, k, why);
    }
    result->empty = !pass.computed;
    if (!status && pass.computed && !pass.announced && !result->nonfinite)
        announce_late(&pass);
    return status;
}

enum status device_replica_skip(struct device_replica *replica, uint64_t count,
                                struct failure *why) {
    struct batch_prefetch *prefetch = &replica->executor.batch_prefetch;
    const struct batch *batch;
    enum status status = STATUS_OK;
    for (; !status && count; count--, replica->next++) {
        if (batch_prefetch_ready(prefetch)) {
            batch_prefetch_pop(prefetch);
            batch_prefetch_release(prefetch);
            continue;
        }
        status = batch_prefetch_sync(prefetch, why);
        if (!status)
            status = loader_next(replica->loader, &batch, why);
    }
    return status;
}

void device_replica_look_ahead(struct device_replica *replica,
                               const struct device_replica_step *step) {
    struct batch_prefetch *prefetch = &replica->executor.batch_prefetch;
    struct device_replica_result result = {0};
    struct failure *why = &replica->ahead.why;
    enum status status = STATUS_OK;
    if (!step->embedding || embedding_is_ahead(step->embedding))
        return;
    if (!batch_prefetch_ready(prefetch))
        status = prefetch_next(replica, step, &result, why);
    const struct batch *batch = batch_prefetch_peek(prefetch);
    if (!status && batch->count)
        status =
            embedding_request(step->embedding, batch, step->clock, false, why);
    replica->ahead.status = status;
    replica->ahead.input = result.input;
}
