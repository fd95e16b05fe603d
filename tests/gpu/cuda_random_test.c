/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/cuda/cuda_kernels.h"

#include "tests/gpu/cuda_numbers.h"
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
            cuda_take_order((i + f) % CUDA_ORDERS);
            assert_runs(cuda_kernels_uniform(NULL, 5, 3, firsts[f], 0.07f,
                                             values, count));
            assert_memory_equal(values, expected, count * sizeof *values);
            cuda_machine_release(expected);
            cuda_machine_release(values);
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
    float gain = dropout_gain(d->rate);
    float *expected = cuda_copy(x, count);
    for (size_t i = 0; i < count; i++)
        expected[i] *= left_out(d, number, d->first + i) ? 0 : gain;
    for (int order = 0; order < CUDA_ORDERS; order++) {
        float *y = cuda_floats(count, 9, 1), *in_place = cuda_copy(x, count);
        cuda_take_order(order);
        assert_runs(cuda_kernels_dropout(NULL, d, x, y, count));
        assert_runs(cuda_kernels_dropout(NULL, d, in_place, in_place, count));
        cuda_assert_alike(y, expected, count);
        cuda_assert_alike(in_place, expected, count);
        cuda_machine_release(y);
        cuda_machine_release(in_place);
    }
    cuda_machine_release(expected);
}

static void dropout_leaves_out_what_the_generator_says(void **state) {
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
            cuda_machine_release(x);
            cuda_machine_release(special);
        }
}

static void a_round_on_the_device_has_its_own_mask(void **state) {
    (void)state;
    uint64_t *round = cuda_machine_allocate(sizeof *round);
    float *x = cuda_floats(1025, 1, 3);
    struct cuda_kernels_mask d = {
        .rate = 0.5, .key = 1, .number = 7, .round = round};
    for (*round = 0; *round < 3; ++*round)
        check_dropout(&d, 7 + *round, x, 1025);
    cuda_machine_release(round);
    cuda_machine_release(x);
}

/* Each element is kept with the probability 1 - rate: the number kept is within
 * 6 of its standard deviations. */
static void about_the_rate_is_left_out_and_the_mean_stays(void **state) {
    (void)state;
    enum { COUNT = 100003 };
    float *x = cuda_floats(COUNT, 1, 0), *y = cuda_floats(COUNT, 1, 1);
    for (size_t i = 0; i < COUNT; i++)
        x[i] = 1;
    cuda_machine_order(1, 0);
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
    cuda_machine_release(x);
    cuda_machine_release(y);
}

static void nothing_is_drawn_for_no_elements(void **state) {
    (void)state;
    struct cuda_kernels_mask d = {.rate = 0.5, .first = 3};
    assert_runs(cuda_kernels_uniform(NULL, 1, 2, 3, 1, NULL, 0));
    assert_runs(cuda_kernels_dropout(NULL, &d, NULL, NULL, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uniform_weights_have_the_cpus_bits),
        cmocka_unit_test(dropout_leaves_out_what_the_generator_says),
        cmocka_unit_test(a_round_on_the_device_has_its_own_mask),
        cmocka_unit_test(about_the_rate_is_left_out_and_the_mean_stays),
        cmocka_unit_test(nothing_is_drawn_for_no_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
