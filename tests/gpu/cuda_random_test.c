/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/cuda/cuda_kernels.h"

#include "tests/gpu/cuda_cases.h"

static const uint64_t firsts[] = {0, 1, 2, 3, 4, 1001, (1ull << 34) - 2};
enum { FIRSTS = sizeof firsts / sizeof *firsts };

TEST(uniform_weights_have_the_cpus_bits) {
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

TEST(zero_elements_draw_no_numbers) {
    assert_runs(cuda_kernels_uniform(NULL, 1, 2, 3, 1, NULL, 0));
}
