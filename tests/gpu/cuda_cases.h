/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of kernels share: sizes, orders of threads, numbers. */
#ifndef CAPSTAN_CUDA_CASES_H
#define CAPSTAN_CUDA_CASES_H

#include "core/tensor/philox.h"
#include "tests/gpu/cuda_backend.h"
#include "tests/lib/test.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* A thread of a kernel takes fifty times as long under the thread sanitizer,
 * which cannot find anything there: the threads take turns. CUDA_MANY is more
 * than the warps of the largest grid. */
#ifdef __SANITIZE_THREAD__
enum { CUDA_MANY = 20011, CUDA_ORDERS = 2 };
#else
enum { CUDA_MANY = 100003, CUDA_ORDERS = 5 };
#endif

static const size_t cuda_sizes[] = {1, 7, 255, 256, 257, 1025, CUDA_MANY};
enum { CUDA_SIZES = sizeof cuda_sizes / sizeof *cuda_sizes };

/* Seeds of the order of threads, with the most blocks of a launch. */
static const struct cuda_order {
    uint64_t seed;
    unsigned max_blocks;
} cuda_orders[5] = {{0, 5}, {1, 0}, {2, 3}, {3, 1}, {0, 5}};

static const float cuda_special[] = {
    NAN,      INFINITY, -INFINITY,    0.0f,          -0.0f,  FLT_MAX,
    -FLT_MAX, FLT_MIN,  FLT_TRUE_MIN, -FLT_TRUE_MIN, 1e-30f, 1e30f,
};
enum { CUDA_SPECIAL = sizeof cuda_special / sizeof *cuda_special };

/* A launch, and what became of it. */
#define assert_runs(CALL)                                                      \
    do {                                                                       \
        assert_int_equal((CALL), 0);                                           \
        const char *failed = cuda_backend_wait();                              \
        if (failed)                                                            \
            fail_msg("%s", failed);                                            \
    } while (0)

#define assert_near(GOT, EXPECTED, TOLERANCE)                                  \
    do {                                                                       \
        double off = fabs((double)(GOT) - (double)(EXPECTED));                 \
        if (!(off <= (double)(TOLERANCE)))                                     \
            fail_msg("found %.9g, expected %.17g within %.3g", (double)(GOT),  \
                     (double)(EXPECTED), (double)(TOLERANCE));                 \
    } while (0)

static inline void cuda_set_order(int order) {
    cuda_backend_set_order(cuda_orders[order].seed,
                           cuda_orders[order].max_blocks);
}

/* COUNT values in [-BOUND, BOUND), by SEED, for the machine's kernels. */
static inline float *cuda_floats(size_t count, uint64_t seed, float bound) {
    float *floats = cuda_backend_allocate(count * sizeof *floats);
    philox_uniform(seed, 0, 0, bound, floats, count);
    return floats;
}

/* The special values again and again. */
static inline float *cuda_specials(size_t count) {
    float *floats = cuda_backend_allocate(count * sizeof *floats);
    for (size_t i = 0; i < count; i++)
        floats[i] = cuda_special[i % CUDA_SPECIAL];
    return floats;
}

static inline float *cuda_copy(const float *from, size_t count) {
    float *floats = cuda_backend_allocate(count * sizeof *floats);
    memcpy(floats, from, count * sizeof *floats);
    return floats;
}

/* All the same bits, or both NaN. */
static inline void cuda_assert_same_bits(const float *got,
                                         const float *expected, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (memcmp(&got[i], &expected[i], sizeof *got) != 0 &&
            !(isnan(got[i]) && isnan(expected[i])))
            fail_msg("element %zu of %zu: %a, not %a", i, count, (double)got[i],
                     (double)expected[i]);
}

#endif
