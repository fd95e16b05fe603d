/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/gpu_compute.h"

#include "commands/measure/bench_iteration.h"
#include "core/base/time.h"
#include "core/tensor/layout.h"
#include "core/tensor/rule.h"
#include "worker/models/mlp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_PARAMETERS = 2 * JOB_MAX_WIDTHS,
    MAX_ITERATIONS = 4096,
    LAPS = 25,
    COPY_BYTES = 64 << 20, /* at once, where the device has the memory */
    PAGE = 4096,
    ALIGN_FLOATS = 16,
};

static const double RATE = 1e-3; /* learnt at, so that nothing overflows */

/* What is measured: TIMES of it are given to the device, which may do them
 * later. */
struct work {
    const struct local_device *device;
    void (*give)(void *context, uint64_t times);
    void *context;
    struct device_event *end; /* of a lap; computing is behind it */
    enum device_stream streams[2];
    int num_streams;
};

/* Waits until all that has been given is done. */
static enum status settle(const struct work *work, struct failure *why) {
    const struct device_ops *ops = work->device->ops;
    enum status status = STATUS_OK;
    for (int i = 0; !status && i < work->num_streams; i++) {
        ops->record(work->device->handle, work->streams[i], work->end);
        status = ops->event_sync(work->device->handle, work->end, why);
    }
    return status;
}

static enum status lap(double *seconds, const struct work *work, uint64_t times,
                       struct failure *why) {
    int64_t start = time_now();
    work->give(work->context, times);
    enum status status = settle(work, why);
    *seconds = time_to_seconds(time_now() - start);
    return status;
}

/* So many times make a lap of SECONDS; what is slow at first is over then. */
static enum status warm_up(uint64_t *times, const struct work *work,
                           double seconds, struct failure *why) {
    double taken = 0;
    enum status status = lap(&taken, work, 1, why);
    for (*times = 1; !status; *times *= 2) {
        status = lap(&taken, work, *times, why);
        if (taken >= seconds)
            break;
    }
    return status;
}

/* For SECONDS, in laps of which the median counts. */
static enum status measure(struct gpu_compute_figure *out, struct work *work,
                           double seconds, struct failure *why) {
    double laps[MAX_ITERATIONS];
    uint64_t times;
    size_t count = 0;
    work->end = work->device->ops->event_open(work->device->handle);
    if (!work->end)
        return status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                           "no memory for an event");
    enum status status = warm_up(&times, work, seconds / LAPS, why);
    int64_t end = time_now() + time_from_seconds(seconds);
    do {
        if (status)
            break;
        status = lap(&laps[count], work, times, why);
        laps[count++] /= (double)times;
    } while (count < MAX_ITERATIONS && time_now() < end);
    work->device->ops->event_close(work->device->handle, &work->end);
    if (status)
        return status;
    out->median = bench_iteration_median(laps, count); /* sorts them */
    out->least = laps[0];
    out->most = laps[count - 1];
    return STATUS_OK;
}

struct step {
    const struct local_device *device;
    bool updates;
    struct model_instance *mlp;
    size_t floats; /* of all parameters, one behind the other, aligned */
    float *weights[MAX_PARAMETERS], *gradients[MAX_PARAMETERS];
    float *inputs;
    uint32_t *labels;
    struct batch batch;
};

/* Of all parameters at once, as a bucket is updated. */
static void update(const struct step *step) {
    static const struct optimizer sgd = {.type = OPTIMIZER_SGD};
    const struct device_ops *ops = step->device->ops;
    const void *gradients = step->gradients[0];
    const struct rule_update one = {.step = 1,
                                    .rate = RATE,
                                    .scale = 1,
                                    .elements = step->floats,
                                    .num_gradients = 1,
                                    .gradients = &gradients,
                                    .weights = step->weights[0],
                                    .weights_out = step->weights[0]};
    ops->run(step->device->handle, STREAM_COMPUTE, op_rule(&sgd, &one, NULL));
}

