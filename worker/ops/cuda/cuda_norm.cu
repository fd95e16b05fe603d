/* SPDX-License-Identifier: Apache-2.0 */
/* The gradient's norm, the clipping factor, and the test for infinities and
 * NaN. */
#include "worker/ops/cuda/cuda_launch.h"

#include <math.h>
#include <string.h>

/* LANES as RULE_LANES of rule_loops.h. A lane's doubles are added in the CPU's
 * order, so few threads add; but all threads of the block read, one TILE of
 * floats at a time. */
enum { LANES = 16, TILE = 4096 };
static_assert(RULE_PIECE % TILE == 0 && TILE % LANES == 0,
              "an element's lane depends on the tile");

/* tile[count] = SCALE * x[count] */
CUDA_ELEMENT void read_tile(const float *x, size_t count, float scale,
                            float *tile) {
    for (size_t i = threadIdx.x; i < count; i += CUDA_THREADS)
        tile[i] = scale * x[i];
}

/* OWN plus the squares of lane LANE of tile[count]. */
CUDA_ELEMENT double add_lane(double own, const float *tile, size_t count,
                             unsigned lane) {
    for (size_t i = lane; i < count; i += LANES)
        own += (double)tile[i] * tile[i];
    return own;
}

/* As tree_sum of rule.c: half the lanes add the other half. */
CUDA_ELEMENT double cuda_norm_tree_sum(double *lanes) {
    for (unsigned width = LANES / 2; width > 0; width /= 2)
        for (unsigned lane = 0; lane < width; lane++)
            lanes[lane] += lanes[lane + width];
    return lanes[0];
}

/* pieces[ceil(count / RULE_PIECE)] of x[count]; one block per piece. */
static __global__ void cuda_norm_square(const float *__restrict__ x,
                                        size_t count, float scale,
                                        const float *factor,
                                        double *__restrict__ pieces) {
    __shared__ float tile[TILE];
    __shared__ double lanes[LANES];
    float whole = cuda_scale(scale, factor);
    for (size_t p = blockIdx.x; p * RULE_PIECE < count; p += gridDim.x) {
        size_t first = p * RULE_PIECE;
        size_t end = count - first < RULE_PIECE ? count : first + RULE_PIECE;
        double own = 0;
        for (; first < end; first += TILE) {
            size_t here = end - first < TILE ? end - first : (size_t)TILE;
            read_tile(x + first, here, whole, tile);
            __syncthreads();
            if (threadIdx.x < LANES)
                own = add_lane(own, tile, here, threadIdx.x);
            __syncthreads(); /* the next tile overwrites this one */
        }
        if (threadIdx.x < LANES)
            lanes[threadIdx.x] = own;
        __syncthreads();
        if (threadIdx.x == 0)
            pieces[p] = cuda_norm_tree_sum(lanes);
    }
}

size_t cuda_kernels_square_pieces(size_t count) {
    return (count + RULE_PIECE - 1) / RULE_PIECE;
}

int cuda_kernels_square_sums(struct CUstream_st *stream, const float *x,
                             size_t count, float scale, const float *factor,
                             double *pieces) {
    unsigned blocks = cuda_blocks(cuda_kernels_square_pieces(count), 1);
    return cuda_launch(stream, blocks, cuda_norm_square, x, count, scale,
                       factor, pieces);
}

/* One block: all threads read, the first adds in the CPU's order and has the
 * sum. */
CUDA_ELEMENT double cuda_norm_add_in_order(const double *pieces, size_t count,
                                           size_t step) {
    __shared__ double tile[CUDA_THREADS];
    double sum = 0;
    for (size_t first = 0; first < count; first += CUDA_THREADS) {
        size_t left = count - first;
        size_t here = left < CUDA_THREADS ? left : (size_t)CUDA_THREADS;
        if (threadIdx.x < here)
            tile[threadIdx.x] = pieces[(first + threadIdx.x) * step];
        __syncthreads();
        for (size_t i = 0; threadIdx.x == 0 && i < here; i++)
            sum += tile[i];
        __syncthreads(); /* the next tile overwrites this one */
    }
    return sum;
}

static __global__ void reduce_sum(const double *pieces, size_t count,
                                  double *sum) {
    double found = cuda_norm_add_in_order(pieces, count, 1);
    if (threadIdx.x == 0)
        *sum = found;
}

int cuda_kernels_reduce_sum(struct CUstream_st *stream, const double *pieces,
                            size_t count, double *sum) {
    return cuda_launch(stream, 1, reduce_sum, pieces, count, sum);
}

static __global__ void clip(const double *squares, size_t count, size_t step,
                            double limit, float *factor) {
    double by =
        limit / (sqrt(cuda_norm_add_in_order(squares, count, step)) + 1e-6);
    if (threadIdx.x == 0)
        *factor = by < 1 ? (float)by : 1;
}

int cuda_kernels_clip(struct CUstream_st *stream, const double *squares,
                      size_t count, size_t step, double limit, float *factor) {
    return cuda_launch(stream, 1, clip, squares, count, step, limit, factor);
}

/* The exponent of infinities and NaN is all ones. */
CUDA_ELEMENT bool is_finite(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits & 0x7f800000u) != 0x7f800000u;
}

static __global__ void find_overflow(const float *x, size_t count,
                                     uint32_t *found) {
    bool finite = true;
    for (size_t i = cuda_first(); i < count; i += cuda_stride())
        finite &= is_finite(x[i]);
    if (!finite)
        atomicOr(found, 1u);
}

int cuda_kernels_find_overflow(struct CUstream_st *stream, const float *x,
                               size_t count, uint32_t *found) {
    return cuda_launch(stream, cuda_blocks(count, CUDA_THREADS), find_overflow,
                       x, count, found);
}
