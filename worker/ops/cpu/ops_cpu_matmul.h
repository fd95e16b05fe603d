/* SPDX-License-Identifier: Apache-2.0 */
/* Products with a transposed matrix by oneDNN's matmul primitive, prepared once
 * per shape. With AVX-512 it is faster than oneDNN's sgemm for
 * OPS_CPU_MATMUL_ROWS rows or more, and slower below. */
#ifndef CAPSTAN_OPS_CPU_MATMUL_H
#define CAPSTAN_OPS_CPU_MATMUL_H

#include <stdbool.h>
#include <stdint.h>

enum { OPS_CPU_MATMUL_ROWS = 32 };

struct ops_cpu_matmul; /* the prepared shapes */

/* y[n, out] = x[n, in] w[out, in]^T on the calling thread's number of OpenMP
 * threads, which must not change for *PLANS (NULL at first). False if oneDNN
 * does not support the shape or there is no memory: y is then undefined. */
bool ops_cpu_matmul(struct ops_cpu_matmul **plans, const float *x,
                    const float *w, float *y, uint32_t n, uint32_t in,
                    uint32_t out);

/* Prepares the shape, if *PLANS does not have it, as ops_cpu_matmul does. */
bool ops_cpu_matmul_prepare(struct ops_cpu_matmul **plans, uint32_t n,
                            uint32_t in, uint32_t out);

/* Frees *PLANS (may be NULL) and clears it. */
void ops_cpu_matmul_close(struct ops_cpu_matmul **plans);

#endif