static void give_steps(void *context, uint64_t times) {
    struct step *step = context;
    struct model_result result;
    for (; times > 0; times--) {
        model_mlp.gradient(step->mlp, &step->batch, step->weights,
                           step->gradients, 1.0f / (float)step->batch.count,
                           false, NULL, &result);
        if (step->updates)
            update(step);
    }
}

/* BYTES of FROM on the device; NULL when it has no room for them. */
static void *place(const struct local_device *device, const void *from,
                   size_t bytes) {
    const struct device_ops *ops = device->ops;
    void *there = ops->allocate(device->handle, bytes);
    if (!there)
        return NULL;
    if (!ops->async)
        memcpy(there, from, bytes);
    else
        ops->upload(device->handle, STREAM_COMPUTE, there, from, bytes);
    struct failure why;
    if (!ops->async || !ops->synchronize(device->handle, &why))
        return there;
    ops->release(device->handle, there);
    return NULL;
}

/* COUNT floats within BOUND of 0, on the device. */
static float *place_random(const struct local_device *device, size_t count,
                           float bound, uint32_t seed) {
    float *values = malloc(count * sizeof *values);
    for (size_t i = 0; values && i < count; i++) {
        seed = seed * 1664525 + 1013904223;
        values[i] = ((float)(seed >> 8) * 0x1p-23f - 1) * bound;
    }
    float *there =
        values ? place(device, values, count * sizeof *values) : NULL;
    free(values);
    return there;
}

static uint32_t *place_labels(const struct local_device *device, uint32_t n,
                              uint32_t classes) {
    uint32_t *labels = malloc(n * sizeof *labels);
    for (uint32_t i = 0; labels && i < n; i++)
        labels[i] = i % classes;
    uint32_t *there = labels ? place(device, labels, n * sizeof *labels) : NULL;
    free(labels);
    return there;
}

