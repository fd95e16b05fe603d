/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that processes of one host share: a memfd sealed against any change of
 * size, so that one side cannot hurt another that has mapped it. It has no name
 * that could be left behind. Counting is thread-safe. */
#ifndef CAPSTAN_SHM_SEGMENT_H
#define CAPSTAN_SHM_SEGMENT_H

#include <stddef.h>

struct shm_segment;

enum shm_segment_access { SHM_SEGMENT_OWNER_WRITES, SHM_SEGMENT_BOTH_WRITE };

/* BYTES of zeros, mapped, with one reference. With SHM_SEGMENT_OWNER_WRITES no
 * other process can map it writable. NULL: not available, with errno. */
struct shm_segment *shm_segment_open(size_t bytes,
                                     enum shm_segment_access access);

/* Maps the segment that another process has opened with the same ACCESS and
 * sent as DESCRIPTOR (taken either way), with one reference. NULL: it does not
 * have BYTES or is not sealed (errno is EPERM), or cannot be mapped. */
struct shm_segment *shm_segment_map(int descriptor, size_t bytes,
                                    enum shm_segment_access access);

/* Adds a reference; returns SEGMENT. */
struct shm_segment *shm_segment_hold(struct shm_segment *segment);

/* Drops a reference; clears *SEGMENT (may be NULL). The last one unmaps it.
 */
void shm_segment_release(struct shm_segment **segment);

/* Its start, at a page boundary; view. */
void *shm_segment_base(struct shm_segment *segment);

/* Its size. */
size_t shm_segment_bytes(const struct shm_segment *segment);

/* The descriptor, for another process to map; -1 if the segment was mapped from
 * one. View. */
int shm_segment_descriptor(const struct shm_segment *segment);

#endif
