/* SPDX-License-Identifier: Apache-2.0 */
/* Times training passes without a cluster: each parameter's layer forward and
 * backward, in the thread's CPU time, so that other load on the machine does
 * not count. Each interval's result is the median over the passes. Then as many
 * passes as there are cores run at once: their slowdown shows how much the
 * cores contend for caches, memory and frequency. */
#include "worker/train/profile.h"

#include "core/base/time.h"
#include "core/tensor/layout.h"
#include "core/tensor/philox.h"
#include "worker/models/model.h"
#include "worker/ops/device.h"
#include "worker/train/arena.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_PASSES = 256, MAX_RUNNERS = 64, MIN_PASSES = 3 };

/* A trainer without a cluster. `intervals` is [2 * parameters, MAX_PASSES]:
 * forward and backward of each parameter, for each pass. */
struct runner {
    const struct job *job;
    struct layout *layout;
    struct device *device;
    const struct model *model;
    struct model_instance *instance;
    struct arena arena;
    struct batch batch;
    void *samples; /* the batch's */
    int64_t *intervals;
    uint32_t parameters, passes;
    uint32_t interval; /* the current interval; it began at `since` */
    int64_t since, until;
    pthread_t thread;
    bool started;
};

/* CPU time of this thread: other load does not count. */
static int64_t cpu_time_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * TIME_S + now.tv_nsec;
}

static void end_interval(struct runner *runner, uint32_t next) {
    int64_t now = cpu_time_now();
    if (runner->interval < 2 * runner->parameters)
        runner->intervals[(size_t)runner->interval * MAX_PASSES +
                          runner->passes] = now - runner->since;
    runner->interval = next;
    runner->since = now;
}

static void profile_need(void *context, uint32_t first, uint32_t count) {
    for (uint32_t p = first; p < first + count; p++)
        end_interval(context, p);
}

/* The backward pass begins with the last parameter. */
static bool profile_loss(void *context, double value) {
    struct runner *runner = context;
    (void)value;
    end_interval(runner, 2 * runner->parameters - 1);
    return true;
}

static void profile_done(void *context, uint32_t parameter) {
    struct runner *runner = context;
    uint32_t next = runner->parameters + parameter - 1;
    end_interval(runner, parameter ? next : UINT32_MAX);
}

static bool fill_batch(struct runner *runner) {
    struct batch_spec spec;
    struct batch *batch = &runner->batch;
    runner->model->inputs(&runner->job->model, NULL, &spec);
    batch->count = runner->job->micro_batch;
    runner->samples = malloc(batch_bytes(&spec, batch->count));
    if (!runner->samples)
        return false;
    batch_place(batch, &spec, runner->samples, batch->count);
    for (uint32_t c = 0; c < spec.num_columns; c++) {
        const struct batch_column *column = &spec.columns[c];
        size_t values = (size_t)batch->count * column->width;
        uint32_t *classes = batch->columns[c];
        if (column->type == BATCH_FLOATS)
            philox_uniform(1, 0, 0, 1.0f, batch->columns[c], values);
        for (size_t i = 0; column->type == BATCH_CLASSES && i < values; i++)
            classes[i] = (uint32_t)(i % column->num_classes);
    }
    return true;
}

static enum status open_runner(struct runner *runner, const struct job *job,
                               struct failure *why) {
    runner->job = job;
    runner->model = model_find(&job->model);
    enum status status = model_layout(&runner->layout, &job->model, NULL, why);
    if (!status)
        status = ops_cpu_open(&runner->device, job->threads, why);
    struct batch_spec spec;
    runner->model->inputs(&job->model, NULL, &spec);
    if (!status)
        status = runner->model->open(&runner->instance, &job->model, &spec,
                                     ops_cpu(), runner->device,
                                     job->micro_batch, why);
    if (!status)
        status = arena_open(&runner->arena, runner->layout, false, why);
    if (!status)
        runner->parameters = runner->layout->num_parameters;
    runner->intervals = calloc((size_t)2 * runner->parameters * MAX_PASSES,
                               sizeof *runner->intervals);
    if (!status && (!runner->intervals || !fill_batch(runner)))
        status = status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                             "no memory to measure a pass of the model");
    for (uint32_t b = 0; !status && b < runner->layout->num_blocks; b++) {
        const struct block *block = &runner->layout->blocks[b];
        layout_init_block(runner->layout, b, 1,
                          runner->arena.weight_of[block->parameter] +
                              block->offset);
    }
    return status;
}

