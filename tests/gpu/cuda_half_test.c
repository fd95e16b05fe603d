/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/cuda/cuda_kernels.h"

#include "core/tensor/bf16.h"
#include "core/tensor/fp16.h"
#include "tests/gpu/cuda_cases.h"

enum { HALVES = 1 << 16 };

static const enum cuda_kernels_half kinds[] = {CUDA_KERNELS_BF16,
                                               CUDA_KERNELS_FP16};

static uint16_t half_from(enum cuda_kernels_half kind, float value) {
    return kind == CUDA_KERNELS_BF16 ? bf16_from_float(value)
                                     : fp16_from_float(value);
}

/* X has the headers' bits. */
static void check(enum cuda_kernels_half kind, const float *x, size_t count) {
    for (int order = 0; order < CUDA_ORDERS; order++) {
        uint16_t *halves = cuda_backend_allocate(count * sizeof *halves);
        cuda_set_order(order);
        assert_runs(cuda_kernels_to_half(NULL, kind, x, halves, count));
        for (size_t i = 0; i < count; i++)
            assert_int_equal(halves[i], half_from(kind, x[i]));
        cuda_backend_release(halves);
    }
}

TEST(conversions_have_the_bits_of_the_header) {
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i < CUDA_SIZES; i++) {
            float *x = cuda_floats(cuda_sizes[i], 1, 3);
            float *special = cuda_specials(cuda_sizes[i]);
            check(kinds[kind], x, cuda_sizes[i]);
            check(kinds[kind], special, cuda_sizes[i]);
            cuda_backend_release(x);
            cuda_backend_release(special);
        }
}

/* Every upper half of a float with lower halves at which rounding turns. */
TEST(all_kinds_of_floats_round_as_on_the_cpu) {
    static const uint32_t lower[] = {0, 1, 0x1000, 0x7fff, 0x8000, 0xffff};
    float *x = cuda_floats(HALVES, 1, 1);
    for (int l = 0; l < 6; l++) {
        for (uint32_t upper = 0; upper < HALVES; upper++) {
            uint32_t bits = upper << 16 | lower[l];
            memcpy(&x[upper], &bits, sizeof bits);
        }
        check(CUDA_KERNELS_BF16, x, HALVES);
        check(CUDA_KERNELS_FP16, x, HALVES);
    }
    cuda_backend_release(x);
}

/* Each byte by its nearest float, of a number of them that fills no block. */
TEST(pixels_are_divided_as_on_the_cpu) {
    enum { COUNT = 1025 };
    uint8_t *bytes = cuda_backend_allocate(COUNT);
    for (int i = 0; i < COUNT; i++)
        bytes[i] = (uint8_t)i;
    for (int order = 0; order < CUDA_ORDERS; order++) {
        float *floats = cuda_floats(COUNT, 1, 1);
        cuda_set_order(order);
        assert_runs(cuda_kernels_pixels(NULL, bytes, floats, COUNT));
        for (int i = 0; i < COUNT; i++)
            assert_true(floats[i] == (float)((double)bytes[i] / 255));
        cuda_backend_release(floats);
    }
    cuda_backend_release(bytes);
}
