/* SPDX-License-Identifier: Apache-2.0 */
/* What a GPU computes beside cuBLAS's products. Each call puts its kernels on
 * STREAM and returns at once: 0, or the cudaError_t of a launch that was
 * refused. Nothing here allocates, waits or copies, so that every call may be
 * captured in a CUDA graph; what changes from replay to replay is read from
 * the device's memory (`factor`, `round` below).
 *
 * Pointers are memory that the device reads and writes, aligned as their type;
 * two of a call do not overlap unless its contract says so. Matrices are
 * row-major. A size may be anything; 0 does nothing (a sum of nothing is 0).
 * Of each function the same call gives the same bits on every device of one
 * architecture. "The CPU's bits" are those of the function that is named, for
 * finite results, denormal ones among them. FACTOR may be NULL, which is 1. */
#ifndef CAPSTAN_CUDA_KERNELS_H
#define CAPSTAN_CUDA_KERNELS_H

#include "proto/config/job/job.h"
#include "proto/tensor/rule_element.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* cudaStream_t is a pointer to it */

/* --- a layer: cuda_layer.cu --- */

/* y[n, out] = activation(y + bias[out]). The CPU's bits (ops_cpu's `linear`
 * after its product) for relu and identity; tanh and sigmoid are within 4 units
 * in the last place of the exact value. */
int cuda_kernels_bias_activation(struct CUstream_st *stream, const float *bias,
                                 float *y, size_t n, uint32_t out,
                                 enum job_activation activation);

/* dy[count] *= derivative of the activation whose output is y[count]. The
 * CPU's bits for every activation. */
int cuda_kernels_activation_gradient(struct CUstream_st *stream,
                                     enum job_activation activation,
                                     const float *y, float *dy, size_t count);

/* db[out] = column sums of dy[n, out]; added to db when ADD. Sums are float32,
 * over pieces of rows that depend on n alone. ROOM:
 * cuda_kernels_column_sums_scratch bytes, which may be 0 and ROOM then NULL. */
size_t cuda_kernels_column_sums_scratch(size_t n, uint32_t out);
int cuda_kernels_column_sums(struct CUstream_st *stream, const float *dy,
                             float *db, size_t n, uint32_t out, bool add,
                             void *scratch);

/* --- the loss: cuda_loss.cu --- */

/* As `loss` of worker/ops/ops.h, in two parts, with *LOSS and *CORRECT on the
 * device. Of each sample the first leaves its loss in ROOM, which neither SCALE
 * nor FACTOR touches, and whether it has its largest logit at the label. DZ
 * (may be NULL, or Z itself) receives the gradient of SCALE * FACTOR * sum. The
 * second adds up what is in ROOM. Sums over classes and samples are in double.
 * ROOM: cuda_kernels_loss_scratch bytes, aligned to 8. The CPU's bits for DZ of
 * squared errors. labels[n] are below OUT; one that is not makes *LOSS NaN, its
 * row of DZ too, and reads nothing outside. */
size_t cuda_kernels_loss_scratch(size_t n);
int cuda_kernels_sample_losses(struct CUstream_st *stream, enum job_loss kind,
                               const float *z, const uint32_t *labels,
                               float *dz, size_t n, uint32_t out, float scale,
                               const float *factor, void *scratch);
int cuda_kernels_sum_losses(struct CUstream_st *stream, const void *scratch,
                            size_t n, double *loss, uint32_t *correct);

/* --- the update: cuda_rule.cu --- */

/* One update in place, with the state on the device. */
struct cuda_kernels_update {
    enum rule_form form;             /* rule_form_of */
    struct rule_constants constants; /* rule_form_constants: they travel with
                                        the launch */
    const float *factor;             /* on the device, joins constants.scale */
    const uint32_t *skip; /* on the device: where not 0, all stays as it is.
                             NULL: 0 */
    size_t elements;
    const float *gradient; /* the sum */
    float *weights;
    float *state[RULE_MAX_SLOTS]; /* rule_slots of them, in their order */
};

