/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of a GPU beside cuBLAS's products. Each call enqueues its kernels
 * on STREAM and returns at once: 0, or the cudaError_t of a refused launch.
 * Nothing here allocates, waits or copies, so that every call may be captured
 * in a CUDA graph; values that change between replays are read from device
 * memory (`factor` below, the batch's number of a dropout).
 *
 * Pointers are device memory, aligned as their type; two of a call do not
 * overlap unless its contract says so. Matrices are row-major. Any size is
 * allowed; 0 does nothing (an empty sum is 0). The same call gives the same
 * bits on every device of one architecture. "The CPU's bits" are those of the
 * named function for finite results, denormals included. FACTOR may be NULL,
 * which means 1. */
#ifndef CAPSTAN_CUDA_KERNELS_H
#define CAPSTAN_CUDA_KERNELS_H

#include "worker/ops/op.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* cudaStream_t is a pointer to it */

/* Layers: cuda_layer.cu. */

/* y[n, out] = activation(y + bias[out]). The CPU's bits (ops_cpu's `linear`
 * after its product) for relu and identity; tanh and sigmoid are within 4 units
 * in the last place of the exact value. */
int cuda_kernels_bias_activation(struct CUstream_st *stream, const float *bias,
                                 float *y, size_t n, uint32_t out,
                                 enum job_activation activation);

/* dy[count] *= derivative of the activation with output y[count]. The CPU's
 * bits for every activation. */
int cuda_kernels_activation_gradient(struct CUstream_st *stream,
                                     enum job_activation activation,
                                     const float *y, float *dy, size_t count);

/* db[out] = column sums of dy[n, out]; added to db if ADD. Sums are float32,
 * over pieces of rows that depend on n alone. SCRATCH has
 * cuda_kernels_column_sums_scratch bytes; if that is 0 it may be NULL. */
size_t cuda_kernels_column_sums_scratch(size_t n, uint32_t out);
int cuda_kernels_column_sums(struct CUstream_st *stream, const float *dy,
                             float *db, size_t n, uint32_t out, bool add,
                             void *scratch);

/* The loss: cuda_loss.cu. */

/* As OP_LOSS, in two parts, with *LOSS and *CORRECT in
 * device memory. The first writes each sample's loss, without SCALE and FACTOR,
 * and whether its largest logit is the label's to SCRATCH. DZ (may be NULL, or
 * Z itself) receives the gradient of SCALE * FACTOR * sum. The second sums
 * SCRATCH. Sums over classes and samples are in double. SCRATCH has
 * cuda_kernels_loss_scratch bytes, aligned to 8. The CPU's bits for DZ of
 * squared errors. labels[n] must be below OUT; an invalid label makes *LOSS and
 * its row of DZ NaN and reads nothing out of bounds. */
size_t cuda_kernels_loss_scratch(size_t n);
int cuda_kernels_sample_losses(struct CUstream_st *stream, enum job_loss kind,
                               const float *z, const uint32_t *labels,
                               const float *weights, float *dz, size_t n,
                               uint32_t out, float scale, const float *factor,
                               void *scratch);
int cuda_kernels_sum_losses(struct CUstream_st *stream, const void *scratch,
                            size_t n, double *loss, uint32_t *correct);

/* Rows of fields: cuda_rows.cu. */

/* As OP_ROWS_*, whose kind OP has: the CPU's bits. */
int cuda_kernels_rows(struct CUstream_st *stream, const struct op *op);

/* The update: cuda_rule.cu. */

/* One update in place, with the state in device memory. */
struct cuda_kernels_update {
    enum rule_form form; /* rule_form_of */
    struct rule_constants
        constants;       /* rule_form_constants, passed with the launch */
    const float *factor; /* device memory; multiplied into constants.scale */
    /* Device memory: if not 0, nothing changes. NULL: 0. */
    const uint32_t *skip;
    size_t elements;
    const float *gradient; /* the sum */
    float *weights;
    float *state[RULE_MAX_SLOTS]; /* rule_slots of them, in their order */
};

/* Applies UPDATE: the CPU's bits (rule_apply with one float32 gradient) except
 * for Ftrl with a power other than -0.5. As there, Ftrl at rate 0 must change
 * nothing: the caller, which knows the rate, then does not call. */
int cuda_kernels_rule(struct CUstream_st *stream,
                      const struct cuda_kernels_update *update);

/* x[count] = value: the initial value of a state. */
int cuda_kernels_fill(struct CUstream_st *stream, float *x, size_t count,
                      float value);

/* x[count] *= SCALE * FACTOR, which are multiplied first. The CPU's bits. */
int cuda_kernels_scale(struct CUstream_st *stream, float *x, size_t count,
                       float scale, const float *factor);

/* Norm and finiteness: cuda_norm.cu. */

/* pieces[ceil(count / RULE_PIECE)] = the sums of squares of SCALE * FACTOR *
 * x[count] over pieces of RULE_PIECE (rule.h) floats. The CPU's bits
 * (rule_square_sums). */
size_t cuda_kernels_square_pieces(size_t count);
int cuda_kernels_square_sums(struct CUstream_st *stream, const float *x,
                             size_t count, float scale, const float *factor,
                             double *pieces);

/* As OP_REDUCE_SUM and OP_CLIP: the CPU's bits. The result
 * of `clip` serves as FACTOR of later calls. */
int cuda_kernels_reduce_sum(struct CUstream_st *stream, const double *pieces,
                            size_t count, double *sum);
int cuda_kernels_clip(struct CUstream_st *stream, const double *squares,
                      size_t count, size_t step, double limit, float *factor);

/* *FOUND becomes 1 if x[count] contains an infinity or a NaN, else it is
 * unchanged: the caller sets it to 0 before the first of several vectors. */
int cuda_kernels_find_overflow(struct CUstream_st *stream, const float *x,
                               size_t count, uint32_t *found);

/* 16-bit floats and pixels: cuda_half.cu. */

/* The format of 16 bits: bf16.h, fp16.h. */
enum cuda_kernels_half { CUDA_KERNELS_BF16, CUDA_KERNELS_FP16 };

/* Converts each float to its nearest half (ties to even): the bits of bf16.h
 * and fp16.h. */
int cuda_kernels_to_half(struct CUstream_st *stream,
                         enum cuda_kernels_half half, const float *floats,
                         uint16_t *halves, size_t count);

/* floats[count] = bytes[count] / 255: the CPU's bits. */
int cuda_kernels_pixels(struct CUstream_st *stream, const uint8_t *bytes,
                        float *floats, size_t count);

#ifdef __cplusplus
}
#endif

#endif
