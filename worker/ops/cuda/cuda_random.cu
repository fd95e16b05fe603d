/* SPDX-License-Identifier: Apache-2.0 */
/* The counter-based generator. A thread takes one position, whose four words
 * belong to four adjacent elements; the first and the last position may be used
 * in part. */
#include "worker/ops/cuda/cuda_launch.h"

#include "proto/tensor/philox_element.h"
#include "worker/ops/dropout.h"

enum { WORDS = 4 };

/* The number of positions that cover COUNT elements from FIRST on. */
static __host__ __device__ inline uint64_t positions_of(uint64_t first,
                                                        size_t count) {
    return (first % WORDS + count + WORDS - 1) / WORDS;
}

/* values[count] for the elements from FIRST on. */
static __global__ void uniform(uint64_t key, uint64_t number, uint64_t first,
                               float bound, float *values, size_t count) {
    uint64_t positions = positions_of(first, count);
    for (uint64_t p = cuda_first(); p < positions; p += cuda_stride()) {
        uint32_t words[WORDS];
        philox_words(key, number, first / WORDS + p, words);
        for (unsigned w = 0; w < WORDS; w++) {
            uint64_t i = p * WORDS + w -
                         first % WORDS; /* wraps to a huge value below first */
            if (i < count)
                values[i] = philox_within(words[w], bound);
        }
    }
}

int cuda_kernels_uniform(struct CUstream_st *stream, uint64_t key,
                         uint64_t number, uint64_t first, float bound,
                         float *values, size_t count) {
    unsigned blocks = cuda_blocks(positions_of(first, count), CUDA_THREADS);
    return cuda_launch(stream, count ? blocks : 0, uniform, key, number, first,
                       bound, values, count);
}

/* y[count] from x[count]; they may be the same. */
static __global__ void apply_dropout(struct cuda_kernels_mask dropout,
                                     uint32_t threshold, float gain,
                                     const float *x, float *y, size_t count) {
    uint64_t positions = positions_of(dropout.first, count);
    uint64_t number = dropout.number + (dropout.round ? *dropout.round : 0);
    for (uint64_t p = cuda_first(); p < positions; p += cuda_stride()) {
        uint32_t words[WORDS];
        philox_words(dropout.key, number, dropout.first / WORDS + p, words);
        for (unsigned w = 0; w < WORDS; w++) {
            uint64_t i = p * WORDS + w - dropout.first % WORDS;
            if (i < count)
                y[i] = dropout_element(x[i], words[w], threshold, gain);
        }
    }
}

int cuda_kernels_dropout(struct CUstream_st *stream,
                         const struct cuda_kernels_mask *dropout,
                         const float *x, float *y, size_t count) {
    uint64_t positions = positions_of(dropout->first, count);
    unsigned blocks = count ? cuda_blocks(positions, CUDA_THREADS) : 0;
    return cuda_launch(stream, blocks, apply_dropout, *dropout,
                       dropout_threshold(dropout->rate),
                       dropout_scale(dropout->rate), x, y, count);
}
