/* SPDX-License-Identifier: Apache-2.0 */
/* Where tests run kernels: memory for them, and the order in which their
 * threads run. tests/gpu/cuda_on_cpu.cc plays a GPU on the CPU. */
#ifndef CAPSTAN_CUDA_BACKEND_H
#define CAPSTAN_CUDA_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* BYTES that kernels and the test both may use, of unknown content; what is
 * read or written beyond their end is found at once where BYTES is a multiple
 * of 8, what is written before their start when they are released. Never
 * NULL. */
void *cuda_backend_allocate(size_t bytes);

/* Frees MEMORY (may be NULL); the test fails if the bytes before it are not
 * what they were. */
void cuda_backend_release(void *memory);

/* From the next launch on, blocks and threads run in an order made of SEED (0:
 * one after the other), in MOST_BLOCKS blocks at most (0: as many as the launch
 * asks for). */
void cuda_backend_set_order(uint64_t seed, unsigned max_blocks);

/* Until all launches are done. Why the last one failed, or NULL. */
const char *cuda_backend_wait(void);

#ifdef __cplusplus
}
#endif

#endif
