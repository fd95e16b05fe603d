/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA's language as far as worker/cuda_*.cu speak it, for g++: a kernel is a
 * function that tests/gpu/cuda_on_cpu.cc calls once a thread. Blocks run one
 * after the other, the threads of a block each until it waits for others; in
 * which order, tests/gpu/cuda_backend.h says. Shared memory is full of NaN when
 * a block starts. A launch fails where threads wait for others that will not
 * come. */
#ifndef CAPSTAN_CUDA_ON_CPU_H
#define CAPSTAN_CUDA_ON_CPU_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static __attribute__((section("cuda_shared")))

struct CUstream_st;
typedef CUstream_st *cudaStream_t;

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorLaunchFailure = 719,
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned wide = 1, unsigned high = 1, unsigned deep = 1)
        : x(wide), y(high), z(deep) {
    }
};

/* Of the thread that runs. */
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes; /* 0 */
    cudaStream_t stream;     /* NULL: launches are done when they return */
};

/* Calls THREAD for every thread of CONFIG, of one dimension. */
cudaError_t cuda_on_cpu_launch(const cudaLaunchConfig_t *config,
                               const std::function<void()> &thread);

template <typename... Taken, typename... Given>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config,
                               void (*kernel)(Taken...), Given &&...given) {
    std::tuple<Taken...> taken(given...);
    return cuda_on_cpu_launch(config,
                              [kernel, taken] { std::apply(kernel, taken); });
}

void __syncthreads(void);

/* Waits for the lanes of MASK; what each of the warp's has GIVEN. */
const uint64_t *cuda_on_cpu_exchange(unsigned mask, uint64_t given);

template <typename T> T __shfl_xor_sync(unsigned mask, T value, int apart) {
    uint64_t given = 0;
    memcpy(&given, &value, sizeof value);
    const uint64_t *all = cuda_on_cpu_exchange(mask, given);
    memcpy(&value, &all[threadIdx.x % 32 ^ (unsigned)apart], sizeof value);
    return value;
}

static inline int __all_sync(unsigned mask, int holds) {
    const uint64_t *all = cuda_on_cpu_exchange(mask, holds != 0);
    int result = 1;
    for (unsigned lane = 0; lane < 32; lane++)
        result &= !(mask >> lane & 1) || all[lane];
    return result;
}

static inline unsigned atomicOr(unsigned *to, unsigned bits) {
    unsigned before = *to;
    *to |= bits;
    return before;
}

#endif
