/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/cuda_faults.h"

#include "worker/ops/cuda/cuda_launch.h"

static __global__ void reverse(const float *x, float *y, bool barrier) {
    __shared__ float all[CUDA_FAULTS_THREADS];
    all[threadIdx.x] = x[threadIdx.x];
    if (barrier)
        __syncthreads();
    y[threadIdx.x] = all[CUDA_FAULTS_THREADS - 1 - threadIdx.x];
}

int cuda_faults_reverse(const float *x, float *y, bool barrier) {
    return cuda_launch(NULL, 1, reverse, x, y, barrier);
}

static __global__ void add_neighbours(float *y, bool exchange) {
    unsigned neighbour = threadIdx.x ^ 1;
    float own = (float)threadIdx.x, other;
    y[threadIdx.x] = own;
    other = exchange ? __shfl_xor_sync(CUDA_FULL_WARP, own, 1) : y[neighbour];
    y[threadIdx.x] = own + other;
}

int cuda_faults_neighbours(float *y, bool exchange) {
    return cuda_launch(NULL, 1, add_neighbours, y, exchange);
}

static __global__ void wait_alone(unsigned without) {
    if (threadIdx.x != without)
        __syncthreads();
}

int cuda_faults_wait_alone(unsigned without) {
    return cuda_launch(NULL, 1, wait_alone, without);
}

static __global__ void write_at(float *x, ptrdiff_t at) {
    if (threadIdx.x == 0)
        x[at] = 1;
}

int cuda_faults_write(float *x, ptrdiff_t at) {
    return cuda_launch(NULL, 1, write_at, x, at);
}

static __global__ void read_unset(float *y) {
    __shared__ float unset[1];
    if (threadIdx.x == 0)
        y[0] = unset[0];
    __syncthreads();
    unset[0] = 1;
}

int cuda_faults_unset(float *y) {
    return cuda_launch(NULL, 1, read_unset, y);
}
