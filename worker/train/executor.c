/* SPDX-License-Identifier: Apache-2.0 */
/* Order of allocating device memory and freeing it: before anything is freed,
 * no work that uses it may be in flight. A failed allocation names the job keys
 * that reduce memory (local_device_add_memory_hint). */
#include "worker/train/executor.h"

#include <stdlib.h>

/* All device memory of a model. */
static enum status allocate_device_memory(struct executor *executor,
                                          const struct job *job,
                                          const struct layout *layout,
                                          struct arena *arena,
                                          const struct executor_options *use,
                                          struct failure *why) {
    const struct local_device *device = &executor->device;
    uint32_t batch = use->micro_batch;
    bool trains = use->micro_batch > 0;
    executor->model = model_find(&job->model);
    model_inputs(job, use->features, &executor->spec);
    executor->spec.columns[0].pixels = use->pixels && device->ops->async;
    enum status status =
        use->resident
            ? device_transfer_open_resident(&executor->device_transfer, device,
                                            layout, arena, why)
            : device_transfer_open(&executor->device_transfer, device, layout,
                                   arena, trains, why);
    if (use->evaluates && batch < EVALUATION_BATCH)
        batch = EVALUATION_BATCH;
    if (!status)
        status = executor->model->open(&executor->instance, &job->model,
                                       &executor->spec, device->ops,
                                       device->handle, batch, why);
    if (!status && trains)
        status = batch_prefetch_open(&executor->batch_prefetch, device,
                                     use->micro_batch, &executor->spec, why);
    if (!status && use->evaluates)
        status = batch_prefetch_open(&executor->evaluation_prefetch, device,
                                     EVALUATION_BATCH, &executor->spec, why);
    if (status || !use->evaluates)
        return status;
    executor->taken = device->ops->event_open(device->handle);
    return executor->taken ? STATUS_OK
                           : status_fail(why, FAILURE_DEVICE_MEMORY,
                                         "no memory on device %s for an event",
                                         device->name);
}

enum status executor_select_device(struct executor *executor,
                                   const struct local_device_request *request,
                                   const struct log *log, struct failure *why) {
    *executor = (struct executor){0};
    return local_device_open(&executor->device, request, log, why);
}

enum status executor_open(struct executor *executor, const struct job *job,
                          const struct layout *layout, struct arena *arena,
                          const struct executor_options *use,
                          struct failure *why) {
    enum status status =
        allocate_device_memory(executor, job, layout, arena, use, why);
    if (status)
        local_device_add_memory_hint(&executor->device, job, why);
    if (status)
        executor_close(executor);
    return status;
}

void executor_synchronize(struct executor *executor) {
    const struct local_device *device = &executor->device;
    if (device->ops)
        device->ops->synchronize(device->handle, NULL);
}

void executor_close(struct executor *executor) {
    executor_synchronize(executor);
    if (executor->taken)
        executor->device.ops->event_close(executor->device.handle,
                                          &executor->taken);
    batch_prefetch_close(&executor->batch_prefetch);
    batch_prefetch_close(&executor->evaluation_prefetch);
    if (executor->model)
        executor->model->close(&executor->instance);
    device_transfer_close(&executor->device_transfer);
    local_device_close(&executor->device);
}

/* Are the outputs logits of samples of two classes? */
static bool has_scores(const struct executor *executor,
                       const struct model_outputs *outputs) {
    uint32_t label = batch_label_column(&executor->spec);
    return outputs->loss == JOB_SIGMOID_CROSS_ENTROPY &&
           executor->spec.columns[label].type == BATCH_FLOATS;
}

/* Gives OUTPUTS of HOST's samples to who takes them, else adds their scores. */
static enum status use_outputs(const struct executor *executor,
                               const struct evaluation_range *range,
                               const struct batch *host,
                               const struct model_outputs *outputs,
                               struct evaluation *out, struct failure *why) {
    uint32_t label = batch_label_column(&executor->spec);
    if (range->take)
        return range->take(range->context, outputs, host->count, why);
    if (binary_scores_add(&out->scores, outputs->values, host->columns[label],
                          host->count, range->test->count))
        return STATUS_OK;
    return status_fail(why, FAILURE_NO_MEMORY,
                       "no memory for the scores of %zu samples",
                       out->scores.count);
}