/* Weights within the first layer's bound, and gradients of 0. */
static bool place_parameters(struct step *step, const struct job_model *model) {
    struct parameter all[MAX_PARAMETERS];
    const struct local_device *device = step->device;
    uint32_t count = model_mlp.parameters(model, NULL, all);
    size_t offsets[MAX_PARAMETERS];
    for (uint32_t p = 0; p < count; p++) {
        offsets[p] = step->floats;
        step->floats +=
            (all[p].elements + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
    }
    step->weights[0] = place_random(device, step->floats, all[0].init_bound, 1);
    step->gradients[0] = place_random(device, step->floats, 0, 1);
    if (!step->weights[0] || !step->gradients[0])
        return false;
    for (uint32_t p = 1; p < count; p++) {
        step->weights[p] = step->weights[0] + offsets[p];
        step->gradients[p] = step->gradients[0] + offsets[p];
    }
    return true;
}

static bool place_all(struct step *step, const struct job_model *model,
                      uint32_t n) {
    const struct local_device *device = step->device;
    bool complete = place_parameters(step, model);
    struct batch_spec spec;
    model_mlp.inputs(model, NULL, &spec);
    step->inputs =
        place_random(device, (size_t)n * spec.columns[MLP_INPUTS].width, 1, 7);
    step->labels =
        place_labels(device, n, spec.columns[MLP_LABELS].num_classes);
    step->batch = (struct batch){
        .count = n,
        .columns = {[MLP_INPUTS] = step->inputs, [MLP_LABELS] = step->labels}};
    return complete && step->inputs && step->labels;
}

static void close_step(struct step *step) {
    const struct local_device *device = step->device;
    model_mlp.close(&step->mlp);
    device->ops->release(device->handle, step->weights[0]);
    device->ops->release(device->handle, step->gradients[0]);
    device->ops->release(device->handle, step->inputs);
    device->ops->release(device->handle, step->labels);
}

enum status gpu_compute_step(struct gpu_compute_figure *out,
                             const struct local_device *device,
                             const struct job_model *model, uint32_t n,
                             bool updates, double seconds,
                             struct failure *why) {
    struct step step = {.device = device, .updates = updates};
    struct work work = {.device = device,
                        .give = give_steps,
                        .context = &step,
                        .streams = {STREAM_COMPUTE, STREAM_GRADIENTS},
                        .num_streams = 2};
    enum status status = model_mlp.open(&step.mlp, model, NULL, device->ops,
                                        device->handle, n, why);
    if (!status && !place_all(&step, model, n))
        status = status_fail(why, FAILURE_DEVICE_MEMORY,
                             "no memory on device %s for %u samples",
                             device->name, n);
    if (!status)
        status = measure(out, &work, seconds, why);
    close_step(&step);
    return status;
}

/* A copy each way, or in one. */
struct copy {
    const struct local_device *device;
    size_t bytes;
    char *host[2], *there[2]; /* up, down */
    bool goes[2];
};

static void give_copies(void *context, uint64_t times) {
    struct copy *copy = context;
    const struct device_ops *ops = copy->device->ops;
    while (times-- > 0) {
        if (copy->goes[0])
            ops->upload(copy->device->handle, STREAM_WEIGHTS, copy->there[0],
                        copy->host[0], copy->bytes);
        if (copy->goes[1])
            ops->download(copy->device->handle, STREAM_GRADIENTS, copy->host[1],
                          copy->there[1], copy->bytes);
    }
}

static enum status open_copy(struct copy *copy,
                             const struct local_device *device,
                             struct failure *why) {
    char id[DEVICE_ID];
    uint64_t free_bytes = 0;
    copy->device = device;
    copy->bytes = COPY_BYTES;
    while (local_device_query_memory(device, &free_bytes, id) &&
           copy->bytes > PAGE && 4 * copy->bytes > free_bytes)
        copy->bytes /= 2;
    for (int i = 0; i < 2; i++) {
        copy->host[i] = aligned_alloc(PAGE, copy->bytes);
        if (!copy->host[i])
            return status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                               "no memory for copies");
        memset(copy->host[i], 1, copy->bytes);
        local_device_pin(device, copy->host[i], copy->bytes);
        copy->there[i] = device->ops->allocate(device->handle, copy->bytes);
        if (!copy->there[i])
            return status_fail(why, FAILURE_DEVICE_MEMORY,
                               "no memory on device %s for copies of %zu bytes",
                               device->name, copy->bytes);
    }
    return STATUS_OK;
}

static void close_copy(struct copy *copy) {
    const struct local_device *device = copy->device;
    for (int i = 0; i < 2; i++) {
        device->ops->release(device->handle, copy->there[i]);
        if (copy->host[i])
            local_device_unpin(device, copy->host[i]);
        free(copy->host[i]);
    }
}

static enum status rate(double *out, struct copy *copy, bool up, bool down,
                        double seconds, struct failure *why) {
    struct gpu_compute_figure figure;
    struct work work = {.device = copy->device,
                        .give = give_copies,
                        .context = copy,
                        .streams = {STREAM_WEIGHTS, STREAM_GRADIENTS},
                        .num_streams = 2};
    copy->goes[0] = up;
    copy->goes[1] = down;
    enum status status = measure(&figure, &work, seconds, why);
    if (!status)
        *out = (double)copy->bytes / figure.median * 1e-9;
    return status;
}

enum status gpu_compute_copies(struct gpu_compute_copies *out,
                               const struct local_device *device,
                               double seconds, struct failure *why) {
    struct copy copy = {0};
    *out = (struct gpu_compute_copies){NAN, NAN, NAN};
    if (!device->ops->async)
        return STATUS_OK;
    enum status status = open_copy(&copy, device, why);
    if (!status)
        status = rate(&out->up, &copy, true, false, seconds, why);
    if (!status)
        status = rate(&out->down, &copy, false, true, seconds, why);
    if (!status)
        status = rate(&out->both, &copy, true, true, seconds, why);
    close_copy(&copy);
    return status;
}
