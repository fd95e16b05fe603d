/* SPDX-License-Identifier: Apache-2.0 */
/* A layer beside its product: bias and activation, the activation's gradient,
 * and column sums, which are the bias's gradient. */
#include "worker/ops/cuda/cuda_launch.h"

#include "worker/ops/activation.h"

template <enum job_activation ACTIVATION>
CUDA_ELEMENT float cuda_layer_activate(float x) {
    switch (ACTIVATION) {
    case JOB_RELU:
        return activation_relu(x);
    case JOB_TANH:
        return activation_tanh(x);
    case JOB_SIGMOID:
        return activation_sigmoid(x);
    case JOB_IDENTITY:
        break;
    }
    return x;
}

template <enum job_activation ACTIVATION>
CUDA_ELEMENT float cuda_layer_derivative(float y, float dy) {
    switch (ACTIVATION) {
    case JOB_RELU:
        return activation_relu_gradient(y, dy);
    case JOB_TANH:
        return activation_tanh_gradient(y, dy);
    case JOB_SIGMOID:
        return activation_sigmoid_gradient(y, dy);
    case JOB_IDENTITY:
        break;
    }
    return dy;
}

/* y[count] = activation(y + bias[out]), count a multiple of out. A thread's
 * column advances by the same number each time, which saves all divisions but
 * the first two; those are 32-bit and so fast, as the number of threads is
 * small. */
template <enum job_activation ACTIVATION>
static __global__ void add_bias(const float *__restrict__ bias,
                                float *__restrict__ y, size_t count,
                                uint32_t out) {
    size_t column = (uint32_t)cuda_first() % out;
    size_t step = (uint32_t)cuda_stride() % out;
    for (size_t i = cuda_first(); i < count; i += cuda_stride()) {
        y[i] = cuda_layer_activate<ACTIVATION>(y[i] + bias[column]);
        column += step;
        column -= column < out ? 0 : out;
    }
}

template <enum job_activation ACTIVATION>
static __global__ void apply_derivative(const float *__restrict__ y,
                                        float *__restrict__ dy, size_t count) {
    for (size_t i = cuda_first(); i < count; i += cuda_stride())
        dy[i] = cuda_layer_derivative<ACTIVATION>(y[i], dy[i]);
}

template <enum job_activation ACTIVATION>
static int launch_bias(struct CUstream_st *stream, const float *bias, float *y,
                       size_t n, uint32_t out) {
    size_t count = n * out;
    return cuda_launch(stream, cuda_blocks(count, CUDA_THREADS),
                       add_bias<ACTIVATION>, bias, y, count, out);
}

int cuda_kernels_bias_activation(struct CUstream_st *stream, const float *bias,
                                 float *y, size_t n, uint32_t out,
                                 enum job_activation activation) {
    switch (activation) {
    case JOB_RELU:
        return launch_bias<JOB_RELU>(stream, bias, y, n, out);
    case JOB_TANH:
        return launch_bias<JOB_TANH>(stream, bias, y, n, out);
    case JOB_SIGMOID:
        return launch_bias<JOB_SIGMOID>(stream, bias, y, n, out);
    case JOB_IDENTITY:
        return launch_bias<JOB_IDENTITY>(stream, bias, y, n, out);
    }
    return cudaErrorInvalidValue;
}

template <enum job_activation ACTIVATION>
static int launch_derivative(struct CUstream_st *stream, const float *y,
                             float *dy, size_t count) {
    return cuda_launch(stream, cuda_blocks(count, CUDA_THREADS),
                       apply_derivative<ACTIVATION>, y, dy, count);
}

int cuda_kernels_activation_gradient(struct CUstream_st *stream,
                                     enum job_activation activation,
                                     const float *y, float *dy, size_t count) {
    switch (activation) {
    case JOB_RELU:
        return launch_derivative<JOB_RELU>(stream, y, dy, count);
    case JOB_TANH:
        return launch_derivative<JOB_TANH>(stream, y, dy, count);
    case JOB_SIGMOID:
        return launch_derivative<JOB_SIGMOID>(stream, y, dy, count);
    case JOB_IDENTITY:
        return 0;
    }
    return cudaErrorInvalidValue;
}

