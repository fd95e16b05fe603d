/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation of a device beside sums in double precision, or beside the
 * loops of the rules to the bit: on the CPU, on a fake GPU, and on a GPU of
 * this machine where there is one. */
#define STATE struct fixture *fixture

#include "worker/ops/device.h"

#include "core/tensor/bf16.h"
#include "core/tensor/fp16.h"
#include "tests/gpu/fake_device.h"
#include "tests/gpu/sync_device.h"
#include "tests/lib/activation_oracle.h"
#include "tests/lib/rule_cases.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <dirent.h>
#include <float.h>
#include <math.h>
#include <pthread.h>

/* A device, and memory of it for the operation at hand. */
struct fixture {
    const struct device_ops *ops;
    struct device *device;
};

/* The device of a test: NULL is the CPU, another is taken near. */
static const struct device_ops *far;

static int setup(void **state, const struct device_ops *device) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    far = device;
    fixture->ops = far ? sync_device_ops() : ops_cpu();
    assert_ok(far ? sync_device_open(&fixture->device, far, &failure)
                  : ops_cpu_open(&fixture->device, 1, &failure));
    *state = fixture;
    return 0;
}

static int setup_cpu(void **state) {
    return setup(state, NULL);
}

static int setup_fake_gpu(void **state) {
    fake_device_configure(&(struct fake_device_settings){.devices = 1});
    return setup(state, fake_device_ops());
}

static struct failure without_gpu;

/* The GPU of this machine, where it has one. */
static const struct device_ops *find_gpu(void) {
    static const struct device_ops *gpu;
    if (!gpu && !*without_gpu.text)
        gpu = sync_device_plugin(&without_gpu);
    return gpu;
}

static bool has_gpu(void) {
    return find_gpu() != NULL;
}

static int setup_gpu(void **state) {
    return setup(state, find_gpu());
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    fixture->ops->close(&fixture->device);
    assert_null(fixture->device);
    free(fixture);
    return 0;
}

FIXTURE(setup_cpu, teardown);

/* A test on each device. */
#define OPS_TEST(name)                                                         \
    static void name(void **state);                                            \
    TEST_AGAIN(#name ", a fake GPU", setup_fake_gpu, teardown, name);          \
    TEST_REGISTER(__COUNTER__, #name ", a GPU", setup_gpu, teardown, name,     \
                  has_gpu)                                                     \
    TEST(name)

/* COUNT values in [-1, 1), by SEED. */
static float *values(struct fixture *fixture, size_t count, uint32_t seed) {
    float *memory =
        fixture->ops->allocate(fixture->device, count * sizeof(float));
    assert_non_null(memory);
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525 + 1013904223;
        memory[i] = (float)(seed >> 8) * 0x1p-23f - 1;
    }
    return memory;
}

/* What an operation has to overwrite without reading it. */
static float *nans(struct fixture *fixture, size_t count) {
    float *memory = values(fixture, count, 0);
    for (size_t i = 0; i < count; i++)
        memory[i] = NAN;
    return memory;
}

static void release(struct fixture *fixture, float *memory) {
    fixture->ops->release(fixture->device, memory);
}

#define assert_near(got, expected, tolerance)                                  \
    do {                                                                       \
        double off = fabs((double)(got) - (expected));                         \
        if (!(off <= (tolerance)))                                             \
            fail_msg("found %.9g, expected %.17g within %.3g", (double)(got),  \
                     (double)(expected), (double)(tolerance));                 \
    } while (0)

/* A sum of products in double, and the sum of their sizes, by which float
 * errors are bounded. */
struct sum {
    double value, size;
};

static void add_product(struct sum *sum, float a, float b) {
    sum->value += (double)a * b;
    sum->size += fabs((double)a * b);
}

static double bound(const struct sum *sum, uint32_t terms) {
    return (terms + 4) * 0x1p-24 * sum->size + FLT_MIN;
}

struct shape {
    uint32_t n, in, out;
};

static const struct shape shapes[] = {
    {1, 1, 1},    {1, 7, 255},  {7, 1, 3},     {2, 3, 1},     {255, 7, 10},
    {31, 33, 65}, {7, 1025, 9}, {3, 17, 1025}, {64, 255, 31},
};
enum { NUM_SHAPES = sizeof shapes / sizeof *shapes };

