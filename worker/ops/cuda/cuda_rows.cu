/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of fields: a thread computes one element of y. */
#include "worker/ops/cuda/cuda_launch.h"

#include "core/tensor/philox_element.h"
#include "worker/ops/dropout.h"
#include "worker/ops/rows_element.h"

CUDA_ELEMENT float sum_pairs(const struct op &c, const float *x) {
    float pairs = 0;
    for (uint32_t k = 0; k < c.width; k++) {
        float squares, sum = rows_field_sum(x, c.fields, c.width, k, &squares);
        pairs += rows_pairs_of(sum, squares);
    }
    return pairs;
}

/* The product of pair P: the fields A > B with rows_pair(A, B) = P. */
CUDA_ELEMENT float cuda_rows_dot(const struct op &c, const float *x,
                                 uint32_t p) {
    uint32_t a = 1;
    while (rows_pair(a + 1, 0) <= p)
        a++;
    uint32_t b = p - (uint32_t)rows_pair(a, 0);
    return rows_dot(x + (size_t)a * c.width, x + (size_t)b * c.width, c.width);
}

/* Element E of y without gaps. */
CUDA_ELEMENT float cuda_rows_dropout(const struct op &c, float x, size_t e) {
    const uint64_t *batch = (const uint64_t *)c.reads[1].data;
    uint32_t words[4];
    philox_words(c.key, c.step * *batch + c.number, e / 4, words);
    return dropout_element(x, words[e % 4], dropout_threshold(c.rate),
                           dropout_scale(c.rate));
}

/* Element J of sample I. */
template <enum op_kind KIND>
CUDA_ELEMENT float cuda_rows_element(const struct op &c, size_t i, uint32_t j,
                                     size_t count) {
    const float *x = (const float *)c.reads[0].data + i * c.x_row;
    const float *dy = (const float *)c.reads[1].data + i * c.dy_row;
    float squares;
    switch (KIND) {
    case OP_ROWS_PAIRS:
        return sum_pairs(c, x);
    case OP_ROWS_PAIRS_GRADIENT:
        return *dy *
               (rows_field_sum(x, c.fields, c.width, j % c.width, &squares) -
                x[j]);
    case OP_ROWS_DOTS:
        return cuda_rows_dot(c, x, j);
    case OP_ROWS_DOTS_GRADIENT:
        return rows_dot_gradient(x, dy, c.fields, c.width, j / c.width,
                                 j % c.width);
    case OP_ROWS_DROPOUT:
        return cuda_rows_dropout(c, x[j], i * count + j);
    default:
        return x[j];
    }
}

/* COUNT elements of each sample. */
template <enum op_kind KIND>
static __global__ void compute_rows(struct op c, size_t count) {
    for (size_t e = cuda_first(); e < c.n * count; e += cuda_stride()) {
        size_t i = e / count;
        uint32_t j = (uint32_t)(e % count);
        float value = cuda_rows_element<KIND>(c, i, j, count);
        float *y = (float *)c.writes[0].data + i * c.y_row + j;
        *y = c.add ? *y + value : value;
    }
}

template <enum op_kind KIND>
static int launch_rows(struct CUstream_st *stream, const struct op &c,
                       size_t count) {
    return cuda_launch(stream, cuda_blocks(c.n * count, CUDA_THREADS),
                       compute_rows<KIND>, c, count);
}

int cuda_kernels_rows(struct CUstream_st *stream, const struct op *op) {
    size_t count = (size_t)op->fields * op->width;
    switch (op->kind) {
    case OP_ROWS_COPY:
        return launch_rows<OP_ROWS_COPY>(stream, *op, count);
    case OP_ROWS_PAIRS:
        return launch_rows<OP_ROWS_PAIRS>(stream, *op, 1);
    case OP_ROWS_PAIRS_GRADIENT:
        return launch_rows<OP_ROWS_PAIRS_GRADIENT>(stream, *op, count);
    case OP_ROWS_DOTS:
        return launch_rows<OP_ROWS_DOTS>(stream, *op, op_pairs(op->fields));
    case OP_ROWS_DOTS_GRADIENT:
        return launch_rows<OP_ROWS_DOTS_GRADIENT>(stream, *op, count);
    case OP_ROWS_DROPOUT:
        return launch_rows<OP_ROWS_DROPOUT>(stream, *op, count);
    default:
        return cudaErrorInvalidValue;
    }
}
