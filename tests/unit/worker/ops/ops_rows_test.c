/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of fields beside sums in double precision: on the CPU and on a fake
 * GPU. */
#include "core/tensor/philox.h"
#include "tests/gpu/fake_device.h"
#include "tests/gpu/sync_device.h"
#include "tests/lib/test.h"
#include "worker/ops/device.h"
#include "worker/ops/dropout.h"

#include <float.h>
#include <math.h>

enum { MOST = 1 << 16, GAP = 3 };

static const struct device_ops *ops;
static struct device *device;

/* Of one call: rows of x, dy and y with gaps of NaN between them. */
static float *x, *dy, *y;

static float *room(void) {
    float *memory = ops->allocate(device, MOST * sizeof *memory);
    assert_non_null(memory);
    return memory;
}

static int open_rooms(enum status opened, const struct failure *why) {
    if (opened)
        fail_msg("%s", why->text);
    x = room();
    dy = room();
    y = room();
    return 0;
}

static int open_cpu(void **state) {
    (void)state;
    ops = ops_cpu();
    return open_rooms(ops_cpu_open(&device, 1, &failure), &failure);
}

static int open_fake_gpu(void **state) {
    (void)state;
    ops = sync_device_ops();
    fake_device_configure(&(struct fake_device_settings){.devices = 1});
    return open_rooms(sync_device_open(&device, fake_device_ops(), &failure),
                      &failure);
}

static int close_device(void **state) {
    (void)state;
    ops->release(device, x);
    ops->release(device, dy);
    ops->release(device, y);
    ops->close(&device);
    return 0;
}

static void fill_rows(float *rows, uint32_t n, uint32_t row, uint32_t width,
                      uint64_t seed) {
    philox_uniform(seed, 0, 0, 1, rows, (size_t)n * row);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = width; j < row; j++)
            rows[i * row + j] = NAN;
}

static double field(const struct op *call, uint32_t i, uint32_t f, uint32_t k) {
    return (double)x[i * call->x_row + f * call->width + k];
}

static double pair_product(const struct op *call, uint32_t i, uint32_t a,
                           uint32_t b) {
    double sum = 0;
    for (uint32_t k = 0; k < call->width; k++)
        sum += field(call, i, a, k) * field(call, i, b, k);
    return sum;
}

static double all_pairs(const struct op *call, uint32_t i) {
    double sum = 0;
    for (uint32_t a = 0; a < call->fields; a++)
        for (uint32_t b = 0; b < a; b++)
            sum += pair_product(call, i, a, b);
    return sum;
}

/* Value K of the gradient of field A: others times the pairs' gradients. */
static double oracle_gradient(const struct op *call, uint32_t i, uint32_t a,
                              uint32_t k) {
    const float *of_sample = dy + (size_t)i * call->dy_row;
    double sum = 0;
    for (uint32_t b = 0; b < call->fields; b++) {
        uint32_t high = a > b ? a : b, low = a > b ? b : a;
        uint32_t pair = call->kind == OP_ROWS_DOTS_GRADIENT
                            ? high * (high - 1) / 2 + low
                            : 0;
        if (b != a)
            sum += (double)of_sample[pair] * field(call, i, b, k);
    }
    return sum;
}

static double oracle(const struct op *call, uint32_t i, uint32_t j) {
    uint32_t a = 1, b = j;
    switch (call->kind) {
    case OP_ROWS_PAIRS:
        return all_pairs(call, i);
    case OP_ROWS_DOTS:
        for (; b >= a; a++)
            b -= a;
        return pair_product(call, i, a, b);
    case OP_ROWS_PAIRS_GRADIENT:
    case OP_ROWS_DOTS_GRADIENT:
        return oracle_gradient(call, i, j / call->width, j % call->width);
    default:
        return field(call, i, 0, j);
    }
}

static void assert_agrees(const struct op *call, const float *before,
                          uint32_t values) {
    for (uint32_t i = 0; i < call->n; i++)
        for (uint32_t j = 0; j < call->y_row; j++) {
            uint32_t at = i * call->y_row + j;
            double expected = j < values ? oracle(call, i, j) : NAN;
            if (call->add)
                expected += (double)before[at];
            double off = fabs((double)y[at] - expected);
            if (j >= values)
                assert_true(isnan(y[at])); /* a gap is not written */
            else if (!(off <= 1e-6 * call->fields * call->fields * call->width))
                fail_msg("kind %u, sample %u, value %u: found %.9g, expected "
                         "%.9g",
                         call->kind, i, j, (double)y[at], expected);
        }
}

