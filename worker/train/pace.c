/* SPDX-License-Identifier: Apache-2.0 */
/* A training pass without a cluster: what each parameter's layer takes forward
 * and backward, by the thread's processor time, so that other work on the
 * machine is not counted. The median of the passes counts for each lap. Then as
 * many of them as there are cores run at once: how much slower a pass is then
 * is what cores cost each other (caches, memory, frequency). */
#include "worker/train/pace.h"

#include "proto/base/time.h"
#include "proto/tensor/layout.h"
#include "proto/tensor/philox.h"
#include "worker/models/mlp.h"
#include "worker/ops/ops.h"
#include "worker/train/arena.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum { MOST_PASSES = 256, MOST_RUNNERS = 64, LEAST_PASSES = 3 };

/* A trainer without a cluster. `laps` is [2 * parameters, MOST_PASSES]: forward
 * and backward of each parameter, each pass. */
struct runner {
    const struct job *job;
    struct layout *layout;
    struct ops_device *device;
    struct mlp *mlp;
    struct arena arena;
    struct loader_batch batch;
    float *inputs;
    uint32_t *labels;
    int64_t *laps;
    uint32_t parameters, passes;
    uint32_t lap; /* at work: it began at `since` */
    int64_t since, until;
    pthread_t thread;
    bool started;
};

/* Of this thread: other work on the machine does not count. */
static int64_t processor_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * TIME_S + now.tv_nsec;
}

static void end_lap(struct runner *runner, uint32_t next) {
    int64_t now = processor_now();
    if (runner->lap < 2 * runner->parameters)
        runner->laps[(size_t)runner->lap * MOST_PASSES + runner->passes] =
            now - runner->since;
    runner->lap = next;
    runner->since = now;
}

static void need(void *context, uint32_t first, uint32_t count) {
    for (uint32_t p = first; p < first + count; p++)
        end_lap(context, p);
}

/* The backward pass begins with the last parameter. */
static bool loss(void *context, double value) {
    struct runner *runner = context;
    (void)value;
    end_lap(runner, 2 * runner->parameters - 1);
    return true;
}

static void done(void *context, uint32_t parameter) {
    struct runner *runner = context;
    uint32_t next = runner->parameters + parameter - 1;
    end_lap(runner, parameter ? next : UINT32_MAX);
}

static bool fill_batch(struct runner *runner) {
    const struct job_model *model = &runner->job->model;
    uint32_t count = runner->job->micro_batch, features = model->layers[0];
    uint32_t classes = model->layers[model->num_layers - 1];
    size_t values = (size_t)count * features;
    runner->inputs = malloc(values * sizeof(float));
    runner->labels = malloc(count * sizeof(uint32_t));
    if (!runner->inputs || !runner->labels)
        return false;
    philox_uniform(1, 0, 0, 1.0f, runner->inputs, values);
    for (uint32_t i = 0; i < count; i++)
        runner->labels[i] = i % classes;
    runner->batch = (struct loader_batch){
        .count = count, .inputs = runner->inputs, .labels = runner->labels};
    return true;
}

static enum status open_runner(struct runner *runner, const struct job *job,
                               struct failure *why) {
    struct parameter parameters[2 * JOB_MAX_LAYERS];
    runner->job = job;
    runner->parameters = mlp_parameters(&job->model, parameters);
    enum status status =
        layout_build(&runner->layout, parameters, runner->parameters, why);
    if (!status)
        status = ops_cpu_open(&runner->device, job->threads, why);
    if (!status)
        status = mlp_open(&runner->mlp, &job->model, ops_cpu(), runner->device,
                          job->micro_batch, why);
    if (!status)
        status = arena_open(&runner->arena, runner->layout, false, why);
    runner->laps = calloc((size_t)2 * runner->parameters * MOST_PASSES,
                          sizeof *runner->laps);
    if (!status && (!runner->laps || !fill_batch(runner)))
        status = status_fail(why, STATUS_FAILED,
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
    mlp_close(&runner->mlp);
    ops_cpu_close(&runner->device);
    arena_close(&runner->arena);
    layout_free(&runner->layout);
    free(runner->inputs);
    free(runner->labels);
    free(runner->laps);
}

static void *run_passes(void *argument) {
    struct runner *runner = argument;
    struct mlp_hooks hooks = {runner, need, loss, done};
    struct mlp_result result;
    runner->passes = 0;
    do {
        runner->lap = UINT32_MAX;
        mlp_gradient(runner->mlp, &runner->batch, runner->arena.weight_of,
                     runner->arena.gradient_of,
                     1.0f / (float)runner->batch.count, false, &hooks, &result);
        runner->passes++;
    } while (runner->passes < LEAST_PASSES ||
             (runner->passes < MOST_PASSES && time_now() < runner->until));
    return NULL;
}

static int ascending(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

static double median_lap(struct runner *runner, uint32_t lap) {
    int64_t *laps = runner->laps + (size_t)lap * MOST_PASSES;
    qsort(laps, runner->passes, sizeof *laps, ascending);
    return time_to_seconds(laps[runner->passes / 2]);
}

static double whole_pass(struct runner *runner) {
    double seconds = 0;
    for (uint32_t lap = 0; lap < 2 * runner->parameters; lap++)
        seconds += median_lap(runner, lap);
    return seconds;
}

static void run_alone(struct runner *runner, struct pace *pace,
                      double seconds) {
    runner->until = time_now() + time_from_seconds(seconds);
    run_passes(runner);
    for (uint32_t p = 0; p < runner->parameters; p++) {
        pace->forward[p] = median_lap(runner, p);
        pace->backward[p] = median_lap(runner, runner->parameters + p);
    }
}

/* Mean of the whole passes of COUNT runners at once. */
static double run_together(struct runner *runners, unsigned count,
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
        sum += whole_pass(&runners[i]);
    }
    return sum / count;
}

enum status pace_measure(struct pace *pace, const struct job *job,
                         unsigned cores, double seconds, struct failure *why) {
    unsigned count = cores < MOST_RUNNERS ? cores : MOST_RUNNERS;
    struct runner *runners = calloc(count + 1, sizeof *runners);
    enum status status = STATUS_OK;
    if (!runners)
        return status_fail(why, STATUS_FAILED,
                           "no memory to measure a pass of the model");
    for (unsigned i = 0; !status && i < count; i++)
        status = open_runner(&runners[i], job, why);
    if (!status) {
        run_alone(&runners[0], pace, seconds / 2);
        double alone = whole_pass(&runners[0]);
        double all =
            count > 1 ? run_together(runners, count, seconds / 2) : alone;
        pace->crowded = all > alone ? alone / all : 1;
    }
    for (unsigned i = 0; i < count; i++)
        close_runner(&runners[i]);
    free(runners);
    return status;
}
