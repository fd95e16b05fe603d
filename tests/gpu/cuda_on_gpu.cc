/* SPDX-License-Identifier: Apache-2.0 */
/* tests/gpu/cuda_backend.h on the GPU that is there: the host's memory, pinned
 * so that kernels reach it, and threads in the order that the GPU has. What
 * lies beside memory is compute-sanitizer's affair. Managed memory could hang
 * some GPUs. */
#include "tests/gpu/cuda_backend.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

void *cuda_backend_allocate(size_t bytes) {
    void *memory;
    cudaError_t error = cudaMallocHost(&memory, bytes ? bytes : 1);
    if (error) {
        fprintf(stderr, "no %zu bytes of pinned memory: %s\n", bytes,
                cudaGetErrorString(error));
        exit(EXIT_FAILURE);
    }
    memset(memory, 0xff, bytes);
    return memory;
}

void cuda_backend_release(void *memory) {
    cudaFreeHost(memory);
}

void cuda_backend_set_order(uint64_t, unsigned) {
}

const char *cuda_backend_wait(void) {
    cudaError_t error = cudaDeviceSynchronize();
    return error ? cudaGetErrorString(error) : nullptr;
}
