/* SPDX-License-Identifier: Apache-2.0 */
/* Counted memory: who reads it holds it, so that a message on its way, a
 * snapshot and an update can share one copy. Counting is thread-safe; what is
 * in it belongs to its only holder, or to nobody's pen. */
#ifndef CAPSTAN_BUFFER_H
#define CAPSTAN_BUFFER_H

#include "proto/net/shm/shm_segment.h"

#include <stdbool.h>
#include <stddef.h>

struct buffer;

/* Who gets a buffer back when its last holder lets go; called on the thread
 * of that holder. */
typedef void buffer_recycle(void *owner, struct buffer *buffer);

/* BYTES at 64-byte alignment, held once; NULL when there is no memory. With
 * RECYCLE the last release hands it to OWNER instead of freeing it. */
struct buffer *buffer_open(size_t bytes, buffer_recycle *recycle, void *owner);

/* As buffer_open, a part of MEMORY, which it holds, from OFFSET on, a multiple
 * of 64. NULL when there is no room for what is known of it. */
struct buffer *buffer_open_in(struct shm_segment *shm_segment, size_t offset,
                              size_t bytes, buffer_recycle *recycle,
                              void *owner);

/* As buffer_open, in memory of its own that other processes of this host can
 * be shown, if there is such. */
struct buffer *buffer_open_shared(size_t bytes);

/* One more holder; returns BUFFER. */
struct buffer *buffer_hold(struct buffer *buffer);

/* One holder less; clears *BUFFER (may be NULL). */
void buffer_release(struct buffer **buffer);

/* Really frees a buffer that nobody holds: for pools. */
void buffer_destroy(struct buffer *buffer);

/* A recycled buffer comes back to life with one holder. */
void buffer_reuse(struct buffer *buffer);

/* True when the caller is its only holder. */
bool buffer_is_unique(const struct buffer *buffer);

/* Its memory, 64-byte aligned; view. */
void *buffer_data(struct buffer *buffer);

/* The memory it is a part of, NULL: none; view. */
struct shm_segment *buffer_segment(const struct buffer *buffer);

/* Bytes asked for when it was opened. */
size_t buffer_bytes(const struct buffer *buffer);

#endif
