/* SPDX-License-Identifier: Apache-2.0 */
/* What memory CUDA knows: a device's, and the host's that is pinned. All else
 * is ordinary memory of the host. For tests/gpu/cuda_runtime_on_cpu.cc and who
 * plays a library above it. From any thread. */
#ifndef CAPSTAN_CUDA_RANGES_H
#define CAPSTAN_CUDA_RANGES_H

#include <stddef.h>

/* Kinds other than a device's number. */
enum { CUDA_RANGES_PINNED = -1, CUDA_RANGES_ORDINARY = -2 };

/* BYTES from FIRST on are of KIND; false: some of their pages are pinned
 * already. */
bool cuda_ranges_add(const void *first, size_t bytes, int kind);

/* They are not any more; false: FIRST is not the first byte of any. PINNED:
 * whose pages were, else a device's. */
bool cuda_ranges_drop(const void *first, bool pinned);

/* Of which kind all BYTES from FIRST on are; false: they are not of one. */
bool cuda_ranges_kind(const void *first, size_t bytes, int *kind);

#endif
