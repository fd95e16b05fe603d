/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/cuda/cuda_kernels.h"

#include "tests/gpu/cuda_cases.h"
#include "worker/ops/dropout.h"

static const uint64_t firsts[] = {0, 1, 2, 3, 4, 1001, (1ull << 34) - 2};
enum { FIRSTS = sizeof firsts / sizeof *firsts };

static void uniform_weights_have_the_cpus_bits(void **state) {
    (void)state;
    for (int i = 0; i < CUDA_SIZES; i++)
        for (int f = 0; f < FIRSTS; f++) {
            size_t count = cuda_sizes[i];
            float *expected = cuda_floats(count, 1, 1);
            float *values = cuda_floats(count, 2, 1);
            philox_uniform(5, 3, firsts[f], 0.07f, expected, count);
            cuda_set_order((i + f) % CUDA_ORDERS);
            assert_runs(cuda_kernels_uniform(NULL, 5, 3, firsts[f], 0.07f,
                                             values, count));
            assert_memory_equal(values, expected, count * sizeof *values);
            cuda_backend_release(expected);
            cuda_backend_release(values);
        }
}

/* Whether element E is left out, from the generator itself. */
static bool left_out(const struct cuda_kernels_mask *d, uint64_t number,
                     uint64_t e) {
    uint32_t words[4];
    philox(d->key, number, e / 4, words);
    return words[e % 4] < d->rate * 0x1p32;
}

static void check_dropout(const struct cuda_kernels_mask *d, uint64_t number,
                          const float *x, size_t count) {
    float gain = dropout_scale(d->rate);
    float *expected = cuda_copy(x, count);
    for (size_t i = 0; i < count; i++)
        expected[i] *= left_out(d, number, d->first + i) ? 0 : gain;
    for (int order = 0; order < CUDA_ORDERS; order++) {
        float *y = cuda_floats(count, 9, 1), *in_place = cuda_copy(x, count);
        cuda_set_order(order);
        assert_runs(cuda_kernels_dropout(NULL, d, x, y, count));
        assert_runs(cuda_kernels_dropout(NULL, d, in_place, in_place, count));
        cuda_assert_same_bits(y, expected, count);
        cuda_assert_same_bits(in_place, expected, count);
        cuda_backend_release(y);
        cuda_backend_release(in_place);
    }
    cuda_backend_release(expected);
}

static void dropout_drops_what_the_generator_selects(void **state) {
    (void)state;
    static const double rates[] = {0, 0.1, 0.5, 0.999};
    for (int i = 0; i < CUDA_SIZES; i++)
        for (int r = 0; r < 4; r++) {
            struct cuda_kernels_mask d = {.rate = rates[r],
                                          .key = 11,
                                          .number = 1ull << 40,
                                          .first = firsts[(i + r) % FIRSTS]};
            float *x = cuda_floats(cuda_sizes[i], 1, 3);
            float *special = cuda_specials(cuda_sizes[i]);
            check_dropout(&d, d.number, x, cuda_sizes[i]);
            check_dropout(&d, d.number, special, cuda_sizes[i]);
            cuda_backend_release(x);
            cuda_backend_release(special);
        }
}

static void each_round_on_the_device_has_its_own_mask(void **state) {
    (void)state;
    uint64_t *round = cuda_backend_allocate(sizeof *round);
    float *x = cuda_floats(1025, 1, 3);
    struct cuda_kernels_mask d = {
        .rate = 0.5, .key = 1, .number = 7, .round = round};
    for (*round = 0; *round < 3; ++*round)
        check_dropout(&d, 7 + *round, x, 1025);
    cuda_backend_release(round);
    cuda_backend_release(x);
}

/* Each element is kept with the probability 1 - rate: the number kept is within
 * 6 of its standard deviations. */
static void dropout_drops_about_its_rate_and_keeps_the_mean(void **state) {
    (void)state;
    enum { COUNT = 100003 };
    float *x = cuda_floats(COUNT, 1, 0), *y = cuda_floats(COUNT, 1, 1);
    for (size_t i = 0; i < COUNT; i++)
        x[i] = 1;
    cuda_backend_set_order(1, 0);
    for (double rate = 0.1; rate < 1; rate += 0.2) {
        struct cuda_kernels_mask d = {.rate = rate, .key = 3};
        double kept = 0, sum = 0;
        assert_runs(cuda_kernels_dropout(NULL, &d, x, y, COUNT));
        for (size_t i = 0; i < COUNT; i++) {
            kept += y[i] != 0;
            sum += y[i];
        }
        double deviation = sqrt(COUNT * rate * (1 - rate));
        assert_near(kept, COUNT * (1 - rate), 6 * deviation);
        assert_near(sum, kept / (1 - rate), 1e-6 * COUNT);
    }
    cuda_backend_release(x);
    cuda_backend_release(y);
}

static void zero_elements_draw_no_numbers(void **state) {
    (void)state;
    struct cuda_kernels_mask d = {.rate = 0.5, .first = 3};
    assert_runs(cuda_kernels_uniform(NULL, 1, 2, 3, 1, NULL, 0));
    assert_runs(cuda_kernels_dropout(NULL, &d, NULL, NULL, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uniform_weights_have_the_cpus_bits),
        cmocka_unit_test(dropout_drops_what_the_generator_selects),
        cmocka_unit_test(each_round_on_the_device_has_its_own_mask),
        cmocka_unit_test(dropout_drops_about_its_rate_and_keeps_the_mean),
        cmocka_unit_test(zero_elements_draw_no_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