/* Takes the outputs of the evaluation of HOST to the host's memory. */
static enum status take_outputs(const struct executor *executor,
                                const struct evaluation_range *range,
                                const struct batch *host,
                                struct evaluation *out, struct failure *why) {
    const struct local_device *device = &executor->device;
    struct model_outputs outputs = executor->model->outputs(executor->instance);
    size_t bytes = (size_t)host->count * outputs.width * sizeof(float);
    float *copy = NULL;
    enum status status = STATUS_OK;
    if (!range->take && !has_scores(executor, &outputs))
        return STATUS_OK;
    if (device->ops->async) {
        copy = malloc(bytes);
        if (!copy)
            return status_fail(why, FAILURE_NO_MEMORY,
                               "no memory for the outputs of %u samples",
                               host->count);
        device->ops->download(device->handle, STREAM_COMPUTE, copy,
                              outputs.values, bytes);
        device->ops->record(device->handle, STREAM_COMPUTE, executor->taken);
        status = device->ops->event_sync(device->handle, executor->taken, why);
        outputs.values = copy;
    }
    if (!status)
        status = use_outputs(executor, range, host, &outputs, out, why);
    free(copy);
    return status;
}

/* Evaluates HOST, whose columns are on the device. *READY is false if the rows
 * of tables do not come any more. */
static enum status evaluate_batch(struct executor *executor,
                                  const struct evaluation_range *range,
                                  const struct batch *host, bool *ready,
                                  struct evaluation *out, struct failure *why) {
    struct batch_prefetch *prefetch = &executor->evaluation_prefetch;
    struct model_result result = {0};
    enum status status = STATUS_OK;
    batch_prefetch_push(prefetch, host);
    struct batch batch = *batch_prefetch_pop(prefetch);
    if (range->embedding)
        status = embedding_evaluate(range->embedding, &batch, range->clock,
                                    range->snapshot, ready, why);
    if (!status && *ready)
        executor->model->evaluate(executor->instance, &batch,
                                  executor->device_transfer.weights, NULL,
                                  &result);
    batch_prefetch_release(prefetch);
    if (status || !*ready)
        return status;
    status = executor->model->settle(executor->instance, &result, why);
    out->loss_sum += result.loss;
    out->correct += result.correct;
    out->count += result.count;
    return status ? status : take_outputs(executor, range, host, out, why);
}

/* Evaluates the batches of SOURCE, RANGE's, in MEMORY; the weights are on the
 * device. */
static enum status evaluate_batches(struct executor *executor,
                                    const struct evaluation_range *range,
                                    struct batch_source *source, void *memory,
                                    struct evaluation *out,
                                    struct failure *why) {
    const struct batch_source_table *table = range->test->table->batches;
    struct batch_claim claim = {0};
    struct batch batch = {0};
    bool ready = true;
    enum status status =
        batch_ids_open(&batch.ids, &executor->spec, EVALUATION_BATCH, why);
    batch_place(&batch, &executor->spec, memory, EVALUATION_BATCH);
    for (; !status && ready; claim.number++) {
        status = table->claim(source, &claim, why);
        if (status || !claim.count)
            break;
        status = table->fill(source, &claim, &batch, why);
        if (status)
            break;
        out->bad_lines += batch.bad_lines;
        if (!batch.count)
            continue; /* bad records only */
        status = evaluate_batch(executor, range, &batch, &ready, out, why);
    }
    batch_claim_free(table, &claim);
    batch_ids_close(&batch.ids, &executor->spec);
    return status;
}

static enum status evaluate_range(struct executor *executor,
                                  const struct evaluation_range *range,
                                  struct evaluation *out, struct failure *why) {
    const struct dataset *test = range->test;
    const struct batch_source_table *table = test->table->batches;
    size_t bytes = batch_bytes(&executor->spec, EVALUATION_BATCH);
    void *memory = malloc(bytes);
    struct batch_source *source = NULL;
    *out = (struct evaluation){0};
    if (!memory)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory to evaluate %d samples of %zu bytes",
                           EVALUATION_BATCH, bytes / EVALUATION_BATCH);
    enum status status =
        test->table->range(&source, test, &executor->spec, range->first,
                           range->end, EVALUATION_BATCH, why);
    if (!status)
        status = evaluate_batches(executor, range, source, memory, out, why);
    table->close(&source);
    free(memory);
    return status;
}

enum status executor_evaluate(struct executor *executor,
                              const struct evaluation_range *range,
                              struct evaluation *out, struct failure *why) {
    struct device_transfer *transfer = &executor->device_transfer;
    device_transfer_invalidate(transfer);
    for (uint32_t p = 0; p < transfer->layout->num_parameters; p++)
        device_transfer_upload(transfer, p);
    device_transfer_wait(transfer);
    return evaluate_range(executor, range, out, why);
}
