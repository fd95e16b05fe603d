/* SPDX-License-Identifier: Apache-2.0 */
/* Reference-counted memory, so that a message in flight, a snapshot and an
 * update can share one copy. Counting is thread-safe. The bytes may
 * be written while there is one reference. */
#ifndef CAPSTAN_BUFFER_H
#define CAPSTAN_BUFFER_H

#include "core/net/shm/shm_segment.h"

#include <stdbool.h>
#include <stddef.h>

struct buffer;

/* Takes BUFFER back for OWNER when its last reference is released; called on
 * the releasing thread. */
typedef void buffer_recycle(void *owner, struct buffer *buffer);

/* BYTES at 64-byte alignment with one reference; NULL: no memory. With RECYCLE
 * the last release calls it with OWNER instead of freeing the buffer. */
struct buffer *buffer_open(size_t bytes, buffer_recycle *recycle, void *owner);

/* Like buffer_open, over BYTES of SEGMENT (held) from OFFSET, a multiple
 * of 64. NULL: no memory for the buffer's own fields. */
struct buffer *buffer_open_in(struct shm_segment *segment, size_t offset,
                              size_t bytes, buffer_recycle *recycle,
                              void *owner);

/* Over the caller's memory, which buffer_set_memory names; without a reference
 * yet. RECYCLE is called at each last release. */
struct buffer *buffer_open_foreign(buffer_recycle *recycle, void *owner);

/* Gives BUFFER, of buffer_open_foreign and without references, its first one,
 * over BYTES at DATA (any alignment). */
void buffer_set_memory(struct buffer *buffer, void *data, size_t bytes);

/* Like buffer_open, in a segment of its own that other processes of this host
 * can map; in ordinary memory if that fails. */
struct buffer *buffer_open_shared(size_t bytes);

/* Adds a reference; returns BUFFER. */
struct buffer *buffer_hold(struct buffer *buffer);

/* Drops a reference; clears *BUFFER (may be NULL). */
void buffer_release(struct buffer **buffer);

/* Frees a buffer without references: for pools. */
void buffer_destroy(struct buffer *buffer);

/* Gives a recycled buffer its first reference again. */
void buffer_reuse(struct buffer *buffer);

/* True if the caller has its only reference. */
bool buffer_is_unique(const struct buffer *buffer);

/* Its memory, 64-byte aligned unless it is foreign; view. */
void *buffer_data(struct buffer *buffer);

/* The segment that it lies in, NULL: none; view. */
struct shm_segment *buffer_segment(const struct buffer *buffer);

/* Bytes requested when it was opened. */
size_t buffer_bytes(const struct buffer *buffer);

/* A pool of buffers. It keeps some free buffers for reuse and frees the rest,
 * except for those in shared memory. Any thread may release a buffer. */
struct buffer_pool;

/* NULL: no memory. */
struct buffer_pool *buffer_pool_open(void);

/* Frees the free buffers and clears *POOL. Buffers still held stay
 * valid; the last of them to come back frees the pool. */
void buffer_pool_close(struct buffer_pool **pool);

/* A buffer of BYTES with one reference; NULL: no memory. */
struct buffer *buffer_pool_take(struct buffer_pool *pool, size_t bytes);

/* Allocates BYTES of memory that other processes of this host can map
 * (shm_segment.h) for buffer_pool_take_shared. Called once. False: no such
 * memory. */
bool buffer_pool_add_shared(struct buffer_pool *pool, size_t bytes);

/* Like buffer_pool_take, from that memory; NULL also when all of it is in use.
 */
struct buffer *buffer_pool_take_shared(struct buffer_pool *pool, size_t bytes);

/* Bytes of all buffers now in use. */
size_t buffer_pool_used_bytes(struct buffer_pool *pool);

#endif
