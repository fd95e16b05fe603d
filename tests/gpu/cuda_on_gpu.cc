/* SPDX-License-Identifier: Apache-2.0 */
/* tests/gpu/cuda_backend.h on the GPU that is there: memory that both sides
 * reach, threads in the order that the GPU has. What lies beside memory is
 * compute-sanitizer's affair. */
#include "tests/gpu/cuda_backend.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

void *cuda_backend_allocate(size_t bytes) {
    void *memory;
    cudaError_t error = cudaMallocManaged(&memory, bytes ? bytes : 1);
    if (error) {
        fprintf(stderr, "no %zu bytes of a GPU's memory: %s\n", bytes,
                cudaGetErrorString(error));
        exit(EXIT_FAILURE);
    }
    memset(memory, 0xff, bytes);
    return memory;
}

void cuda_backend_release(void *memory) {
    cudaFree(memory);
}

void cuda_backend_set_order(uint64_t, unsigned) {
}

const char *cuda_backend_wait(void) {
    cudaError_t error = cudaDeviceSynchronize();
    return error ? cudaGetErrorString(error) : nullptr;
}