static void check_linear(struct fixture *fixture, struct shape s,
                         enum job_activation activation) {
    float *x = values(fixture, (size_t)s.n * s.in, 1);
    float *w = values(fixture, (size_t)s.out * s.in, 2);
    float *bias = values(fixture, s.out, 3);
    float *y = nans(fixture, (size_t)s.n * s.out);
    fixture->ops->run(fixture->device, STREAM_COMPUTE,
                      op_linear(x, w, bias, y, s.n, s.in, s.out, activation));
    for (uint32_t i = 0; i < s.n; i++) {
        for (uint32_t j = 0; j < s.out; j++) {
            struct sum sum = {bias[j], fabsf(bias[j])};
            for (uint32_t k = 0; k < s.in; k++)
                add_product(&sum, x[i * s.in + k], w[j * s.in + k]);
            double expected = activation_oracle(activation, sum.value);
            assert_near(y[i * s.out + j], expected,
                        bound(&sum, s.in) + 4 * 0x1p-24);
        }
    }
    release(fixture, x);
    release(fixture, w);
    release(fixture, bias);
    release(fixture, y);
}

OPS_TEST(linear_agrees_with_double_precision) {
    for (int i = 0; i < NUM_SHAPES; i++) {
        check_linear(*state, shapes[i], JOB_RELU);
        check_linear(*state, shapes[i], JOB_TANH);
        check_linear(*state, shapes[i], JOB_SIGMOID);
        check_linear(*state, shapes[i], JOB_IDENTITY);
    }
}

OPS_TEST(input_gradient_agrees_with_double_precision) {
    for (int shape = 0; shape < NUM_SHAPES; shape++) {
        struct shape s = shapes[shape];
        float *dy = values(fixture, (size_t)s.n * s.out, 1);
        float *w = values(fixture, (size_t)s.out * s.in, 2);
        float *dx = nans(fixture, (size_t)s.n * s.in);
        fixture->ops->run(
            fixture->device, STREAM_COMPUTE,
            op_linear_input_gradient(dy, w, dx, s.n, s.in, s.out));
        for (uint32_t i = 0; i < s.n; i++) {
            for (uint32_t k = 0; k < s.in; k++) {
                struct sum sum = {0, 0};
                for (uint32_t j = 0; j < s.out; j++)
                    add_product(&sum, dy[i * s.out + j], w[j * s.in + k]);
                assert_near(dx[i * s.in + k], sum.value, bound(&sum, s.out));
            }
        }
        release(fixture, dy);
        release(fixture, w);
        release(fixture, dx);
    }
}

static void check_weight_gradient(struct fixture *fixture, struct shape s,
                                  bool add) {
    float *dy = values(fixture, (size_t)s.n * s.out, 1);
    float *x = values(fixture, (size_t)s.n * s.in, 2);
    size_t count = (size_t)s.out * s.in;
    float *dw = add ? values(fixture, count, 3) : nans(fixture, count);
    float *before = values(fixture, count, 3);
    fixture->ops->run(
        fixture->device, STREAM_COMPUTE,
        op_linear_weight_gradient(dy, x, dw, s.n, s.in, s.out, add));
    for (uint32_t j = 0; j < s.out; j++) {
        for (uint32_t k = 0; k < s.in; k++) {
            struct sum sum = {0, 0};
            if (add)
                add_product(&sum, before[j * s.in + k], 1);
            for (uint32_t i = 0; i < s.n; i++)
                add_product(&sum, dy[i * s.out + j], x[i * s.in + k]);
            assert_near(dw[j * s.in + k], sum.value, bound(&sum, s.n));
        }
    }
    release(fixture, dy);
    release(fixture, x);
    release(fixture, dw);
    release(fixture, before);
}

OPS_TEST(weight_gradient_agrees_with_double_precision) {
    for (int i = 0; i < NUM_SHAPES; i++) {
        check_weight_gradient(*state, shapes[i], false);
        check_weight_gradient(*state, shapes[i], true);
    }
}

static void check_column_sums(struct fixture *fixture, struct shape s,
                              bool add) {
    float *dy = values(fixture, (size_t)s.n * s.out, 1);
    float *db = add ? values(fixture, s.out, 2) : nans(fixture, s.out);
    float *before = values(fixture, s.out, 2);
    fixture->ops->run(fixture->device, STREAM_COMPUTE,
                      op_column_sums(dy, db, s.n, s.out, add));
    for (uint32_t j = 0; j < s.out; j++) {
        struct sum sum = {0, 0};
        if (add)
            add_product(&sum, before[j], 1);
        for (uint32_t i = 0; i < s.n; i++)
            add_product(&sum, dy[i * s.out + j], 1);
        assert_near(db[j], sum.value, bound(&sum, s.n));
    }
    release(fixture, dy);
    release(fixture, db);
    release(fixture, before);
}

