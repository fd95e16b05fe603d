/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels with a fault each, which the machine they run on has to show, and
 * what is right about them. All use one block of 256 threads. */
#ifndef CAPSTAN_CUDA_FAULTS_H
#define CAPSTAN_CUDA_FAULTS_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CUDA_FAULTS_THREADS = 256 };

/* y[256] = x[256] reversed by way of shared memory; without BARRIER nobody
 * waits until all have written it. */
int cuda_faults_reverse(const float *x, float *y, bool barrier);

/* y[256] = each thread's index plus its neighbour's in the warp (31 beside 0,
 * 1 beside 2), which goes through y itself; without EXCHANGE nobody waits for
 * the neighbour. */
int cuda_faults_neighbours(float *y, bool exchange);

/* Every thread but WITHOUT waits for the block. */
int cuda_faults_wait_alone(unsigned without);

/* x[at] = 1, by one thread. */
int cuda_faults_write(float *x, ptrdiff_t at);

/* y[0] = what shared memory holds before it is written. */
int cuda_faults_unset(float *y);

#ifdef __cplusplus
}
#endif

#endif
