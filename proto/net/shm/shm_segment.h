/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that processes of one host share: a memfd sealed against any change
 * of size, so that nobody who has mapped it can be hurt by its other side, and
 * that has no name to be left behind. Counting is thread-safe. */
#ifndef CAPSTAN_SHM_SEGMENT_H
#define CAPSTAN_SHM_SEGMENT_H

#include <stddef.h>

struct shm_segment;

enum shm_segment_access { SHM_SEGMENT_OWNER_WRITES, SHM_SEGMENT_BOTH_WRITE };

/* BYTES of zeros, mapped, held once. With MAKER_WRITES nobody else can ever
 * map it to write. NULL: not to be had, errno says why. */
struct shm_segment *shm_segment_open(size_t bytes,
                                     enum shm_segment_access access);

/* Maps what another process has opened by the same PEN and sent as DESCRIPTOR
 * (taken either way), held once. NULL when it has not BYTES or is not sealed,
 * errno is then EPERM, or cannot be mapped. */
struct shm_segment *shm_segment_map(int descriptor, size_t bytes,
                                    enum shm_segment_access access);

/* One more holder; returns MEMORY. */
struct shm_segment *shm_segment_hold(struct shm_segment *shm_segment);

/* One holder less; clears *MEMORY (may be NULL). The last unmaps it. */
void shm_segment_release(struct shm_segment **shm_segment);

/* Where it begins, on a page boundary; view. */
void *shm_segment_base(struct shm_segment *shm_segment);

/* Its size. */
size_t shm_segment_bytes(const struct shm_segment *shm_segment);

/* Of memory opened here: what another process takes; view. */
int shm_segment_descriptor(const struct shm_segment *shm_segment);

#endif