OPS_TEST(column_sums_agree_with_double_precision) {
    for (int i = 0; i < NUM_SHAPES; i++) {
        check_column_sums(*state, shapes[i], false);
        check_column_sums(*state, shapes[i], true);
    }
}

/* By the value Y of the activation. */
static double slope_of(enum job_activation activation, double y) {
    switch (activation) {
    case JOB_RELU:
        return y > 0;
    case JOB_TANH:
        return 1 - y * y;
    case JOB_SIGMOID:
        return y * (1 - y);
    case JOB_IDENTITY:
        return 1;
    }
    return NAN;
}

OPS_TEST(activation_gradient_agrees_with_double_precision) {
    static const enum job_activation activations[] = {
        JOB_RELU, JOB_TANH, JOB_SIGMOID, JOB_IDENTITY};
    static const uint32_t widths[] = {1, 7, 255, 1025};
    for (int a = 0; a < 4; a++) {
        for (int s = 0; s < 4; s++) {
            uint32_t n = 3, width = widths[s];
            float *y = values(fixture, n * width, 1);
            float *dy = values(fixture, n * width, 2);
            float *before = values(fixture, n * width, 2);
            y[0] = 0;
            fixture->ops->run(
                fixture->device, STREAM_COMPUTE,
                op_activation_gradient(activations[a], y, dy, n, width));
            for (uint32_t i = 0; i < n * width; i++)
                assert_near(dy[i], slope_of(activations[a], y[i]) * before[i],
                            4 * 0x1p-24);
            release(fixture, y);
            release(fixture, dy);
            release(fixture, before);
        }
    }
}

/* Sums of one product each, so that an input is a sum: special values. */
OPS_TEST(relu_passes_nan_and_clears_negatives) {
    enum { N = 9 };
    static const float inputs[N] = {NAN,      INFINITY, -INFINITY,
                                    0,        -FLT_MIN, FLT_MIN,
                                    -FLT_MAX, FLT_MAX,  -1e-45f};
    float *x = values(fixture, N, 1), *y = nans(fixture, N);
    float *w = values(fixture, 1, 1), *bias = values(fixture, 1, 1);
    memcpy(x, inputs, sizeof inputs);
    *w = 1;
    *bias = 0;
    fixture->ops->run(fixture->device, STREAM_COMPUTE,
                      op_linear(x, w, bias, y, N, 1, 1, JOB_RELU));
    assert_true(isnan(y[0]));
    assert_true(y[1] == INFINITY);
    assert_true(y[2] == 0 && y[3] == 0 && y[4] == 0);
    assert_true(y[5] == FLT_MIN);
    assert_true(y[6] == 0);
    assert_true(y[7] == FLT_MAX);
    assert_true(y[8] == 0);
    release(fixture, x);
    release(fixture, y);
    release(fixture, w);
    release(fixture, bias);
}

OPS_TEST(saturated_activations_stay_in_range) {
    float *x = values(fixture, 2, 1), *y = nans(fixture, 2);
    float *w = values(fixture, 1, 1), *bias = values(fixture, 1, 1);
    x[0] = -1000;
    x[1] = 1000;
    *w = 1;
    *bias = 0;
    fixture->ops->run(fixture->device, STREAM_COMPUTE,
                      op_linear(x, w, bias, y, 2, 1, 1, JOB_SIGMOID));
    assert_true(y[0] == 0 && y[1] == 1);
    fixture->ops->run(fixture->device, STREAM_COMPUTE,
                      op_linear(x, w, bias, y, 2, 1, 1, JOB_TANH));
    assert_true(y[0] == -1 && y[1] == 1);
    release(fixture, x);
    release(fixture, y);
    release(fixture, w);
    release(fixture, bias);
}

