/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLAS, loaded when a GPU is opened: a host without a GPU neither waits for
 * it nor maps its hundred megabytes. */
#ifndef CAPSTAN_OPS_CUDA_BLAS_H
#define CAPSTAN_OPS_CUDA_BLAS_H

#include "core/base/status.h"

#include <cublas_v2.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ops_cuda_blas {
    cublasHandle_t handle;
    void *workspace; /* device memory */
    __typeof__(cublasCreate) *create;
    __typeof__(cublasDestroy) *destroy;
    __typeof__(cublasSetStream) *set_stream;
    __typeof__(cublasSetWorkspace) *set_workspace;
    __typeof__(cublasSetAtomicsMode) *set_atomics_mode;
    __typeof__(cublasSetMathMode) *set_math_mode;
    __typeof__(cublasGetStatusString) *status_string;
    __typeof__(cublasSgemm) *sgemm;
    __typeof__(cublasGemmEx) *gemm_ex;
};

/* Loads the library for the rest of the process's life. STATUS_CONFIG: it is
 * missing or lacks a function; WHY names it. */
enum status ops_cuda_blas_load(struct ops_cuda_blas *blas,
                               struct failure *why) MUST_CHECK;

/* Opens it for the current device and STREAM with deterministic settings, and
 * runs a first product of each type so that its allocations are done.
 * STATUS_RETRY if the device has no memory or does not answer. */
enum status ops_cuda_blas_open(struct ops_cuda_blas *blas, cudaStream_t stream,
                               struct failure *why) MUST_CHECK;

/* BLAS may be all zero. */
void ops_cuda_blas_close(struct ops_cuda_blas *blas);

/* c[m, n] = left right, or c + left right if ADD, column-major: LEFT is [m, k]
 * and RIGHT [k, n] after the operations `left_as` and `right_as`; the fields
 * give each one's leading dimension. TYPE is the element type: CUDA_R_32F, or a
 * 16-bit type, whose products are exact in float32; sums are float32. */
struct ops_cuda_product {
    cublasOperation_t left_as, right_as;
    uint32_t m, n, k;
    cudaDataType_t type;
    const void *left, *right;
    uint32_t left_row, right_row;
    float *c;
    bool add;
    bool tf32; /* float32 operands are rounded to TF32, if the GPU has it */
};
cublasStatus_t ops_cuda_blas_multiply(struct ops_cuda_blas *blas,
                                      const struct ops_cuda_product *product);

#endif