static void check(enum op_kind kind, uint32_t n, uint32_t fields,
                  uint32_t width, bool add) {
    static float before[MOST];
    uint32_t values = fields * width, pairs = fields * (fields - 1) / 2;
    uint32_t of_dy = kind == OP_ROWS_DOTS_GRADIENT ? pairs : 1;
    uint32_t of_y = kind == OP_ROWS_PAIRS  ? 1
                    : kind == OP_ROWS_DOTS ? pairs
                                           : values;
    bool back = kind == OP_ROWS_PAIRS_GRADIENT || kind == OP_ROWS_DOTS_GRADIENT;
    struct op call = {.kind = kind,
                      .n = n,
                      .fields = fields,
                      .width = width,
                      .x_row = values + GAP,
                      .dy_row = of_dy + GAP,
                      .y_row = of_y + GAP,
                      .add = add};
    fill_rows(x, n, call.x_row, values, 1);
    fill_rows(dy, n, call.dy_row, of_dy, 2);
    fill_rows(y, n, call.y_row, add ? of_y : 0, 3);
    memcpy(before, y, (size_t)n * call.y_row * sizeof *y);
    ops->run(device, STREAM_COMPUTE, op_rows(call, x, back ? dy : NULL, y));
    assert_agrees(&call, before, of_y);
}

static void check_shapes(enum op_kind kind) {
    static const uint32_t shapes[][3] = {{1, 2, 1},   {7, 2, 8},  {5, 3, 7},
                                         {3, 26, 16}, {2, 5, 67}, {1, 4, 130}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int add = 0; add < 2; add++)
            check(kind, shapes[s][0], shapes[s][1], shapes[s][2], add);
}

#define ROWS_TEST(name)                                                        \
    static void name(void **state);                                            \
    TEST_AGAIN(#name ", a fake GPU", open_fake_gpu, close_device, name);       \
    TEST_WITH(open_cpu, close_device, name)

ROWS_TEST(rows_are_copied_and_added_between_strides) {
    check_shapes(OP_ROWS_COPY);
}

ROWS_TEST(one_row_is_repeated_for_all_samples) {
    struct op call = {
        .kind = OP_ROWS_COPY, .n = 5, .fields = 1, .width = 3, .y_row = 3};
    fill_rows(x, 1, 3, 3, 1);
    fill_rows(y, 5, 3, 0, 1);
    ops->run(device, STREAM_COMPUTE, op_rows(call, x, NULL, y));
    for (int i = 0; i < 5; i++)
        assert_memory_equal(y + 3 * i, x, 3 * sizeof *x);
}

ROWS_TEST(sums_of_pairs_agree_with_double_precision) {
    check_shapes(OP_ROWS_PAIRS);
    check_shapes(OP_ROWS_PAIRS_GRADIENT);
}

ROWS_TEST(products_of_pairs_agree_with_double_precision) {
    check_shapes(OP_ROWS_DOTS);
    check_shapes(OP_ROWS_DOTS_GRADIENT);
}

ROWS_TEST(dropout_follows_from_key_batch_number_and_element) {
    enum { N = 5, WIDTH = 7, ROW = WIDTH + GAP };
    struct op call = {.kind = OP_ROWS_DROPOUT,
                      .key = 11,
                      .number = 3,
                      .step = 8,
                      .rate = 0.4,
                      .n = N,
                      .fields = 1,
                      .width = WIDTH,
                      .x_row = ROW,
                      .y_row = WIDTH};
    uint32_t dropped = 0;
    const uint64_t batch = 70000000001;
    fill_rows(x, N, ROW, WIDTH, 1);
    memcpy(dy, &batch, sizeof batch);
    ops->run(device, STREAM_COMPUTE,
             op_rows_dropout(call, x, (const uint64_t *)dy, y));
    for (uint32_t e = 0; e < N * WIDTH; e++) {
        uint32_t words[4];
        philox(11, 8 * batch + 3, e / 4, words);
        bool drops = words[e % 4] < (uint32_t)(0.4 * 0x1p32);
        float of_x = x[e / WIDTH * ROW + e % WIDTH];
        assert_true(y[e] == (drops ? 0 : of_x * (float)(1 / 0.6)));
        dropped += drops;
    }
    assert_in_range(dropped, 1, N * WIDTH - 1);
}