OPS_TEST(the_loss_of_a_batch_is_the_sum_of_its_samples) {
    enum { N = 7, OUT = 5 };
    static const uint32_t labels[N] = {0, 1, 2, 3, 4, 0, 1};
    float *z = values(fixture, N * OUT, 1);
    float *dz = nans(fixture, N * OUT), *row = nans(fixture, OUT);
    for (int kind = JOB_SOFTMAX_CROSS_ENTROPY; kind <= JOB_MSE; kind++) {
        double loss, sum = 0, one;
        uint32_t correct, all = 0, is_correct;
        fixture->ops->run(
            fixture->device, STREAM_COMPUTE,
            op_loss(kind, z, labels, NULL, dz, N, OUT, 0.25f, &loss, &correct));
        for (uint32_t i = 0; i < N; i++) {
            fixture->ops->run(fixture->device, STREAM_COMPUTE,
                              op_loss(kind, z + i * OUT, labels + i, NULL, row,
                                      1, OUT, 0.25f, &one, &is_correct));
            assert_memory_equal(row, dz + i * OUT, OUT * sizeof *row);
            sum += one;
            all += is_correct;
        }
        assert_near(loss, sum, N * DBL_EPSILON * sum); /* in any order */
        assert_int_equal(correct, all);
        fixture->ops->run(
            fixture->device, STREAM_COMPUTE,
            op_loss(kind, z, labels, NULL, NULL, N, OUT, 1, &one, &is_correct));
        assert_near(one, loss, 0);
    }
    release(fixture, z);
    release(fixture, dz);
    release(fixture, row);
}

OPS_TEST(a_weight_multiplies_the_loss_of_its_sample) {
    enum { N = 4, OUT = 5 };
    static const uint32_t labels[N] = {0, 1, 2, 3};
    static const float weights[N] = {1, 0, 2.5f, 0.125f};
    float *z = values(fixture, N * OUT, 1);
    float *dz = nans(fixture, N * OUT), *row = nans(fixture, OUT);
    for (int kind = JOB_SOFTMAX_CROSS_ENTROPY; kind <= JOB_MSE; kind++) {
        double loss, sum = 0, one;
        uint32_t correct, all = 0, is_correct;
        fixture->ops->run(fixture->device, STREAM_COMPUTE,
                          op_loss(kind, z, labels, weights, dz, N, OUT, 0.25f,
                                  &loss, &correct));
        for (uint32_t i = 0; i < N; i++) {
            fixture->ops->run(fixture->device, STREAM_COMPUTE,
                              op_loss(kind, z + i * OUT, labels + i, NULL, row,
                                      1, OUT, weights[i] * 0.25f, &one,
                                      &is_correct));
            assert_memory_equal(row, dz + i * OUT, OUT * sizeof *row);
            sum += (double)weights[i] * one;
            all += is_correct;
        }
        assert_near(loss, sum, N * DBL_EPSILON * sum); /* in any order */
        assert_int_equal(correct, all);
    }
    release(fixture, z);
    release(fixture, dz);
    release(fixture, row);
}

OPS_TEST(the_same_call_gives_the_same_bits) {
    struct shape s = {33, 255, 129};
    size_t count = (size_t)s.n * s.out;
    float *x = values(fixture, (size_t)s.n * s.in, 1);
    float *w = values(fixture, (size_t)s.out * s.in, 2);
    float *bias = values(fixture, s.out, 3);
    float *first = nans(fixture, count), *again = nans(fixture, count);
    fixture->ops->run(fixture->device, STREAM_COMPUTE,
                      op_linear(x, w, bias, first, s.n, s.in, s.out, JOB_TANH));
    for (int i = 0; i < 20; i++) {
        fixture->ops->run(
            fixture->device, STREAM_COMPUTE,
            op_linear(x, w, bias, again, s.n, s.in, s.out, JOB_TANH));
        assert_memory_equal(again, first, count * sizeof *first);
    }
    release(fixture, x);
    release(fixture, w);
    release(fixture, bias);
    release(fixture, first);
    release(fixture, again);
}

static int threads_of_this_process(void) {
    DIR *folder = opendir("/proc/self/task");
    assert_non_null(folder);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder));)
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

/* Returns how many more threads there are after a product large enough for
 * oneDNN to share it out. Runs in a thread that did not open the device. */
