/* SPDX-License-Identifier: Apache-2.0 */
/* Beside sums in double precision, by shapes in turn. */
#include "worker/ops/cpu/ops_cpu_matmul.h"

#include "tests/lib/test.h"

#include <float.h>
#include <math.h>

struct shape {
    uint32_t n, in, out;
};

/* As of a model of three layers with a whole batch, an epoch's last and one of
 * evaluation; then odd ones, down to a single row, column or number. */
static const struct shape shapes[] = {
    {64, 96, 48},   {64, 48, 48},  {64, 48, 10},  {33, 96, 48}, {33, 48, 48},
    {33, 48, 10},   {100, 96, 48}, {100, 48, 10}, {32, 7, 255}, {255, 7, 10},
    {41, 1025, 17}, {32, 1, 1},    {1, 5, 3},     {257, 33, 1}, {40, 1, 65},
};
enum { NUM_SHAPES = sizeof shapes / sizeof *shapes };

/* COUNT values in [-1, 1), by SEED. */
static float *values(size_t count, uint32_t seed) {
    float *memory = malloc(count * sizeof *memory);
    assert_non_null(memory);
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525 + 1013904223;
        memory[i] = (float)(seed >> 8) * 0x1p-23f - 1;
    }
    return memory;
}

static void check_element(float found, const float *x, const float *w,
                          uint32_t in) {
    double sum = 0, size = 0;
    for (uint32_t k = 0; k < in; k++) {
        sum += (double)x[k] * w[k];
        size += fabs((double)x[k] * w[k]);
    }
    double off = fabs(found - sum), most = (in + 4) * 0x1p-24 * size + FLT_MIN;
    if (!(off <= most))
        fail_msg("found %.9g, expected %.17g within %.3g", found, sum, most);
}

/* In memory that was never brought before, with what SEED makes. */
static void check_product(struct ops_cpu_matmul **matmul, struct shape s,
                          uint32_t seed) {
    size_t count = (size_t)s.n * s.out;
    float *x = values((size_t)s.n * s.in, seed);
    float *w = values((size_t)s.out * s.in, seed + 1);
    float *y = values(count, seed + 2), *again = values(count, seed + 3);
    assert_true(ops_cpu_matmul(matmul, x, w, y, s.n, s.in, s.out));
    for (uint32_t i = 0; i < s.n; i++)
        for (uint32_t j = 0; j < s.out; j++)
            check_element(y[i * s.out + j], x + (size_t)i * s.in,
                          w + (size_t)j * s.in, s.in);
    assert_true(ops_cpu_matmul(matmul, x, w, again, s.n, s.in, s.out));
    assert_memory_equal(y, again, count * sizeof *y);
    free(x);
    free(w);
    free(y);
    free(again);
}

TEST(products_agree_with_double_precision_and_repeat) {
    struct ops_cpu_matmul *matmul = NULL;
    for (uint32_t round = 0; round < 3; round++)
        for (uint32_t i = 0; i < NUM_SHAPES; i++)
            check_product(&matmul, shapes[i], 97 * round + i);
    ops_cpu_matmul_close(&matmul);
    assert_null(matmul);
    ops_cpu_matmul_close(&matmul);
}

TEST(a_nan_propagates_only_to_its_row_and_column) {
    struct ops_cpu_matmul *matmul = NULL;
    struct shape s = {40, 33, 21};
    float *x = values(s.n * s.in, 1), *w = values(s.out * s.in, 2);
    float *y = values(s.n * s.out, 3);
    x[7 * s.in + 32] = NAN;
    w[20 * s.in] = NAN;
    assert_true(ops_cpu_matmul(&matmul, x, w, y, s.n, s.in, s.out));
    for (uint32_t i = 0; i < s.n; i++)
        for (uint32_t j = 0; j < s.out; j++)
            assert_int_equal(!!isnan(y[i * s.out + j]), i == 7 || j == 20);
    ops_cpu_matmul_close(&matmul);
    free(x);
    free(w);
    free(y);
}
