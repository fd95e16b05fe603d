/* SPDX-License-Identifier: Apache-2.0 */
/* What capstan-cuda.so calls of cuBLAS, as its manual defines it: matrices are
 * column-major, op(A) is [m, k], op(B) [k, n], and what BETA 0 multiplies is
 * not read. A product joins the handle's stream, factors are read at once, and
 * without a workspace of the caller's, or as the handle's first of a type, it
 * takes memory of its own. Leading dimensions, the workspace and the thread's
 * device are what the manual asks for, or the call fails; with "refuse=product"
 * in CAPSTAN_EMULATED each product does. With "products=FILE" at its end each
 * handle adds a line to FILE when it is closed: how many products it was given
 * in float32 and in TF32. */
extern "C" {
#include "core/tensor/bf16.h"
#include "core/tensor/fp16.h"
}

#include "tests/gpu/cuda_streams.h"

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

/* [rows, columns] as float32; LEADING elements from one stored column to the
 * next. */
struct matrix {
    const void *elements;
    cudaDataType_t type;
    cublasOperation_t as;
    int leading;
    bool tf32; /* of a float32 the 10 bits behind the first are left */
};

static float tf32_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= ~UINT32_C(0x1fff);
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float element(const struct matrix *a, int row, int column) {
    bool straight = a->as == CUBLAS_OP_N;
    size_t at = straight ? (size_t)column * (size_t)a->leading + (size_t)row
                         : (size_t)row * (size_t)a->leading + (size_t)column;
    if (a->type == CUDA_R_32F) {
        float x = static_cast<const float *>(a->elements)[at];
        return a->tf32 ? tf32_of(x) : x;
    }
    uint16_t bits = static_cast<const uint16_t *>(a->elements)[at];
    return a->type == CUDA_R_16BF ? bf16_to_float(bits) : fp16_to_float(bits);
}

/* Row by row into memory of its own, where sums go along. */
static std::vector<float> rows_of(const struct matrix *a, int rows,
                                  int columns) {
    std::vector<float> all((size_t)rows * (size_t)columns);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            all[(size_t)i * (size_t)columns + (size_t)j] = element(a, i, j);
    return all;
}

enum { TF32 = 63 /* behind cudaDataType_t's numbers */, TYPES };

struct cublasContext {
    int device;
    cudaStream_t stream;
    void *workspace; /* the caller's */
    uint64_t products[TYPES];
};

enum { WORKSPACE_ALIGNMENT = 256 };

/* Of ROWS and COLUMNS once it is taken as it says. */
static bool is_sound(const struct matrix *a, int rows, int columns) {
    int stored = a->as == CUBLAS_OP_N ? rows : columns;
    return rows >= 0 && columns >= 0 && a->leading >= (stored > 1 ? stored : 1);
}

static bool refuses(void) {
    const char *text = getenv("CAPSTAN_EMULATED");
    return text && strstr(text, "refuse=product");
}

static void tell_products(const struct cublasContext *handle) {
    const char *text = getenv("CAPSTAN_EMULATED");
    const char *key = "products=", *found = text ? strstr(text, key) : nullptr;
    FILE *file = found ? fopen(found + strlen(key), "a") : nullptr;
    if (!file)
        return;
    fprintf(file, "%llu %llu\n",
            (unsigned long long)handle->products[CUDA_R_32F],
            (unsigned long long)handle->products[TF32]);
    fclose(file);
}

static void multiply(const struct matrix *a, const struct matrix *b, int m,
                     int n, int k, float alpha, float beta, float *c, int ldc) {
    std::vector<float> left = rows_of(a, m, k), right = rows_of(b, k, n);
    std::vector<float> sums((size_t)n);
    for (int i = 0; i < m; i++) {
        sums.assign((size_t)n, 0);
        for (int p = 0; p < k; p++) {
            float factor = left[(size_t)i * (size_t)k + (size_t)p];
            const float *row = &right[(size_t)p * (size_t)n];
            for (int j = 0; j < n; j++)
                sums[(size_t)j] += factor * row[j];
        }
        for (int j = 0; j < n; j++) {
            float *to = c + (size_t)j * (size_t)ldc + i;
            float before = beta == 0 ? 0 : beta * *to;
            *to = alpha * sums[(size_t)j] + before;
        }
    }
}

static cublasStatus_t give(cublasHandle_t handle, struct matrix a,
                           struct matrix b, int m, int n, int k, float alpha,
                           float beta, float *c, int ldc) {
    struct matrix result = {c, CUDA_R_32F, CUBLAS_OP_N, ldc, false};
    int type = a.tf32 ? (int)TF32 : (int)a.type;
    void *own = nullptr;
    if (handle->device != cuda_streams_current_device())
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!is_sound(&a, m, k) || !is_sound(&b, k, n) || !is_sound(&result, m, n))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (refuses())
        return CUBLAS_STATUS_EXECUTION_FAILED;
    bool first = !handle->products[type];
    if ((first || !handle->workspace) &&
        (cudaMalloc(&own, 64) || cudaFree(own)))
        return CUBLAS_STATUS_ALLOC_FAILED;
    handle->products[type]++;
    return cuda_streams_submit(handle->stream,
                               [a, b, m, n, k, alpha, beta, c, ldc] {
                                   multiply(&a, &b, m, n, k, alpha, beta, c,
                                            ldc);
                                   return 0;
                               })
               ? CUBLAS_STATUS_EXECUTION_FAILED
               : CUBLAS_STATUS_SUCCESS;
}

extern "C" {

cublasStatus_t cublasCreate(cublasHandle_t *handle) {
    if (cuda_streams_check_uncaptured())
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle =
        new cublasContext{cuda_streams_current_device(), nullptr, nullptr, {}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
    tell_products(handle);
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

/* The workspace is cuBLAS's own again. */
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    handle->workspace = nullptr;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *workspace,
                                  size_t) {
    if ((uintptr_t)workspace % WORKSPACE_ALIGNMENT)
        return CUBLAS_STATUS_INVALID_VALUE;
    handle->workspace = workspace;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetAtomicsMode(cublasHandle_t, cublasAtomicsMode_t) {
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) {
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusString(cublasStatus_t) {
    return "an error of cuBLAS that the CPU plays";
}

cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t transa,
                           cublasOperation_t transb, int m, int n, int k,
                           const float *alpha, const float *a, int lda,
                           const float *b, int ldb, const float *beta, float *c,
                           int ldc) {
    struct matrix left = {a, CUDA_R_32F, transa, lda, false};
    struct matrix right = {b, CUDA_R_32F, transb, ldb, false};
    return give(handle, left, right, m, n, k, *alpha, *beta, c, ldc);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa,
                            cublasOperation_t transb, int m, int n, int k,
                            const void *alpha, const void *a,
                            cudaDataType type_a, int lda, const void *b,
                            cudaDataType type_b, int ldb, const void *beta,
                            void *c, cudaDataType type_c, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t) {
    bool tf32 = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    if (type_a != type_b || type_c != CUDA_R_32F ||
        (tf32 ? type_a != CUDA_R_32F : compute != CUBLAS_COMPUTE_32F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    struct matrix left = {a, type_a, transa, lda, tf32};
    struct matrix right = {b, type_b, transb, ldb, tf32};
    return give(handle, left, right, m, n, k, *(const float *)alpha,
                *(const float *)beta, (float *)c, ldc);
}
}