static void *threads_of_a_product(void *argument) {
    struct fixture *fixture = argument;
    enum { SIDE = 256 };
    float *a = values(fixture, SIDE * SIDE, 1);
    float *b = values(fixture, SIDE * SIDE, 2);
    float *c = nans(fixture, SIDE * SIDE);
    int before = threads_of_this_process();
    fixture->ops->run(fixture->device, STREAM_COMPUTE,
                      op_linear_input_gradient(a, b, c, SIDE, SIDE, SIDE));
    intptr_t more = threads_of_this_process() - before;
    release(fixture, a);
    release(fixture, b);
    release(fixture, c);
    return (void *)more;
}

TEST(one_thread_is_the_calling_thread) {
    pthread_t caller;
    void *more;
    assert_int_equal(
        pthread_create(&caller, NULL, threads_of_a_product, *state), 0);
    assert_int_equal(pthread_join(caller, &more), 0);
    assert_int_equal((intptr_t)more, 0);
}

TEST(a_device_without_threads_is_refused) {
    struct device *device = NULL;
    assert_error(ops_cpu_open(&device, 0, &failure), FAILURE_JOB_INVALID);
    assert_contains(failure.text, "threads: found 0");
}

TEST(memory_is_aligned_and_zero) {
    for (size_t bytes = 0; bytes < 300; bytes += 37) {
        unsigned char *memory = fixture->ops->allocate(fixture->device, bytes);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 64, 0);
        for (size_t i = 0; i < bytes; i++)
            assert_int_equal(memory[i], 0);
        memset(memory, 255, bytes);
        fixture->ops->release(fixture->device, memory);
    }
    assert_null(fixture->ops->allocate(fixture->device, SIZE_MAX));
    fixture->ops->release(fixture->device, NULL);
}

/* What X is in PRECISION. */
static float half_of(enum job_precision precision, float x) {
    if (precision == JOB_PRECISION_BF16)
        return bf16_to_float(bf16_from_float(x));
    return precision == JOB_PRECISION_FP16 ? fp16_to_float(fp16_from_float(x))
                                           : x;
}

/* The sum of TERMS products of rounded factors, A's STEP_A apart. */
static struct sum rounded_sum(enum job_precision precision, const float *a,
                              uint32_t step_a, const float *b, uint32_t step_b,
                              uint32_t terms) {
    struct sum sum = {0, 0};
    for (uint32_t i = 0; i < terms; i++)
        add_product(&sum, half_of(precision, a[i * step_a]),
                    half_of(precision, b[i * step_b]));
    return sum;
}

/* All three products of one shape, against sums in double. */
static void check_precision(struct fixture *fixture,
                            enum job_precision precision, struct shape s) {
    float *x = values(fixture, (size_t)s.n * s.in, 1);
    float *w = values(fixture, (size_t)s.out * s.in, 2);
    float *dy = values(fixture, (size_t)s.n * s.out, 3);
    float *bias = values(fixture, s.out, 4);
    float *y = nans(fixture, (size_t)s.n * s.out);
    float *dx = nans(fixture, (size_t)s.n * s.in);
    float *dw = nans(fixture, (size_t)s.out * s.in);
    struct sum sum;
    fixture->ops->set_precision(fixture->device, precision);
    fixture->ops->run(fixture->device, STREAM_COMPUTE,
                      op_linear(x, w, bias, y, s.n, s.in, s.out, JOB_IDENTITY));
    fixture->ops->run(fixture->device, STREAM_COMPUTE,
                      op_linear_input_gradient(dy, w, dx, s.n, s.in, s.out));
    fixture->ops->run(
        fixture->device, STREAM_COMPUTE,
        op_linear_weight_gradient(dy, x, dw, s.n, s.in, s.out, false));
    for (uint32_t i = 0; i < s.n; i++)
        for (uint32_t j = 0; j < s.out; j++) {
            sum =
                rounded_sum(precision, x + i * s.in, 1, w + j * s.in, 1, s.in);
            sum.value += bias[j];
            sum.size += fabsf(bias[j]);
            assert_near(y[i * s.out + j], sum.value, bound(&sum, s.in));
        }
    for (uint32_t i = 0; i < s.n; i++)
        for (uint32_t k = 0; k < s.in; k++) {
            sum = rounded_sum(precision, dy + i * s.out, 1, w + k, s.in, s.out);
            assert_near(dx[i * s.in + k], sum.value, bound(&sum, s.out));
        }
    for (uint32_t j = 0; j < s.out; j++)
        for (uint32_t k = 0; k < s.in; k++) {
            sum = rounded_sum(precision, dy + j, s.out, x + k, s.in, s.n);
            assert_near(dw[j * s.in + k], sum.value, bound(&sum, s.n));
        }
    float *const all[] = {x, w, dy, bias, y, dx, dw};
    for (int i = 0; i < 7; i++)
        release(fixture, all[i]);
}

