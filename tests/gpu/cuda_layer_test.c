/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/cuda/cuda_kernels.h"

#include "tests/gpu/cuda_cases.h"
#include "tests/lib/activation_oracle.h"
#include "worker/ops/activation.h"

#include <stdlib.h>

static const struct shape {
    uint32_t n, out;
} shapes[] = {
    {1, 1},    {1, 7},    {7, 1},    {255, 10},      {256, 32},      {257, 33},
    {1025, 7}, {7, 1025}, {512, 64}, {1, CUDA_MANY}, {CUDA_MANY, 1}, {391, 257},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const enum job_activation activations[] = {JOB_RELU, JOB_TANH,
                                                  JOB_SIGMOID, JOB_IDENTITY};

/* Where the arithmetic is the same, the bits are; a NaN is one of any sign. */
static void assert_value(enum job_activation activation, float got,
                         float argument) {
    double expected = activation_oracle(activation, argument);
    bool same = activation == JOB_RELU || activation == JOB_IDENTITY;
    if (isnan(expected)) {
        assert_true(isnan(got));
        return;
    }
    float rounded = (float)expected;
    if (same)
        assert_memory_equal(&got, &rounded, sizeof got);
    else
        assert_near(got, expected, 4 * 0x1p-24 * fabs(expected) + FLT_MIN);
}

static void check_forward(struct shape s, enum job_activation activation,
                          const float *bias, const float *before) {
    size_t count = (size_t)s.n * s.out;
    float *first = NULL;
    for (int order = 0; order < CUDA_ORDERS; order++) {
        float *y = cuda_copy(before, count);
        cuda_set_order(order);
        assert_runs(cuda_kernels_bias_activation(NULL, bias, y, s.n, s.out,
                                                 activation));
        if (first) {
            assert_memory_equal(y, first, count * sizeof *y);
            cuda_backend_release(y);
        } else {
            first = y;
        }
    }
    for (size_t i = 0; i < count; i++)
        assert_value(activation, first[i], before[i] + bias[i % s.out]);
    cuda_backend_release(first);
}

TEST(bias_and_activation_agree_with_double) {
    for (int i = 0; i < SHAPES; i++)
        for (int a = 0; a < 4; a++) {
            struct shape s = shapes[i];
            float *bias = cuda_floats(s.out, 1, 3);
            float *y = cuda_floats((size_t)s.n * s.out, 2, 9);
            check_forward(s, activations[a], bias, y);
            cuda_backend_release(bias);
            cuda_backend_release(y);
        }
}

TEST(special_values_pass_through_bias_and_activation) {
    for (int a = 0; a < 4; a++) {
        struct shape s = {CUDA_SPECIAL, CUDA_SPECIAL};
        float *bias = cuda_specials(s.out);
        float *y = cuda_specials((size_t)s.n * s.out);
        for (size_t i = 0; i < (size_t)s.n * s.out; i++)
            y[i] = cuda_special[i / s.out];
        check_forward(s, activations[a], bias, y);
        cuda_backend_release(bias);
        cuda_backend_release(y);
    }
}

/* As the definitions of the derivatives read, each product rounded. */
static float slope(enum job_activation activation, float y, float dy) {
    switch (activation) {
    case JOB_RELU:
        return activation_relu_gradient(y, dy);
    case JOB_TANH:
        return activation_tanh_gradient(y, dy);
    case JOB_SIGMOID:
        return activation_sigmoid_gradient(y, dy);
    case JOB_IDENTITY:
        return dy;
    }
    return NAN;
}

static double exact_slope(enum job_activation activation, double y, double dy) {
    switch (activation) {
    case JOB_RELU:
        return y > 0 ? dy : 0;
    case JOB_TANH:
        return dy * (1 - y * y);
    case JOB_SIGMOID:
        return dy * y * (1 - y);
    case JOB_IDENTITY:
        return dy;
    }
    return NAN;
}

static void check_backward(enum job_activation activation, const float *y,
                           const float *before, size_t count) {
    float *expected = cuda_floats(count, 1, 1);
    for (size_t i = 0; i < count; i++)
        expected[i] = slope(activation, y[i], before[i]);
    for (int order = 0; order < CUDA_ORDERS; order++) {
        float *dy = cuda_copy(before, count);
        cuda_set_order(order);
        assert_runs(
            cuda_kernels_activation_gradient(NULL, activation, y, dy, count));
        cuda_assert_same_bits(dy, expected, count);
        cuda_backend_release(dy);
    }
    cuda_backend_release(expected);
}

TEST(the_activations_gradient_has_the_cpus_bits) {
    for (int i = 0; i < CUDA_SIZES; i++)
        for (int a = 0; a < 4; a++) {
            float *y = cuda_floats(cuda_sizes[i], 1, 1);
            float *dy = cuda_floats(cuda_sizes[i], 2, 3);
            check_backward(activations[a], y, dy, cuda_sizes[i]);
            cuda_backend_release(y);
            cuda_backend_release(dy);
        }
}

TEST(special_values_pass_through_the_gradient) {
    enum { COUNT = CUDA_SPECIAL * CUDA_SPECIAL };
    for (int a = 0; a < 4; a++) {
        float *y = cuda_specials(COUNT), *dy = cuda_specials(COUNT);
        for (size_t i = 0; i < COUNT; i++)
            y[i] = cuda_special[i / CUDA_SPECIAL];
        check_backward(activations[a], y, dy, COUNT);
        cuda_backend_release(y);
        cuda_backend_release(dy);
    }
}

TEST(the_activations_gradient_agrees_with_double) {
    enum { COUNT = 1025 };
    for (int a = 0; a < 4; a++) {
        float *y = cuda_floats(COUNT, 1, 1), *dy = cuda_floats(COUNT, 2, 3);
        float *before = cuda_copy(dy, COUNT);
        assert_runs(cuda_kernels_activation_gradient(NULL, activations[a], y,
                                                     dy, COUNT));
        for (size_t i = 0; i < COUNT; i++)
            assert_near(dy[i], exact_slope(activations[a], y[i], before[i]),
                        6 * 0x1p-24 * (1 + fabsf(y[i])) * fabsf(before[i]));
        cuda_backend_release(y);
        cuda_backend_release(dy);
        cuda_backend_release(before);
    }
}

/* Sums in double; SIZES: of the sizes of what is added. */
static void exact_sums(const float *dy, const float *db, struct shape s,
                       double *sums, double *sizes) {
    for (uint32_t j = 0; j < s.out; j++) {
        sums[j] = db[j];
        sizes[j] = fabsf(db[j]);
    }
    for (size_t i = 0; i < (size_t)s.n * s.out; i++) {
        sums[i % s.out] += dy[i];
        sizes[i % s.out] += fabsf(dy[i]);
    }
}

static float *column_sums(const float *dy, const float *before, struct shape s,
                          bool add) {
    float *db = cuda_copy(before, s.out);
    size_t bytes = cuda_kernels_column_sums_scratch(s.n, s.out);
    void *room = bytes ? cuda_backend_allocate(bytes) : NULL;
    assert_runs(cuda_kernels_column_sums(NULL, dy, db, s.n, s.out, add, room));
    cuda_backend_release(room);
    return db;
}

static void check_sums(const float *dy, struct shape s, bool add) {
    float *before = cuda_floats(s.out, 4, add ? 1 : 0);
    double *sums = malloc(s.out * sizeof *sums);
    double *sizes = malloc(s.out * sizeof *sizes);
    assert_true(sums && sizes);
    cuda_set_order(0);
    float *first = column_sums(dy, before, s, add);
    exact_sums(dy, before, s, sums, sizes);
    for (uint32_t j = 0; j < s.out; j++)
        if (isfinite(sums[j]))
            assert_near(first[j], sums[j], 600 * 0x1p-24 * sizes[j] + FLT_MIN);
        else
            assert_true(isnan(sums[j]) ? isnan(first[j])
                                       : first[j] == (float)sums[j]);
    for (int order = 1; order < CUDA_ORDERS; order++) {
        cuda_set_order(order);
        float *again = column_sums(dy, before, s, add);
        assert_memory_equal(again, first, s.out * sizeof *again);
        cuda_backend_release(again);
    }
    free(sums);
    free(sizes);
    cuda_backend_release(first);
    cuda_backend_release(before);
}

TEST(column_sums_agree_with_double) {
    for (int i = 0; i < SHAPES; i++) {
        struct shape s = shapes[i];
        float *dy = cuda_floats((size_t)s.n * s.out, 5, 1);
        check_sums(dy, s, false);
        check_sums(dy, s, true);
        cuda_backend_release(dy);
    }
}

TEST(column_sums_may_overwrite_a_nan) {
    for (uint32_t n = 1; n < 600; n += 299) {
        float *dy = cuda_floats(n, 5, 1);
        float nan = NAN;
        float *db = column_sums(dy, &nan, (struct shape){n, 1}, false);
        assert_true(isfinite(db[0]));
        cuda_backend_release(dy);
        cuda_backend_release(db);
    }
}

TEST(a_special_value_affects_only_its_column) {
    struct shape s = {300, 37};
    for (int v = 0; v < 3; v++) /* NaN and the infinities */
        for (uint32_t row = 0; row < s.n; row += 37) {
            float *dy = cuda_floats((size_t)s.n * s.out, 5, 1);
            dy[row * s.out + row % s.out] = cuda_special[v];
            check_sums(dy, s, false);
            cuda_backend_release(dy);
        }
}

TEST(zero_rows_do_nothing) {
    float *db = cuda_floats(7, 1, 1);
    assert_runs(cuda_kernels_bias_activation(NULL, db, NULL, 0, 7, JOB_RELU));
    assert_runs(
        cuda_kernels_activation_gradient(NULL, JOB_TANH, NULL, NULL, 0));
    assert_runs(cuda_kernels_column_sums(NULL, NULL, db, 0, 7, false, NULL));
    for (int i = 0; i < 7; i++)
        assert_true(db[i] == 0);
    cuda_backend_release(db);
}
