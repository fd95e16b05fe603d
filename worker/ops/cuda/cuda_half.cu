/* SPDX-License-Identifier: Apache-2.0 */
/* float32 to 16 bits and from pixels. */
#include "worker/ops/cuda/cuda_launch.h"

#include "core/tensor/bf16.h"
#include "core/tensor/fp16.h"

template <enum cuda_kernels_half HALF>
CUDA_ELEMENT uint16_t float_to_half(float value) {
    return HALF == CUDA_KERNELS_BF16 ? bf16_from_float(value)
                                     : fp16_from_float(value);
}

template <enum cuda_kernels_half HALF>
static __global__ void to_half(const float *__restrict__ floats,
                               uint16_t *__restrict__ halves, size_t count) {
    for (size_t i = cuda_first(); i < count; i += cuda_stride())
        halves[i] = float_to_half<HALF>(floats[i]);
}

int cuda_kernels_to_half(struct CUstream_st *stream,
                         enum cuda_kernels_half half, const float *floats,
                         uint16_t *halves, size_t count) {
    return cuda_launch(stream, cuda_blocks(count, CUDA_THREADS),
                       half == CUDA_KERNELS_BF16 ? to_half<CUDA_KERNELS_BF16>
                                                 : to_half<CUDA_KERNELS_FP16>,
                       floats, halves, count);
}

static __global__ void pixels(const uint8_t *bytes, float *floats,
                              size_t count) {
    for (size_t i = cuda_first(); i < count; i += cuda_stride())
        floats[i] = (float)bytes[i] / 255.0f;
}

int cuda_kernels_pixels(struct CUstream_st *stream, const uint8_t *bytes,
                        float *floats, size_t count) {
    return cuda_launch(stream, cuda_blocks(count, CUDA_THREADS), pixels, bytes,
                       floats, count);
}
