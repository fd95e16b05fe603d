/* SPDX-License-Identifier: Apache-2.0 */
/* The counter-based generator. A thread takes one position, whose four words
 * belong to four adjacent elements; the first and the last position may be used
 * in part. */
#include "worker/ops/cuda/cuda_launch.h"

#include "core/tensor/philox_element.h"

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
