/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of buffers. It keeps some free buffers for reuse and frees the rest,
 * except for those in shared memory. Any thread may release a buffer. */
#ifndef CAPSTAN_BUFFER_POOL_H
#define CAPSTAN_BUFFER_POOL_H

#include "core/net/shm/buffer.h"

#include <stdbool.h>

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