/* Applies UPDATE: the CPU's bits (rule_apply with one float32 gradient) but for
 * Ftrl with another power than -0.5. As there, Ftrl at rate 0 changes nothing:
 * who knows the rate does not call. */
int cuda_kernels_rule(struct CUstream_st *stream,
                      const struct cuda_kernels_update *update);

/* x[count] = value: the start of a state. */
int cuda_kernels_fill(struct CUstream_st *stream, float *x, size_t count,
                      float value);

/* x[count] *= SCALE * FACTOR, which are multiplied first. The CPU's bits. */
int cuda_kernels_scale(struct CUstream_st *stream, float *x, size_t count,
                       float scale, const float *factor);

/* --- norm and finiteness: cuda_norm.cu --- */

/* pieces[ceil(count / RULE_PIECE)] = the sums of squares of SCALE * FACTOR *
 * x[count] over pieces of RULE_PIECE (rule.h) floats. The CPU's bits
 * (rule_square_sums). */
size_t cuda_kernels_square_pieces(size_t count);
int cuda_kernels_square_sums(struct CUstream_st *stream, const float *x,
                             size_t count, float scale, const float *factor,
                             double *pieces);

/* As `add_up` and `clip` of worker/ops/ops.h: the CPU's bits. What `clip` finds
 * serves as FACTOR of what follows. */
int cuda_kernels_reduce_sum(struct CUstream_st *stream, const double *pieces,
                            size_t count, double *sum);
int cuda_kernels_clip(struct CUstream_st *stream, const double *squares,
                      size_t count, size_t step, double limit, float *factor);

/* *FOUND becomes 1 where x[count] holds an infinity or a NaN, else it stays as
 * it is: the caller sets it to 0 before the first of several vectors. */
int cuda_kernels_find_overflow(struct CUstream_st *stream, const float *x,
                               size_t count, uint32_t *found);

/* --- halves: cuda_half.cu --- */

/* What 16 bits hold: bf16.h, fp16.h. */
enum cuda_kernels_half { CUDA_KERNELS_BF16, CUDA_KERNELS_FP16 };

/* Each float to its nearest half (of two equally near ones the even), back
 * (exact), or in place to what its nearest half stands for. The bits of bf16.h
 * and fp16.h. */
int cuda_kernels_to_half(struct CUstream_st *stream,
                         enum cuda_kernels_half half, const float *floats,
                         uint16_t *halves, size_t count);
int cuda_kernels_from_half(struct CUstream_st *stream,
                           enum cuda_kernels_half half, const uint16_t *halves,
                           float *floats, size_t count);
int cuda_kernels_round_to_half(struct CUstream_st *stream,
                               enum cuda_kernels_half half, float *floats,
                               size_t count);

/* --- random numbers: cuda_random.cu --- */

/* values[count] = philox_uniform(key, number, first, bound): the CPU's bits.
 * NUMBER is what philox.h calls the stream. */
int cuda_kernels_uniform(struct CUstream_st *stream, uint64_t key,
                         uint64_t number, uint64_t first, float bound,
                         float *values, size_t count);

/* Which elements a dropout leaves out: a pure function of key, number and
 * element, so that the backward pass makes the mask again. */
struct cuda_kernels_mask {
    double rate;           /* share left out, 0 <= rate < 1 */
    uint64_t key, number;  /* a layer and a use of it have their own */
    const uint64_t *round; /* on the device, added to `number`; NULL: 0 */
    uint64_t first;        /* the element that x[0] is */
};

/* y[count] = x[count] / (1 - rate) where the element is kept, else x * 0 (a NaN
 * shows). Y may be X. Of the gradient it is the same function. The CPU's bits
 * (dropout.h). */
int cuda_kernels_dropout(struct CUstream_st *stream,
                         const struct cuda_kernels_mask *dropout,
                         const float *x, float *y, size_t count);

#ifdef __cplusplus
}
#endif

#endif
