/* SPDX-License-Identifier: Apache-2.0 */
/* One training step's arithmetic, 784-512-512-10 with ReLU, on one thread:
 * milliseconds and GFLOP/s, beside oneDNN's sgemm alone on the same shapes.
 * Medians of REPEATS. */
#include "commands/measure/bench_iteration.h"
#include "core/base/time.h"
#include "core/tensor/layout.h"
#include "worker/models/mlp.h"

#include <dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

enum { REPEATS = 200, WARM_UP = 20, MAX_BATCH = 256, PARAMETERS = 6 };

static const struct mlp_settings settings = {.layers = {4, {784, 512, 512, 10}},
                                             .activation = JOB_RELU,
                                             .loss = JOB_SOFTMAX_CROSS_ENTROPY};
static const struct job_model model = {.settings = &settings};
static const uint32_t *const widths = settings.layers.items;

struct setting {
    const struct device_ops *ops;
    struct device *device;
    struct model_instance *mlp;
    float *weights[PARAMETERS], *gradients[PARAMETERS];
    float *inputs, *activations, *work;
    uint32_t labels[MAX_BATCH];
};

static void fill(float *values, size_t count, float bound, uint32_t seed) {
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525 + 1013904223;
        values[i] = ((float)(seed >> 8) * 0x1p-23f - 1) * bound;
    }
}

static float *allocate(struct setting *setting, size_t elements) {
    float *memory =
        setting->ops->allocate(setting->device, elements * sizeof(float));
    if (!memory)
        exit(1);
    return memory;
}

static void open_setting(struct setting *setting) {
    struct failure why;
    setting->ops = ops_cpu();
    if (ops_cpu_open(&setting->device, 1, &why) ||
        model_mlp.open(&setting->mlp, &model, NULL, setting->ops,
                       setting->device, MAX_BATCH, &why)) {
        fprintf(stderr, "error: %s\n", why.text);
        exit(1);
    }
    struct parameter parameters[PARAMETERS];
    model_mlp.parameters(&model, NULL, parameters);
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        size_t elements = parameters[p].elements;
        setting->weights[p] = allocate(setting, elements);
        setting->gradients[p] = allocate(setting, elements);
        fill(setting->weights[p], elements, parameters[p].init_bound, p);
    }
    setting->inputs = allocate(setting, MAX_BATCH * 784);
    setting->activations = allocate(setting, MAX_BATCH * 784);
    setting->work = allocate(setting, MAX_BATCH * 784);
    fill(setting->inputs, MAX_BATCH * 784, 1, 7);
    fill(setting->activations, MAX_BATCH * 784, 1, 8);
    for (uint32_t i = 0; i < MAX_BATCH; i++)
        setting->labels[i] = i % 10;
}

static void close_setting(struct setting *setting) {
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        setting->ops->release(setting->device, setting->weights[p]);
        setting->ops->release(setting->device, setting->gradients[p]);
    }
    setting->ops->release(setting->device, setting->inputs);
    setting->ops->release(setting->device, setting->activations);
    setting->ops->release(setting->device, setting->work);
    model_mlp.close(&setting->mlp);
    ops_cpu_close(&setting->device);
}

static void whole_step(struct setting *setting, uint32_t n) {
    struct batch batch = {
        .count = n,
        .columns = {
            [MLP_INPUTS] = setting->inputs, [MLP_LABELS] = setting->labels}};
    struct model_result result;
    model_mlp.gradient(setting->mlp, &batch, setting->weights,
                       setting->gradients, 1.0f / (float)n, false, NULL,
                       &result);
}

/* The step's products, each on the weights and gradients that it has there. */
static void products_only(struct setting *setting, uint32_t n) {
    const float *x = setting->activations;
    float *y = setting->work;
    for (uint32_t l = 0; l < 3; l++) {
        uint32_t in = widths[l], out = widths[l + 1];
        dnnl_sgemm('N', 'T', n, out, in, 1, x, in, setting->weights[2 * l], in,
                   0, y, out);
    }
    for (uint32_t l = 3; l-- > 0;) {
        uint32_t in = widths[l], out = widths[l + 1];
        if (l > 0)
            dnnl_sgemm('N', 'N', n, in, out, 1, x, out, setting->weights[2 * l],
                       in, 0, y, in);
        dnnl_sgemm('T', 'N', out, in, n, 1, x, out, y, in, 0,
                   setting->gradients[2 * l], in);
    }
}

static double median_ms(void (*run)(struct setting *, uint32_t),
                        struct setting *setting, uint32_t n) {
    double times[REPEATS];
    for (int i = 0; i < WARM_UP; i++)
        run(setting, n);
    for (int i = 0; i < REPEATS; i++) {
        int64_t start = time_now();
        run(setting, n);
        times[i] = time_to_seconds(time_now() - start) * 1e3;
    }
    return bench_iteration_median(times, REPEATS);
}

/* Multiplications and additions of a step: three products a layer, two in the
 * first. */
static double gflop(uint32_t n) {
    double sum = 0;
    for (uint32_t l = 0; l < 3; l++)
        sum += (l > 0 ? 6.0 : 4.0) * n * widths[l] * widths[l + 1];
    return sum * 1e-9;
}

int main(void) {
    static const uint32_t batches[] = {32, 256};
    struct setting setting = {0};
    open_setting(&setting);
    omp_set_num_threads(1);
    printf("%-8s %12s %10s %12s %10s %10s\n", "batch", "step ms", "GFLOP/s",
           "sgemm ms", "GFLOP/s", "beside it");
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        uint32_t n = batches[i];
        double step = median_ms(whole_step, &setting, n);
        double alone = median_ms(products_only, &setting, n);
        printf("%-8u %12.3f %10.1f %12.3f %10.1f %9.1f%%\n", n, step,
               gflop(n) / step * 1e3, alone, gflop(n) / alone * 1e3,
               (step / alone - 1) * 100);
    }
    close_setting(&setting);
    return 0;
}
