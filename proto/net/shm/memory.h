/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that processes of one host share: a memfd sealed against any change
 * of size, so that nobody who has mapped it can be hurt by its other side, and
 * that has no name to be left behind. Counting is thread-safe. */
#ifndef CAPSTAN_MEMORY_H
#define CAPSTAN_MEMORY_H

#include <stddef.h>

struct memory;

enum memory_pen { MEMORY_MAKER_WRITES, MEMORY_BOTH_WRITE };

/* BYTES of zeros, mapped, held once. With MAKER_WRITES nobody else can ever
 * map it to write. NULL: not to be had, errno says why. */
struct memory *memory_open(size_t bytes, enum memory_pen pen);

/* Maps what another process has opened by the same PEN and sent as DESCRIPTOR
 * (taken either way), held once. NULL when it has not BYTES or is not sealed,
 * errno is then EPERM, or cannot be mapped. */
struct memory *memory_take(int descriptor, size_t bytes, enum memory_pen pen);

/* One more holder; returns MEMORY. */
struct memory *memory_hold(struct memory *memory);

/* One holder less; clears *MEMORY (may be NULL). The last unmaps it. */
void memory_release(struct memory **memory);

/* Where it begins, on a page boundary; view. */
void *memory_base(struct memory *memory);

/* Its size. */
size_t memory_bytes(const struct memory *memory);

/* Of memory opened here: what another process takes; view. */
int memory_descriptor(const struct memory *memory);

#endif
