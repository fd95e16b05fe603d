/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/cuda/cuda_kernels.h"

#include "tests/gpu/cuda_cases.h"
#include "tests/lib/loss_oracle.h"
#include "worker/ops/cpu/loss.h"

#include <stdlib.h>
#include <string.h>

static const struct shape {
    uint32_t n, out;
} shapes[] = {
    {1, 1},    {1, 7},    {7, 10},   {255, 7},       {256, 1}, {257, 33},
    {1025, 5}, {3, 1025}, {33, 255}, {2, CUDA_MANY}, {513, 1}, {31, 32},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const enum job_loss losses[] = {JOB_SOFTMAX_CROSS_ENTROPY,
                                       JOB_SIGMOID_CROSS_ENTROPY, JOB_MSE};

/* Logits and labels of a batch, and what a loss makes of them. */
struct batch {
    struct shape shape;
    float *z, *dz;
    uint32_t *labels;
    float *weights; /* NULL: 1 each */
    double *loss;
    uint32_t *correct;
    void *room;
};

static size_t logits_of(struct shape s) {
    return (size_t)s.n * s.out;
}

static void open_batch(struct batch *batch, struct shape shape, float bound) {
    struct philox_sequence random;
    batch->shape = shape;
    batch->weights = NULL;
    batch->z = cuda_floats(logits_of(shape), 1, bound);
    batch->dz = cuda_floats(logits_of(shape), 2, 1);
    batch->labels = cuda_backend_allocate(shape.n * sizeof *batch->labels);
    batch->loss = cuda_backend_allocate(sizeof *batch->loss);
    batch->correct = cuda_backend_allocate(sizeof *batch->correct);
    batch->room = cuda_backend_allocate(cuda_kernels_loss_scratch(shape.n));
    philox_sequence_open(&random, 3, 0);
    for (uint32_t i = 0; i < shape.n; i++)
        batch->labels[i] = philox_below(&random, shape.out);
}

static void close_batch(struct batch *batch) {
    cuda_backend_release(batch->z);
    cuda_backend_release(batch->dz);
    cuda_backend_release(batch->labels);
    cuda_backend_release(batch->weights);
    cuda_backend_release(batch->loss);
    cuda_backend_release(batch->correct);
    cuda_backend_release(batch->room);
}

static void lose(struct batch *batch, enum job_loss kind, float *dz,
                 float scale, const float *factor) {
    *batch->loss = -1;
    *batch->correct = UINT32_MAX;
    assert_runs(cuda_kernels_sample_losses(
        NULL, kind, batch->z, batch->labels, batch->weights, dz, batch->shape.n,
        batch->shape.out, scale, factor, batch->room));
    assert_runs(cuda_kernels_sum_losses(NULL, batch->room, batch->shape.n,
                                        batch->loss, batch->correct));
}

/* The first of the largest is the label's; or the target is on its side. */
static bool is_first(enum job_loss kind, const float *z, uint32_t label,
                     uint32_t out) {
    uint32_t best = 0;
    if (out == 1 && kind == JOB_SIGMOID_CROSS_ENTROPY)
        return (*z > 0) == (loss_oracle_target(label, 0, 1) > 0.5);
    if (out == 1 && kind == JOB_MSE)
        return false;
    for (uint32_t j = 1; j < out; j++)
        best = z[j] > z[best] ? j : best;
    return best == label;
}

static void assert_agrees(const struct batch *batch, enum job_loss kind,
                          const float *dz, double scale) {
    uint32_t out = batch->shape.out, correct = 0;
    double *expected = malloc(out * sizeof *expected), sum = 0;
    assert_non_null(expected);
    for (size_t i = 0; i < batch->shape.n; i++) {
        const float *z = batch->z + i * out;
        double weight = batch->weights ? (double)batch->weights[i] : 1;
        sum += weight * loss_oracle(kind, z, batch->labels[i], expected, out);
        correct += is_first(kind, z, batch->labels[i], out);
        for (uint32_t j = 0; dz && j < out; j++)
            assert_near(dz[i * out + j], weight * scale * expected[j],
                        5e-7 * weight * scale * (0.5 + fabs(expected[j])));
    }
    assert_near(*batch->loss, sum, 1e-6 * (batch->shape.n + fabs(sum)));
    assert_int_equal(*batch->correct, correct);
    free(expected);
}

static void check(enum job_loss kind, struct shape shape, float bound,
                  int orders) {
    struct batch batch;
    open_batch(&batch, shape, bound);
    for (uint32_t t = 0; shape.out == 1 && kind && t < shape.n; t++) {
        float target = 0.5f * (float)(t % 3);
        memcpy(&batch.labels[t], &target, sizeof target);
    }
    if (bound == 1) {
        batch.weights = cuda_floats(shape.n, 5, 1);
        for (uint32_t i = 0; i < shape.n; i++)
            batch.weights[i] = i % 5 ? fabsf(batch.weights[i]) : 0;
    }
    cuda_set_order(0);
    lose(&batch, kind, batch.dz, 0.125f, NULL);
    assert_agrees(&batch, kind, batch.dz, 0.125);
    double loss = *batch.loss;
    for (int order = 1; order < orders; order++) {
        float *again = cuda_floats(logits_of(shape), 3, 1);
        cuda_set_order(order);
        lose(&batch, kind, again, 0.125f, NULL);
        assert_memory_equal(again, batch.dz, logits_of(shape) * sizeof *again);
        assert_true(*batch.loss == loss);
        lose(&batch, kind, NULL, 1, NULL);
        assert_true(*batch.loss == loss);
        cuda_backend_release(again);
    }
    close_batch(&batch);
}

/* A thread of a kernel takes fifty times as long under a sanitizer. MANY is
 * more than the warps of the largest grid. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { MAX_ORDERS = 2, ONE_BOUND = 1, MANY = 20011 };
#else
enum { MAX_ORDERS = CUDA_ORDERS, ONE_BOUND = 0, MANY = 100003 };
#endif

TEST(every_loss_agrees_with_double) {
    static const float bounds[] = {0, 1e-3f, 1, 30, 1000};
    for (int kind = 0; kind < 3; kind++)
        for (int i = 0; i < SHAPES; i++) {
            struct shape s = shapes[i];
            bool one = ONE_BOUND || logits_of(s) > 50000;
            for (int b = one ? 2 : 0; b < (one ? 3 : 5); b++)
                check(losses[kind], s, bounds[b], b == 2 ? MAX_ORDERS : 2);
        }
}

TEST(many_samples_are_summed_as_few_are) {
    check(JOB_MSE, (struct shape){MANY, 1}, 3, 2);
}

TEST(the_gradient_may_replace_the_logits) {
    for (int kind = 0; kind < 3; kind++)
        for (int i = 0; i < SHAPES; i++) {
            struct batch batch;
            open_batch(&batch, shapes[i], 3);
            size_t bytes = logits_of(shapes[i]) * sizeof(float);
            cuda_backend_set_order(7, 0);
            lose(&batch, losses[kind], batch.dz, 0.5f, NULL);
            double loss = *batch.loss;
            lose(&batch, losses[kind], batch.z, 0.5f, NULL);
            assert_true(*batch.loss == loss);
            assert_memory_equal(batch.z, batch.dz, bytes);
            close_batch(&batch);
        }
}

TEST(the_scale_may_be_in_device_memory) {
    for (int kind = 0; kind < 3; kind++) {
        struct batch batch;
        struct shape shape = {7, 10};
        float *factor = cuda_floats(1, 1, 1), *dz = cuda_floats(70, 1, 1);
        *factor = 1024;
        open_batch(&batch, shape, 3);
        lose(&batch, losses[kind], batch.dz, 256, NULL);
        double loss = *batch.loss;
        lose(&batch, losses[kind], dz, 0.25f, factor);
        assert_memory_equal(dz, batch.dz, 70 * sizeof *dz);
        assert_true(*batch.loss == loss);
        close_batch(&batch);
        cuda_backend_release(factor);
        cuda_backend_release(dz);
    }
}

/* The CPU's functions of one sample. */
static double on_cpu(enum job_loss kind, const float *z, uint32_t label,
                     float *dz, uint32_t out, float factor) {
    switch (kind) {
    case JOB_SOFTMAX_CROSS_ENTROPY:
        return loss_softmax_cross_entropy(z, label, dz, out, factor);
    case JOB_SIGMOID_CROSS_ENTROPY:
        return loss_sigmoid_cross_entropy(z, label, dz, out, factor);
    case JOB_MSE:
        return loss_mse(z, label, dz, out, factor);
    }
    return NAN;
}

TEST(squared_errors_have_the_cpus_gradient) {
    for (int i = 0; i < SHAPES; i++) {
        struct batch batch;
        uint32_t out = shapes[i].out;
        open_batch(&batch, shapes[i], 3);
        float *expected = cuda_floats(logits_of(shapes[i]), 3, 1);
        lose(&batch, JOB_MSE, batch.dz, 0.3f, NULL);
        for (size_t k = 0; k < shapes[i].n; k++)
            loss_mse(batch.z + k * out, batch.labels[k], expected + k * out,
                     out, 0.3f);
        assert_memory_equal(batch.dz, expected,
                            logits_of(shapes[i]) * sizeof *expected);
        cuda_backend_release(expected);
        close_batch(&batch);
    }
}

/* A sample of two ordinary logits and a special one, at each place. */
static void check_special(enum job_loss kind, float special, uint32_t place,
                          uint32_t label) {
    struct batch batch;
    float expected[35];
    open_batch(&batch, (struct shape){1, 35}, 2);
    batch.z[place] = special;
    batch.labels[0] = label;
    double loss = on_cpu(kind, batch.z, label, expected, 35, 0.5f);
    lose(&batch, kind, batch.dz, 0.5f, NULL);
    if (isfinite(loss))
        assert_near(*batch.loss, loss, 1e-6 * (1 + fabs(loss)));
    else
        assert_true(isnan(loss) ? isnan(*batch.loss) : *batch.loss == loss);
    for (int j = 0; j < 35; j++)
        if (isfinite(expected[j]))
            assert_near(batch.dz[j], expected[j],
                        5e-7 * (0.25 + fabsf(expected[j])));
        else
            cuda_assert_same_bits(&batch.dz[j], &expected[j], 1);
    assert_int_equal(*batch.correct, loss_is_correct(batch.z, label, 35));
    close_batch(&batch);
}

TEST(special_logits_count_as_on_the_cpu) {
    static const uint32_t places[] = {0, 1, 31, 32, 34};
    for (int kind = 0; kind < 3; kind++)
        for (int v = 0; v < CUDA_SPECIAL; v++)
            for (int p = 0; p < 5; p++) {
                check_special(losses[kind], cuda_special[v], places[p], 1);
                check_special(losses[kind], cuda_special[v], places[p], 34);
            }
}

TEST(the_first_of_equal_logits_is_the_answer) {
    struct batch batch;
    open_batch(&batch, (struct shape){100, 100}, 0);
    for (uint32_t i = 0; i < 100; i++) /* the largest is at i and behind */
        for (uint32_t j = 0; j < 100; j++)
            batch.z[i * 100 + j] = j >= i ? 5 : 4;
    for (uint32_t shift = 0; shift < 100; shift += 33) {
        uint32_t expected = shift == 0 ? 100 : 0;
        for (uint32_t i = 0; i < 100; i++)
            batch.labels[i] = (i + shift) % 100;
        lose(&batch, JOB_MSE, NULL, 1, NULL);
        assert_int_equal(*batch.correct, expected);
    }
    close_batch(&batch);
}

TEST(an_invalid_label_gives_a_nan_loss) {
    for (int kind = 0; kind < 3; kind++) {
        struct batch batch;
        open_batch(&batch, (struct shape){40, 10}, 2);
        batch.labels[17] = kind == 0 ? 10 : UINT32_MAX;
        lose(&batch, losses[kind], batch.dz, 1, NULL);
        assert_true(isnan(*batch.loss));
        for (uint32_t i = 0; i < 400; i++)
            assert_true(!isnan(batch.dz[i]) == (i / 10 != 17));
        lose(&batch, losses[kind], NULL, 1, NULL);
        assert_true(isnan(*batch.loss));
        close_batch(&batch);
    }
}

TEST(zero_samples_have_zero_loss) {
    struct batch batch;
    open_batch(&batch, (struct shape){0, 10}, 2);
    lose(&batch, JOB_MSE, NULL, 1, NULL);
    assert_true(*batch.loss == 0);
    assert_int_equal(*batch.correct, 0);
    close_batch(&batch);
}
