/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers that come back: a few of each size are kept for the next update, the
 * rest are freed, but for those in memory that is shown. Buffers come back from
 * any thread. */
#ifndef CAPSTAN_BUFFER_POOL_H
#define CAPSTAN_BUFFER_POOL_H

#include "proto/net/shm/buffer.h"

#include <stdbool.h>

struct buffer_pool;

/* NULL: no memory. */
struct buffer_pool *buffer_pool_open(void);

/* Frees what is here; buffers still held elsewhere end the pool when the last
 * of them comes back. */
void buffer_pool_close(struct buffer_pool **buffer_pool);

/* A buffer of BYTES, held once; NULL when there is no memory. */
struct buffer *buffer_pool_take(struct buffer_pool *buffer_pool, size_t bytes);

/* BYTES more for buffer_pool_take_shared, in memory that other processes of
 * this host can be shown (shm_segment.h); called once. False: there is none,
 * and nothing can be shown. */
bool buffer_pool_add_shared(struct buffer_pool *buffer_pool, size_t bytes);

/* As buffer_pool_take, in that memory; NULL also when all of it is held. */
struct buffer *buffer_pool_take_shared(struct buffer_pool *buffer_pool,
                                       size_t bytes);

/* Bytes of all buffers now held by somebody. */
size_t buffer_pool_used_bytes(struct buffer_pool *buffer_pool);

#endif