static void close_runner(struct runner *runner) {
    if (runner->model)
        runner->model->close(&runner->instance);
    ops_cpu_close(&runner->device);
    arena_close(&runner->arena);
    layout_free(&runner->layout);
    free(runner->samples);
    free(runner->intervals);
}

static void *run_passes(void *argument) {
    struct runner *runner = argument;
    struct model_hooks hooks = {runner, profile_need, profile_loss,
                                profile_done};
    struct model_result result;
    runner->passes = 0;
    do {
        runner->interval = UINT32_MAX;
        runner->model->gradient(
            runner->instance, &runner->batch, runner->arena.weight_of,
            runner->arena.gradient_of, 1.0f / (float)runner->batch.count, false,
            &hooks, &result);
        runner->passes++;
    } while (runner->passes < MIN_PASSES ||
             (runner->passes < MAX_PASSES && time_now() < runner->until));
    return NULL;
}

static int profile_ascending(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

static double median_interval(struct runner *runner, uint32_t interval) {
    int64_t *intervals = runner->intervals + (size_t)interval * MAX_PASSES;
    qsort(intervals, runner->passes, sizeof *intervals, profile_ascending);
    return time_to_seconds(intervals[runner->passes / 2]);
}

static double profile_pass_seconds(struct runner *runner) {
    double seconds = 0;
    for (uint32_t interval = 0; interval < 2 * runner->parameters; interval++)
        seconds += median_interval(runner, interval);
    return seconds;
}

static void run_alone(struct runner *runner, struct profile *profile,
                      double seconds) {
    runner->until = time_now() + time_from_seconds(seconds);
    run_passes(runner);
    for (uint32_t p = 0; p < runner->parameters; p++) {
        profile->forward[p] = median_interval(runner, p);
        profile->backward[p] = median_interval(runner, runner->parameters + p);
    }
}

/* The mean duration of whole passes with COUNT runners at once. */
static double run_concurrently(struct runner *runners, unsigned count,
                               double seconds) {
    int64_t until = time_now() + time_from_seconds(seconds);
    double sum = 0;
    for (unsigned i = 0; i < count; i++) {
        runners[i].until = until;
        runners[i].started =
            !pthread_create(&runners[i].thread, NULL, run_passes, &runners[i]);
        if (!runners[i].started)
            run_passes(&runners[i]);
    }
    for (unsigned i = 0; i < count; i++) {
        if (runners[i].started)
            pthread_join(runners[i].thread, NULL);
        sum += profile_pass_seconds(&runners[i]);
    }
    return sum / count;
}

enum status profile_measure(struct profile *profile, const struct job *job,
                            unsigned cores, double seconds,
                            struct failure *why) {
    unsigned count = cores < MAX_RUNNERS ? cores : MAX_RUNNERS;
    struct runner *runners = calloc(count + 1, sizeof *runners);
    enum status status = STATUS_OK;
    if (!runners)
        return status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                           "no memory to measure a pass of the model");
    for (unsigned i = 0; !status && i < count; i++)
        status = open_runner(&runners[i], job, why);
    if (!status) {
        run_alone(&runners[0], profile, seconds / 2);
        double alone = profile_pass_seconds(&runners[0]);
        double all =
            count > 1 ? run_concurrently(runners, count, seconds / 2) : alone;
        profile->parallel_efficiency = all > alone ? alone / all : 1;
    }
    for (unsigned i = 0; i < count; i++)
        close_runner(&runners[i]);
    free(runners);
    return status;
}