/* A block sums a tile: COLUMNS neighbouring columns of a piece of PIECE_ROWS
 * rows; a warp reads neighbouring floats, and each warp every ROWS-th row. */
enum {
    COLUMNS = CUDA_WARP,
    ROWS = CUDA_THREADS / COLUMNS,
    PIECE_ROWS = 256,
};

CUDA_ELEMENT float sum_rows(const float *dy, size_t first, size_t end,
                            size_t column, size_t out) {
    float sum = 0;
    for (size_t row = first; row < end; row += ROWS)
        sum += dy[row * out + column];
    return sum;
}

/* Sums each column over the block's warps into the first warp: half the warps
 * add the other half, until one is left. */
CUDA_ELEMENT float add_warps(float sum) {
    __shared__ float sums[ROWS][COLUMNS];
    unsigned lane = threadIdx.x % COLUMNS, warp = threadIdx.x / COLUMNS;
    sums[warp][lane] = sum;
    for (unsigned half = ROWS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (warp < half)
            sums[warp][lane] += sums[warp + half][lane];
    }
    if (warp == 0)
        sum = sums[0][lane];
    __syncthreads(); /* the next tile overwrites `sums` */
    return sum;
}

/* sums[pieces, out] = column sums of each piece of dy[n, out]; added to the
 * existing values if ADD. */
static __global__ void cuda_layer_sum_pieces(const float *__restrict__ dy,
                                             float *__restrict__ sums, size_t n,
                                             size_t out, size_t pieces,
                                             bool add) {
    size_t wide = (out + COLUMNS - 1) / COLUMNS;
    for (size_t tile = blockIdx.x; tile < wide * pieces; tile += gridDim.x) {
        size_t piece = tile / wide, first = piece * PIECE_ROWS;
        size_t end = first + PIECE_ROWS < n ? first + PIECE_ROWS : n;
        size_t column = tile % wide * COLUMNS + threadIdx.x % COLUMNS;
        size_t row = first + threadIdx.x / COLUMNS;
        float sum = column < out ? sum_rows(dy, row, end, column, out) : 0;
        sum = add_warps(sum);
        float *to = sums + piece * out + column;
        if (column < out && threadIdx.x < COLUMNS)
            *to = add ? *to + sum : sum;
    }
}

/* db[out] = column sums of sums[pieces, out], from first to last; added to db
 * if ADD. */
static __global__ void add_pieces(const float *__restrict__ sums,
                                  float *__restrict__ db, size_t pieces,
                                  size_t out, bool add) {
    for (size_t i = cuda_first(); i < out; i += cuda_stride()) {
        float sum = 0;
        for (size_t piece = 0; piece < pieces; piece++)
            sum += sums[piece * out + i];
        db[i] = add ? db[i] + sum : sum;
    }
}

static size_t pieces_of(size_t n) {
    return n <= PIECE_ROWS ? 1 : (n + PIECE_ROWS - 1) / PIECE_ROWS;
}

size_t cuda_kernels_column_sums_scratch(size_t n, uint32_t out) {
    return n <= PIECE_ROWS ? 0 : pieces_of(n) * out * sizeof(float);
}

int cuda_kernels_column_sums(struct CUstream_st *stream, const float *dy,
                             float *db, size_t n, uint32_t out, bool add,
                             void *scratch) {
    size_t pieces = pieces_of(n), wide = ((size_t)out + COLUMNS - 1) / COLUMNS;
    unsigned blocks = cuda_blocks(wide * pieces, 1);
    if (pieces == 1)
        return cuda_launch(stream, blocks, cuda_layer_sum_pieces, dy, db, n,
                           (size_t)out, pieces, add);
    float *sums = (float *)scratch;
    int error = cuda_launch(stream, blocks, cuda_layer_sum_pieces, dy, sums, n,
                            (size_t)out, pieces, false);
    if (error)
        return error;
    return cuda_launch(stream, cuda_blocks(out, CUDA_THREADS), add_pieces,
                       (const float *)sums, db, pieces, (size_t)out, add);
}
