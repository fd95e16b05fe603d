/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/cuda/cuda_kernels.h"

#include "core/tensor/rule.h"
#include "tests/gpu/cuda_cases.h"

#include <stdlib.h>

/* Around those of pieces and of the tiles they are read in. */
static const size_t sizes[] = {
    1,          7,
    15,         16,
    17,         255,
    256,        257,
    1025,       4095,
    4096,       4097,
    RULE_PIECE, RULE_PIECE - 1,
    16385,      3 * RULE_PIECE + 5,
    CUDA_MANY,
};
enum { SIZES = sizeof sizes / sizeof *sizes };

static double *pieces_for(size_t count) {
    return cuda_backend_allocate(cuda_kernels_square_pieces(count) *
                                 sizeof(double));
}

static double *on_cpu(const float *x, size_t count, float scale) {
    size_t variants;
    double *pieces = pieces_for(count);
    const void *gradient = x;
    struct rule_update update = {.gradients = &gradient,
                                 .num_gradients = 1,
                                 .scale = scale,
                                 .elements = count};
    rule_square_sums(rule_variants(&variants)[0], &update, pieces);
    return pieces;
}

static void check(const float *x, size_t count, float scale,
                  const float *factor) {
    size_t bytes = cuda_kernels_square_pieces(count) * sizeof(double);
    double *expected = on_cpu(x, count, factor ? scale * *factor : scale);
    for (int order = 0; order < CUDA_ORDERS; order++) {
        double *pieces = pieces_for(count);
        cuda_set_order(order);
        assert_runs(
            cuda_kernels_square_sums(NULL, x, count, scale, factor, pieces));
        assert_memory_equal(pieces, expected, bytes);
        cuda_backend_release(pieces);
    }
    cuda_backend_release(expected);
}

TEST(square_sums_have_the_cpus_bits) {
    float *factor = cuda_floats(1, 7, 1);
    for (int i = 0; i < SIZES; i++) {
        float *x = cuda_floats(sizes[i], 1, 3);
        check(x, sizes[i], 1, NULL);
        check(x, sizes[i], 0.3f, factor);
        cuda_backend_release(x);
    }
    cuda_backend_release(factor);
}

TEST(square_sums_agree_with_double) {
    for (int i = 0; i < SIZES; i++) {
        float *x = cuda_floats(sizes[i], 1, 3);
        double *pieces = pieces_for(sizes[i]), exact = 0, sum = 0;
        cuda_backend_set_order(4, 0);
        assert_runs(
            cuda_kernels_square_sums(NULL, x, sizes[i], 0.5f, NULL, pieces));
        for (size_t k = 0; k < sizes[i]; k++)
            exact += (double)x[k] * x[k] / 4;
        for (size_t p = 0; p < cuda_kernels_square_pieces(sizes[i]); p++)
            sum += pieces[p];
        assert_near(sum, exact, 1e-12 * exact);
        cuda_backend_release(x);
        cuda_backend_release(pieces);
    }
}

/* Huge floats' squares are no doubles' infinities. */
TEST(special_values_affect_only_their_piece) {
    enum { COUNT = 3 * RULE_PIECE };
    for (int v = 0; v < CUDA_SPECIAL; v++) {
        float *x = cuda_floats(COUNT, 1, 1);
        double *pieces = pieces_for(COUNT);
        x[RULE_PIECE + 77] = cuda_special[v];
        assert_runs(cuda_kernels_square_sums(NULL, x, COUNT, 1, NULL, pieces));
        assert_true(isfinite(pieces[0]) && isfinite(pieces[2]));
        assert_true(!isfinite(pieces[1]) == !isfinite(cuda_special[v]));
        assert_true(isnan(pieces[1]) == isnan(cuda_special[v]));
        cuda_backend_release(x);
        cuda_backend_release(pieces);
    }
}