OPS_TEST(operands_of_products_are_rounded_and_sums_are_not) {
    static const enum job_precision each[] = {
        JOB_PRECISION_BF16, JOB_PRECISION_FP16, JOB_PRECISION_FP32};
    for (int p = 0; p < 3; p++)
        for (int i = 0; i < NUM_SHAPES; i++)
            check_precision(*state, each[p], shapes[i]);
}

/* 1 + 2^-9 is 1 in bf16, 1 + 2^-12 in fp16, and both are not in float32. */
OPS_TEST(precision_is_that_of_its_format) {
    static const struct {
        enum job_precision precision;
        float input, output;
    } cases[] = {
        {JOB_PRECISION_FP32, 1 + 0x1p-12f, 1 + 0x1p-12f},
        {JOB_PRECISION_BF16, 1 + 0x1p-9f, 1},
        {JOB_PRECISION_BF16, 1e38f, 0x1.2cp126f},
        {JOB_PRECISION_FP16, 1 + 0x1p-9f, 1 + 0x1p-9f},
        {JOB_PRECISION_FP16, 1 + 0x1p-12f, 1},
        {JOB_PRECISION_FP16, 65504, 65504},
        {JOB_PRECISION_FP16, 65520, INFINITY},
        {JOB_PRECISION_FP16, -1e38f, -INFINITY},
        {JOB_PRECISION_FP16, 0x1p-26f, 0},
    };
    float *x = values(fixture, 1, 1), *w = values(fixture, 1, 1);
    float *bias = values(fixture, 1, 1), *y = nans(fixture, 1);
    *w = 1;
    *bias = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        *x = cases[i].input;
        fixture->ops->set_precision(fixture->device, cases[i].precision);
        fixture->ops->run(fixture->device, STREAM_COMPUTE,
                          op_linear(x, w, bias, y, 1, 1, 1, JOB_IDENTITY));
        if (*y != cases[i].output)
            fail_msg("case %zu: %.9g becomes %.9g", i, (double)*x, (double)*y);
        assert_true(*x == cases[i].input);
    }
    release(fixture, x);
    release(fixture, w);
    release(fixture, bias);
    release(fixture, y);
}

/* 1 + 2^-12 is 1 in TF32: of so many products a GPU's library makes it such. */
OPS_TEST(only_a_gpu_rounds_to_tf32_and_only_if_asked) {
    static const enum job_precision each[] = {
        JOB_PRECISION_FP32, JOB_PRECISION_TF32, JOB_PRECISION_FP32};
    enum { N = 256 };
    float *x = values(fixture, N * N, 1), *w = values(fixture, N * N, 1);
    float *dx = nans(fixture, N * N);
    bool gpu = far && far != fake_device_ops();
    for (int i = 0; i < N * N; i++) {
        x[i] = 1 + 0x1p-12f;
        w[i] = 1;
    }
    for (int p = 0; p < 3; p++) {
        bool rounds = gpu && each[p] == JOB_PRECISION_TF32;
        fixture->ops->set_precision(fixture->device, each[p]);
        fixture->ops->run(fixture->device, STREAM_COMPUTE,
                          op_linear_input_gradient(x, w, dx, N, N, N));
        for (int i = 0; i < N * N; i++)
            assert_true(dx[i] == (rounds ? N : N + N * 0x1p-12f));
    }
    release(fixture, x);
    release(fixture, w);
    release(fixture, dx);
}

enum { VECTORS = 3, CASES = sizeof rule_cases / sizeof *rule_cases };
static const size_t vectors[VECTORS] = {1, 1025, 3 * RULE_PIECE + 7};

OPS_TEST(a_vector_is_filled_and_scaled) {
    for (int v = 0; v < VECTORS; v++) {
        float *x = nans(fixture, vectors[v]);
        fixture->ops->run(fixture->device, STREAM_EXCHANGE,
                          op_fill(x, vectors[v], 0.3f));
        fixture->ops->run(fixture->device, STREAM_EXCHANGE,
                          op_scale(x, vectors[v], 3));
        for (size_t i = 0; i < vectors[v]; i++)
            assert_true(x[i] == 0.3f * 3);
        release(fixture, x);
    }
}

