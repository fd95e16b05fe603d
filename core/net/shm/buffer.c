/* SPDX-License-Identifier: Apache-2.0 */
#include "core/net/shm/buffer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
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

/* Free buffers are kept for the next copy, as fresh memory costs a page fault
 * for each page. Keeping more than a few would waste memory. */
enum { MAX_FREE = 32 };

/* Free buffers, the newest last. */
struct free_list {
    struct buffer **buffers;
    size_t count, capacity;
};

struct buffer_pool {
    pthread_mutex_t mutex;
    struct free_list heap, shared;   /* at most MAX_FREE; every one carved */
    struct shm_segment *shm_segment; /* memory of the shared ones, or NULL */
    size_t carved, num_shared; /* bytes of it in use; buffers carved from it */
    size_t used_bytes, num_used;
    bool closed;
};

static bool buffer_pool_grow(struct free_list *free_list, size_t capacity) {
    if (capacity <= free_list->capacity)
        return true;
    capacity =
        capacity < 2 * free_list->capacity ? 2 * free_list->capacity : capacity;
    struct buffer **buffers =
        realloc(free_list->buffers, capacity * sizeof *buffers);
    if (!buffers)
        return false;
    free_list->buffers = buffers;
    free_list->capacity = capacity;
    return true;
}

struct buffer_pool *buffer_pool_open(void) {
    struct buffer_pool *pool = calloc(1, sizeof *pool);
    if (pool && buffer_pool_grow(&pool->heap, MAX_FREE)) {
        pthread_mutex_init(&pool->mutex, NULL);
        return pool;
    }
    free(pool);
    return NULL;
}

bool buffer_pool_add_shared(struct buffer_pool *buffer_pool, size_t bytes) {
    buffer_pool->shm_segment =
        shm_segment_open(bytes, SHM_SEGMENT_OWNER_WRITES);
    return buffer_pool->shm_segment;
}

static void buffer_pool_empty(struct free_list *free_list) {
    while (free_list->count)
        buffer_destroy(free_list->buffers[--free_list->count]);
    free(free_list->buffers);
}

static void buffer_pool_destroy(struct buffer_pool *pool) {
    buffer_pool_empty(&pool->heap);
    buffer_pool_empty(&pool->shared);
    shm_segment_release(&pool->shm_segment);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

/* Replies in flight may outlive their shard, so the last buffer to come back
 * destroys a closed pool. */
void buffer_pool_close(struct buffer_pool **where) {
    struct buffer_pool *pool = *where;
    *where = NULL;
    if (!pool)
        return;
    pthread_mutex_lock(&pool->mutex);
    pool->closed = true;
    bool last = pool->num_used == 0;
    pthread_mutex_unlock(&pool->mutex);
    if (last)
        buffer_pool_destroy(pool);
}

static void recycle(void *owner, struct buffer *buffer) {
    struct buffer_pool *pool = owner;
    pthread_mutex_lock(&pool->mutex);
    pool->num_used--;
    pool->used_bytes -= buffer_bytes(buffer);
    bool shared = buffer_segment(buffer);
    struct free_list *free_list = shared ? &pool->shared : &pool->heap;
    bool keep = !pool->closed && (shared || free_list->count < MAX_FREE);
    if (keep)
        free_list->buffers[free_list->count++] = buffer;
    bool last = pool->closed && pool->num_used == 0;
    pthread_mutex_unlock(&pool->mutex);
    if (!keep)
        buffer_destroy(buffer);
    if (last)
        buffer_pool_destroy(pool);
}

/* Prefers buffers that came back last: they are the warmest in the cache. */
static struct buffer *pop_free(struct free_list *free_list, size_t bytes) {
    for (size_t i = free_list->count; i-- > 0;) {
        struct buffer *buffer = free_list->buffers[i];
        if (buffer_bytes(buffer) != bytes)
            continue;
        free_list->buffers[i] = free_list->buffers[--free_list->count];
        buffer_reuse(buffer);
        return buffer;
    }
    return NULL;
}

/* A new buffer from the shared memory. Its place in the free list is reserved,
 * so that recycle() cannot fail. */
static struct buffer *carve(struct buffer_pool *pool, size_t bytes) {
    size_t left = pool->shm_segment
                      ? shm_segment_bytes(pool->shm_segment) - pool->carved
                      : 0;
    size_t size = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (size < bytes || size > left ||
        !buffer_pool_grow(&pool->shared, pool->num_shared + 1))
        return NULL;
    struct buffer *buffer =
        buffer_open_in(pool->shm_segment, pool->carved, bytes, recycle, pool);
    if (buffer) {
        pool->carved += size;
        pool->num_shared++;
    }
    return buffer;
}

static struct buffer *account(struct buffer_pool *pool, struct buffer *buffer) {
    if (buffer) {
        pool->num_used++;
        pool->used_bytes += buffer_bytes(buffer);
    }
    pthread_mutex_unlock(&pool->mutex);
    return buffer;
}

struct buffer *buffer_pool_take(struct buffer_pool *pool, size_t bytes) {
    pthread_mutex_lock(&pool->mutex);
    struct buffer *buffer = pop_free(&pool->heap, bytes);
    return account(pool, buffer ? buffer : buffer_open(bytes, recycle, pool));
}

struct buffer *buffer_pool_take_shared(struct buffer_pool *pool, size_t bytes) {
    pthread_mutex_lock(&pool->mutex);
    struct buffer *buffer = pop_free(&pool->shared, bytes);
    return account(pool, buffer ? buffer : carve(pool, bytes));
}

size_t buffer_pool_used_bytes(struct buffer_pool *pool) {
    pthread_mutex_lock(&pool->mutex);
    size_t bytes = pool->used_bytes;
    pthread_mutex_unlock(&pool->mutex);
    return bytes;
}
