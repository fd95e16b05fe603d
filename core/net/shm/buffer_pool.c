/* SPDX-License-Identifier: Apache-2.0 */
#include "core/net/shm/buffer_pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

/* Free buffers are kept for the next copy, as fresh memory costs a page fault
 * for each page. Keeping more than a few would waste memory. */
enum { MAX_FREE = 32, ALIGNMENT = 64 };

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