/* COUNT pieces of about 1; or each STEP-th of so many. */
static void check_clip(const double *pieces, size_t count, size_t step,
                       double limit) {
    float *clip = cuda_backend_allocate(sizeof *clip);
    size_t taken = (count + step - 1) / step;
    double sum = 0;
    for (size_t p = 0; p < taken; p++)
        sum += pieces[p * step];
    double factor = limit / (sqrt(sum) + 1e-6);
    float expected = factor < 1 ? (float)factor : 1;
    for (int order = 0; order < CUDA_ORDERS; order++) {
        *clip = -1;
        cuda_set_order(order);
        assert_runs(cuda_kernels_clip(NULL, pieces, taken, step, limit, clip));
        assert_true(*clip == expected);
    }
    cuda_backend_release(clip);
}

static void check_sum(const double *pieces, size_t count) {
    double *found = cuda_backend_allocate(sizeof *found), sum = 0;
    for (size_t p = 0; p < count; p++)
        sum += pieces[p];
    for (int order = 0; order < CUDA_ORDERS; order++) {
        *found = -1;
        cuda_set_order(order);
        assert_runs(cuda_kernels_reduce_sum(NULL, pieces, count, found));
        assert_true(isnan(sum) ? isnan(*found) : *found == sum);
    }
    cuda_backend_release(found);
}

TEST(sums_and_clipping_factors_have_the_cpus_bits) {
    static const size_t counts[] = {1, 7, 255, 256, 257, 1025, 6101};
    for (int i = 0; i < 7; i++) {
        double *pieces = cuda_backend_allocate(counts[i] * sizeof *pieces);
        struct philox_sequence random;
        philox_sequence_open(&random, 1, 0);
        for (size_t p = 0; p < counts[i]; p++)
            pieces[p] = philox_next(&random) * 0x1p-31;
        check_sum(pieces, counts[i]);
        check_clip(pieces, counts[i], 1, 0.5);
        check_clip(pieces, counts[i], 8, 0.5);
        check_clip(pieces, counts[i], 1, 1000);
        pieces[counts[i] - 1] = 0;
        check_clip(pieces, counts[i], 1, 1e-3);
        pieces[counts[i] / 2] = INFINITY;
        check_clip(pieces, counts[i], 1, 1);
        pieces[0] = NAN;
        check_clip(pieces, counts[i], 1, 1);
        check_sum(pieces, counts[i]);
        cuda_backend_release(pieces);
    }
}

static uint32_t overflow_in(const float *x, size_t count, uint32_t before) {
    uint32_t *found = cuda_backend_allocate(sizeof *found), result;
    *found = before;
    assert_runs(cuda_kernels_find_overflow(NULL, x, count, found));
    result = *found;
    cuda_backend_release(found);
    return result;
}

TEST(one_infinity_or_nan_is_found_at_any_position) {
    for (int i = 0; i < CUDA_SIZES; i++) {
        size_t count = cuda_sizes[i], step = count > 300 ? count / 40 : 1;
        float *x = cuda_floats(count, 1, 1);
        cuda_set_order(i % CUDA_ORDERS);
        for (size_t place = 0; place < count; place += step)
            for (int v = 0; v < CUDA_SPECIAL; v++) {
                float value = x[place];
                x[place] = cuda_special[v];
                assert_int_equal(overflow_in(x, count, 0),
                                 !isfinite(cuda_special[v]));
                x[place] = value;
                if (count == CUDA_MANY && v == 4)
                    break;
            }
        x[count - 1] = -INFINITY;
        assert_int_equal(overflow_in(x, count, 0), 1);
        cuda_backend_release(x);
    }
}

TEST(an_earlier_overflow_stays_set) {
    float *x = cuda_floats(300, 1, 1);
    assert_int_equal(overflow_in(x, 300, 1), 1);
    assert_int_equal(overflow_in(x, 300, 0), 0);
    for (int i = 0; i < 300; i++)
        x[i] = NAN;
    assert_int_equal(overflow_in(x, 300, 0), 1);
    cuda_backend_release(x);
}

TEST(zero_elements_have_no_norm_and_no_overflow) {
    double *norm = cuda_backend_allocate(sizeof *norm);
    assert_int_equal(cuda_kernels_square_pieces(0), 0);
    assert_runs(cuda_kernels_square_sums(NULL, NULL, 0, 1, NULL, NULL));
    assert_runs(cuda_kernels_reduce_sum(NULL, NULL, 0, norm));
    assert_true(*norm == 0);
    assert_int_equal(overflow_in(NULL, 0, 0), 0);
    cuda_backend_release(norm);
}