OPS_TEST(a_pixel_is_a_255th_of_its_byte) {
    enum { BYTES = 1003 };
    float *y = nans(fixture, BYTES), *room = nans(fixture, BYTES);
    uint8_t *x = (uint8_t *)room;
    for (int i = 0; i < BYTES; i++)
        x[i] = (uint8_t)i;
    fixture->ops->run(fixture->device, STREAM_SAMPLES, op_pixels(x, BYTES, y));
    for (int i = 0; i < BYTES; i++)
        assert_true(y[i] == (float)((double)x[i] / 255));
    release(fixture, y);
    release(fixture, room);
}

OPS_TEST(an_overflow_is_found_at_any_position) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int v = 0; v < VECTORS; v++) {
        float *x = values(fixture, vectors[v], 3);
        uint32_t found = 5;
        x[0] = FLT_MAX;
        fixture->ops->run(fixture->device, STREAM_COMPUTE,
                          op_find_overflow(x, vectors[v], &found));
        assert_int_equal(found, 0);
        const size_t places[] = {0, vectors[v] / 2, vectors[v] - 1};
        for (int p = 0; p < 3; p++) {
            x[places[p]] = bad[v];
            fixture->ops->run(fixture->device, STREAM_COMPUTE,
                              op_find_overflow(x, vectors[v], &found));
            assert_int_equal(found, 1);
            x[places[p]] = FLT_MAX;
        }
        release(fixture, x);
    }
}

OPS_TEST(sums_of_squares_have_the_bits_of_the_rules_loops) {
    size_t variants;
    for (int v = 0; v < VECTORS; v++) {
        double found[4] = {NAN, NAN, NAN, NAN}, expected[4];
        float *x = values(fixture, vectors[v], 4);
        const void *floats = x;
        struct rule_update update = {.scale = 0.3f,
                                     .elements = vectors[v],
                                     .num_gradients = 1,
                                     .gradients = &floats};
        size_t pieces = (vectors[v] + RULE_PIECE - 1) / RULE_PIECE;
        rule_square_sums(*rule_variants(&variants), &update, expected);
        fixture->ops->run(fixture->device, STREAM_EXCHANGE,
                          op_square_sums(x, vectors[v], 0.3f, found));
        assert_memory_equal(found, expected, pieces * sizeof *found);
        release(fixture, x);
    }
}

/* The second of pairs is no part of it. */
OPS_TEST(a_norm_clips_as_the_host_would) {
    enum { PIECES = 6101, STEP = 2 };
    static const double limits[] = {1e-3, 5, 1e9};
    double *pieces =
        fixture->ops->allocate(fixture->device, STEP * PIECES * sizeof *pieces);
    double sum = 0, every_other = 0, found = NAN;
    for (int i = 0; i < STEP * PIECES; i++) {
        pieces[i] = 1.0 / (i + 3);
        every_other += i % STEP ? 0 : pieces[i];
        sum += pieces[i];
    }
    fixture->ops->run(fixture->device, STREAM_EXCHANGE,
                      op_reduce_sum(pieces, STEP * PIECES, &found));
    assert_true(found == sum);
    for (int i = 0; i < 3; i++) {
        double factor = limits[i] / (sqrt(every_other) + 1e-6);
        float clip = NAN, expected = factor < 1 ? (float)factor : 1;
        fixture->ops->run(fixture->device, STREAM_EXCHANGE,
                          op_clip(pieces, PIECES, STEP, limits[i], &clip));
        assert_true(clip == expected);
    }
    float clip = NAN;
    pieces[STEP] = NAN;
    fixture->ops->run(fixture->device, STREAM_EXCHANGE,
                      op_clip(pieces, PIECES, STEP, 1, &clip));
    assert_true(clip == 1);
    fixture->ops->release(fixture->device, pieces);
}

/* TENSORS, weights and state, become those after a few updates, BY_DEVICE or by
 * rule_apply. */
