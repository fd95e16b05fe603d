/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers that come back: a few of each size are kept for the next update, the
 * rest are freed, but for those in memory that is shown. Buffers come back from
 * any thread. */
#ifndef CAPSTAN_POOL_H
#define CAPSTAN_POOL_H

#include "proto/net/shm/buffer.h"

#include <stdbool.h>

struct pool;

/* NULL: no memory. */
struct pool *pool_open(void);

/* Frees what is here; buffers still held elsewhere end the pool when the last
 * of them comes back. */
void pool_close(struct pool **pool);

/* A buffer of BYTES, held once; NULL when there is no memory. */
struct buffer *pool_take(struct pool *pool, size_t bytes);

/* BYTES more for pool_take_shown, in memory that other processes of this host
 * can be shown (memory.h); called once. False: there is none, and nothing can
 * be shown. */
bool pool_show(struct pool *pool, size_t bytes);

/* As pool_take, in that memory; NULL also when all of it is held. */
struct buffer *pool_take_shown(struct pool *pool, size_t bytes);

/* Bytes of all buffers now held by somebody. */
size_t pool_taken_bytes(struct pool *pool);

#endif
