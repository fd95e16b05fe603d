/* SPDX-License-Identifier: Apache-2.0 */
/* Order of allocating device memory and freeing it: before anything is freed,
 * no work that uses it may be in flight. A failed allocation names the job keys
 * that reduce memory (device_add_memory_hint). */
#include "worker/train/executor.h"

#include <stdlib.h>

/* All device memory of a model. */
static enum status allocate_device_memory(struct executor *executor,
                                          const struct job *job,
                                          const struct layout *layout,
                                          struct arena *arena,
                                          const struct executor_options *use,
                                          struct failure *why) {
    const struct device *device = &executor->device;
    uint32_t batch = use->micro_batch;
    uint32_t features, outputs;
    bool trains = use->micro_batch > 0;
    executor->model = model_find(&job->model);
    executor->model->shape(&job->model, &features, &outputs);
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
                                       device->ops, device->handle, batch, why);
    if (!status && trains)
        status = batch_prefetch_open(&executor->batch_prefetch, device,
                                     use->micro_batch, features, why);
    if (!status && use->evaluates)
        status = batch_prefetch_open(&executor->evaluation_prefetch, device,
                                     EVALUATION_BATCH, features, why);
    return status;
}

enum status executor_select_device(struct executor *executor,
                                   const struct device_request *request,
                                   const struct log *log, struct failure *why) {
    *executor = (struct executor){0};
    return device_open(&executor->device, request, log, why);
}

enum status executor_open(struct executor *executor, const struct job *job,
                          const struct layout *layout, struct arena *arena,
                          const struct executor_options *use,
                          struct failure *why) {
    enum status status =
        allocate_device_memory(executor, job, layout, arena, use, why);
    if (status)
        device_add_memory_hint(&executor->device, job, why);
    if (status)
        executor_close(executor);
    return status;
}

void executor_synchronize(struct executor *executor) {
    const struct device *device = &executor->device;
    if (device->ops)
        device->ops->synchronize(device->handle, NULL);
}

void executor_close(struct executor *executor) {
    executor_synchronize(executor);
    batch_prefetch_close(&executor->batch_prefetch);
    batch_prefetch_close(&executor->evaluation_prefetch);
    if (executor->model)
        executor->model->close(&executor->instance);
    device_transfer_close(&executor->device_transfer);
    device_close(&executor->device);
}

/* The weights are on the device. */
static enum status evaluate_range(struct executor *executor,
                                  const struct evaluation_range *range,
                                  struct evaluation *out, struct failure *why) {
    struct batch_prefetch *prefetch = &executor->evaluation_prefetch;
    size_t features = range->test->features;
    uint32_t labels[EVALUATION_BATCH];
    float *inputs = malloc(EVALUATION_BATCH * features * sizeof *inputs);
    enum status status = STATUS_OK;
    *out = (struct evaluation){0};
    if (!inputs)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory to evaluate %d samples of %zu features",
                           EVALUATION_BATCH, features);
    for (uint64_t i = range->first; !status && i < range->end;) {
        struct loader_batch batch = {.inputs = inputs, .labels = labels};
        struct model_result result;
        for (; batch.count < EVALUATION_BATCH && i < range->end;
             batch.count++, i++)
            labels[batch.count] = dataset_sample(
                range->test, (uint32_t)i, inputs + batch.count * features);
        batch_prefetch_push(prefetch, &batch);
        executor->model->evaluate(
            executor->instance, batch_prefetch_pop(prefetch),
            executor->device_transfer.weights, NULL, &result);
        batch_prefetch_release(prefetch);
        status = executor->model->settle(executor->instance, &result, why);
        out->loss_sum += result.loss;
        out->correct += result.correct;
        out->count += result.count;
    }
    free(inputs);
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
