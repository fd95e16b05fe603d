/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/cuda/ops_cuda_blas.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

/* cuBLAS's recommendation for Hopper; with a workspace of its own per stream
 * its results do not depend on other streams. */
enum { WORKSPACE = 32 << 20 };

#define TEXT(number) #number
#define LIBRARY(major) "libcublas.so." TEXT(major)
/* cublas_v2.h maps a function's name to its second version. */
#define NAME(function) TEXT(function)

enum status ops_cuda_blas_load(struct ops_cuda_blas *blas,
                               struct failure *why) {
    static const char library[] = LIBRARY(CUBLAS_VER_MAJOR);
    void *object = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!object)
        return status_fail(why, FAILURE_PLUGIN_MISSING,
                           "cuBLAS cannot be opened: %s", dlerror());
    const struct {
        void **function;
        const char *name;
    } all[] = {
        {(void **)&blas->create, NAME(cublasCreate)},
        {(void **)&blas->destroy, NAME(cublasDestroy)},
        {(void **)&blas->set_stream, NAME(cublasSetStream)},
        {(void **)&blas->set_workspace, NAME(cublasSetWorkspace)},
        {(void **)&blas->set_atomics_mode, NAME(cublasSetAtomicsMode)},
        {(void **)&blas->set_math_mode, NAME(cublasSetMathMode)},
        {(void **)&blas->status_string, NAME(cublasGetStatusString)},
        {(void **)&blas->sgemm, NAME(cublasSgemm)},
        {(void **)&blas->gemm_ex, NAME(cublasGemmEx)},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        *all[i].function = dlsym(object, all[i].name);
        if (!*all[i].function)
            return status_fail(why, FAILURE_PLUGIN_MISSING, "%s has no %s",
                               library, all[i].name);
    }
    return STATUS_OK;
}

/* Computes 0 = 0 * 0 in TYPE, which makes cuBLAS allocate now, and not in the
 * first such product, which may be part of a graph. An older GPU has no
 * products of bf16. */
static cublasStatus_t warm_up(struct ops_cuda_blas *blas, cudaDataType_t type,
                              bool tf32) {
    float *workspace = blas->workspace;
    struct ops_cuda_product product = {.left_as = CUBLAS_OP_N,
                                       .right_as = CUBLAS_OP_N,
                                       .m = 1,
                                       .n = 1,
                                       .k = 1,
                                       .type = type,
                                       .tf32 = tf32,
                                       .left = workspace,
                                       .right = workspace,
                                       .left_row = 1,
                                       .right_row = 1,
                                       .c = workspace + 1};
    cublasStatus_t status = ops_cuda_blas_multiply(blas, &product);
    bool unsupported = status == CUBLAS_STATUS_NOT_SUPPORTED ||
                       status == CUBLAS_STATUS_ARCH_MISMATCH;
    return unsupported && type != CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : status;
}

/* Deterministic products: no atomics, no reduced-precision sums, and no TF32
 * unless a product asks for it. */
enum status ops_cuda_blas_open(struct ops_cuda_blas *blas, cudaStream_t stream,
                               struct failure *why) {
    static const cudaDataType_t types[] = {CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F};
    cudaError_t error = cudaMalloc(&blas->workspace, WORKSPACE);
    if (!error)
        error = cudaMemsetAsync(blas->workspace, 0, 2 * sizeof(float), stream);
    if (error)
        return status_fail(why, FAILURE_DEVICE_LOST,
                           "the workspace of cuBLAS: %s",
                           cudaGetErrorString(error));
    cublasStatus_t status = blas->create(&blas->handle);
    if (!status)
        status = blas->set_stream(blas->handle, stream);
    if (!status)
        status = blas->set_workspace(blas->handle, blas->workspace, WORKSPACE);
    if (!status)
        status =
            blas->set_atomics_mode(blas->handle, CUBLAS_ATOMICS_NOT_ALLOWED);
    if (!status)
        status = blas->set_math_mode(
            blas->handle, CUBLAS_DEFAULT_MATH |
                              CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    for (size_t i = 0; !status && i < sizeof types / sizeof *types; i++)
        status = warm_up(blas, types[i], false);
    if (!status)
        status = warm_up(blas, CUDA_R_32F, true);
    return status ? status_fail(why, FAILURE_DEVICE_LOST, "cuBLAS: %s",
                                blas->status_string(status))
                  : STATUS_OK;
}

void ops_cuda_blas_close(struct ops_cuda_blas *blas) {
    if (blas->handle)
        blas->destroy(blas->handle);
    cudaFree(blas->workspace);
    *blas = (struct ops_cuda_blas){0};
}

cublasStatus_t ops_cuda_blas_multiply(struct ops_cuda_blas *blas,
                                      const struct ops_cuda_product *p) {
    const float one = 1, kept = p->add ? 1 : 0;
    int m = (int)p->m, n = (int)p->n, k = (int)p->k;
    int left_row = (int)p->left_row, right_row = (int)p->right_row;
    if (p->type == CUDA_R_32F && !p->tf32)
        return blas->sgemm(blas->handle, p->left_as, p->right_as, m, n, k, &one,
                           p->left, left_row, p->right, right_row, &kept, p->c,
                           m);
    return blas->gemm_ex(
        blas->handle, p->left_as, p->right_as, m, n, k, &one, p->left, p->type,
        left_row, p->right, p->type, right_row, &kept, p->c, CUDA_R_32F, m,
        p->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
        CUBLAS_GEMM_DEFAULT);
}