static void apply_some(struct fixture *fixture, const struct rule_case *one,
                       size_t count, float *const *tensors, bool by_device) {
    float *gradient = values(fixture, count, 7), factor = 0.7f;
    const void *floats = gradient;
    size_t variants;
    struct rule_update update = {.scale = by_device ? 0.5f : 0.5f * factor,
                                 .elements = count,
                                 .gradients = &floats,
                                 .weights = tensors[0],
                                 .weights_out = tensors[0]};
    for (unsigned s = 0; s < RULE_MAX_SLOTS; s++)
        update.state[s] = update.state_out[s] = tensors[1 + s];
    for (update.step = 1; update.step <= 4; update.step++) {
        update.num_gradients = update.step != 3; /* then nothing changes */
        update.rate = update.step == 4 ? 0 : one->rate;
        if (by_device)
            fixture->ops->run(fixture->device, STREAM_EXCHANGE,
                              op_rule(&one->rule, &update, &factor));
        else
            rule_apply(*rule_variants(&variants), &one->rule, &update);
    }
    release(fixture, gradient);
}

static void check_rule(struct fixture *fixture, const struct rule_case *one,
                       size_t count) {
    float *found[1 + RULE_MAX_SLOTS], *expected[1 + RULE_MAX_SLOTS];
    for (unsigned t = 0; t <= RULE_MAX_SLOTS; t++) {
        found[t] = values(fixture, count, 11 + t);
        expected[t] = values(fixture, count, 11 + t);
        for (size_t i = 0; t > 0 && i < count; i++)
            found[t][i] = expected[t][i] = rule_slot_start(&one->rule, t - 1);
    }
    apply_some(fixture, one, count, found, true);
    apply_some(fixture, one, count, expected, false);
    for (unsigned t = 0; t <= RULE_MAX_SLOTS; t++) {
        assert_memory_equal(found[t], expected[t], count * sizeof(float));
        release(fixture, found[t]);
        release(fixture, expected[t]);
    }
}

OPS_TEST(an_update_has_the_bits_of_the_rules_loops) {
    for (int c = 0; c < CASES; c++)
        for (int v = 0; v < VECTORS; v++)
            if (rule_form_of(&rule_cases[c].rule) != RULE_FTRL_POWER)
                check_rule(fixture, &rule_cases[c], vectors[v]);
}

OPS_TEST(every_kind_of_op_is_supported_and_no_other) {
    for (uint32_t kind = 0; kind < OP_KINDS; kind++)
        assert_true(
            fixture->ops->supports(fixture->device, (struct op){.kind = kind}));
    for (uint32_t kind = OP_KINDS; kind < OP_KINDS + 9; kind++)
        assert_false(
            fixture->ops->supports(fixture->device, (struct op){.kind = kind}));
}

OPS_TEST(ops_are_equal_if_their_bytes_are) {
    float x[4] = {0}, w[4] = {0}, y[4] = {0};
    for (uint32_t in = 1; in < 4; in++) {
        struct op one = op_linear(x, w, w, y, 1, in, 1, JOB_RELU);
        struct op other = op_linear(x, w, w, y, 1, 2, 1, JOB_RELU);
        assert_int_equal(!memcmp(&one, &other, sizeof one), in == 2);
    }
}

/* Of a shape that neither precision has met, before and after. */
OPS_TEST(a_prepared_op_has_the_same_bits) {
    static const enum job_precision each[] = {JOB_PRECISION_FP32,
                                              JOB_PRECISION_BF16};
    struct shape s = {40, 65, 33};
    size_t count = (size_t)s.n * s.out;
    float *x = values(fixture, (size_t)s.n * s.in, 1);
    float *w = values(fixture, (size_t)s.out * s.in, 2);
    float *bias = values(fixture, s.out, 3);
    float *y = nans(fixture, count), *again = nans(fixture, count);
    for (int i = 0; i < 2; i++) {
        fixture->ops->set_precision(fixture->device, each[i]);
        fixture->ops->run(fixture->device, STREAM_COMPUTE,
                          op_linear(x, w, bias, y, s.n, s.in, s.out, JOB_TANH));
        struct op shape =
            op_linear(NULL, NULL, NULL, NULL, 2 * s.n, s.in, s.out, JOB_TANH);
        assert_ok(fixture->ops->prepare(fixture->device, shape, &failure));
        fixture->ops->run(
            fixture->device, STREAM_COMPUTE,
            op_linear(x, w, bias, again, s.n, s.in, s.out, JOB_TANH));
        assert_memory_equal(y, again, count * sizeof *y);
    }
    release(fixture, x);
    release(fixture, w);
    release(fixture, bias);
    release(fixture, y);
    release(fixture, again);
}

TEST_IF(!has_gpu(), the_gpu_of_this_machine_agrees) {
    skip_test("%s", without_gpu.text);
}
