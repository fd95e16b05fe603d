/* SPDX-License-Identifier: Apache-2.0 */
/* Included first by each .cu file: the element headers as device functions, and
 * kernel launches. A kernel's loops stride over the whole grid, so that any
 * number of blocks computes the same; a block has CUDA_THREADS threads in one
 * dimension. */
#ifndef CAPSTAN_CUDA_LAUNCH_H
#define CAPSTAN_CUDA_LAUNCH_H

#define CUDA_ELEMENT static __device__ __forceinline__
#define ACTIVATION_ELEMENT CUDA_ELEMENT
#define BF16_ELEMENT CUDA_ELEMENT
#define DROPOUT_ELEMENT CUDA_ELEMENT
#define FP16_ELEMENT CUDA_ELEMENT
#define LOSS_ELEMENT CUDA_ELEMENT
#define PHILOX_ELEMENT CUDA_ELEMENT
#define ROWS_ELEMENT CUDA_ELEMENT
#define RULE_ELEMENT CUDA_ELEMENT

#include "worker/ops/cuda/cuda_kernels.h"

/* CUDA_MAX_BLOCKS: twice the threads that the largest devices run at once. */
enum { CUDA_THREADS = 256, CUDA_WARP = 32, CUDA_MAX_BLOCKS = 2304 };
#define CUDA_FULL_WARP 0xffffffffu

/* The first of COUNT elements of a thread, and the distance to its next. */
CUDA_ELEMENT size_t cuda_first(void) {
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

CUDA_ELEMENT size_t cuda_stride(void) {
    return (size_t)gridDim.x * blockDim.x;
}

/* SCALE times an optional factor. */
CUDA_ELEMENT float cuda_scale(float scale, const float *factor) {
    return factor ? scale * *factor : scale;
}

/* Blocks for COUNT elements, EACH of them per block. */
static inline unsigned cuda_blocks(size_t count, size_t each) {
    size_t blocks = (count + each - 1) / each, most = CUDA_MAX_BLOCKS;
    return (unsigned)(blocks < most ? blocks : most);
}

/* Launches KERNEL on BLOCKS blocks with GIVEN; does nothing for 0 blocks. */
template <typename... Taken, typename... Given>
static inline int cuda_launch(struct CUstream_st *stream, unsigned blocks,
                              void (*kernel)(Taken...), Given... given) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(CUDA_THREADS);
    config.stream = stream;
    return blocks ? (int)cudaLaunchKernelEx(&config, kernel, given...) : 0;
}

#endif
