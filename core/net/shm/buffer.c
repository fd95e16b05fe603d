/* SPDX-License-Identifier: Apache-2.0 */
#include "core/net/shm/buffer.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

enum { ALIGNMENT = 64 };

struct buffer {
    atomic_uint references;
    size_t bytes;
    void *data;
    struct shm_segment *shm_segment; /* NULL: data follows */
    buffer_recycle *recycle;
    void *owner;
};

_Static_assert(sizeof(struct buffer) <= ALIGNMENT, "data follows at 64 bytes");

/* Fills in BUFFER with one reference. The release store publishes the fields to
 * the thread that drops the last reference. */
static struct buffer *buffer_fill(struct buffer *buffer, void *data,
                                  size_t bytes, struct shm_segment *segment,
                                  buffer_recycle *recycle, void *owner) {
    buffer->bytes = bytes;
    buffer->data = data;
    buffer->shm_segment = segment;
    buffer->recycle = recycle;
    buffer->owner = owner;
    atomic_store_explicit(&buffer->references, 1, memory_order_release);
    return buffer;
}

struct buffer *buffer_open(size_t bytes, buffer_recycle *recycle, void *owner) {
    if (bytes > SIZE_MAX - 2 * ALIGNMENT)
        return NULL;
    size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    struct buffer *buffer = aligned_alloc(ALIGNMENT, ALIGNMENT + rounded);
    if (!buffer)
        return NULL;
    return buffer_fill(buffer, (char *)buffer + ALIGNMENT, bytes, NULL, recycle,
                       owner);
}

struct buffer *buffer_open_in(struct shm_segment *segment, size_t offset,
                              size_t bytes, buffer_recycle *recycle,
                              void *owner) {
    struct buffer *buffer = malloc(sizeof *buffer);
    if (!buffer)
        return NULL;
    return buffer_fill(buffer, (char *)shm_segment_base(segment) + offset,
                       bytes, shm_segment_hold(segment), recycle, owner);
}

struct buffer *buffer_open_foreign(buffer_recycle *recycle, void *owner) {
    struct buffer *buffer = malloc(sizeof *buffer);
    if (!buffer)
        return NULL;
    buffer_fill(buffer, NULL, 0, NULL, recycle, owner);
    atomic_store_explicit(&buffer->references, 0, memory_order_relaxed);
    return buffer;
}

void buffer_set_memory(struct buffer *buffer, void *data, size_t bytes) {
    buffer->data = data;
    buffer->bytes = bytes;
    buffer_reuse(buffer);
}

struct buffer *buffer_open_shared(size_t bytes) {
    struct shm_segment *segment =
        bytes ? shm_segment_open(bytes, SHM_SEGMENT_OWNER_WRITES) : NULL;
    struct buffer *buffer =
        segment ? buffer_open_in(segment, 0, bytes, NULL, NULL) : NULL;
    shm_segment_release(&segment);
    return buffer ? buffer : buffer_open(bytes, NULL, NULL);
}

/* Release: the thread that drops the new reference sees the buffer complete. */
struct buffer *buffer_hold(struct buffer *buffer) {
    atomic_fetch_add_explicit(&buffer->references, 1, memory_order_release);
    return buffer;
}

/* Each release orders the caller's reads and writes before it; the last one
 * acquires them all before the memory is reused. */
void buffer_release(struct buffer **where) {
    struct buffer *buffer = *where;
    *where = NULL;
    if (!buffer || atomic_fetch_sub_explicit(&buffer->references, 1,
                                             memory_order_acq_rel) > 1)
        return;
    if (buffer->recycle)
        buffer->recycle(buffer->owner, buffer);
    else
        buffer_destroy(buffer);
}

void buffer_destroy(struct buffer *buffer) {
    shm_segment_release(&buffer->shm_segment);
    free(buffer);
}

void buffer_reuse(struct buffer *buffer) {
    atomic_store_explicit(&buffer->references, 1, memory_order_release);
}

/* A true result stays true, as only the owner of a reference can add one. A
 * false one may be outdated at once, which costs a copy and no more. */
bool buffer_is_unique(const struct buffer *buffer) {
    return atomic_load_explicit(&buffer->references, memory_order_acquire) == 1;
}

void *buffer_data(struct buffer *buffer) {
    return buffer->data;
}

struct shm_segment *buffer_segment(const struct buffer *buffer) {
    return buffer->shm_segment;
}

size_t buffer_bytes(const struct buffer *buffer) {
    return buffer->bytes;
}
