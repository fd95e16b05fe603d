/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/dense/pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

/* Buffers that nobody holds stay for the next copy: fresh memory costs a page
 * fault a page. More than a few would be memory that a ps does not need. */
enum { KEPT = 32, ALIGNMENT = 64 };

/* Buffers that nobody holds, the newest last. */
struct shelf {
    struct buffer **buffers;
    size_t count, room;
};

struct pool {
    pthread_mutex_t mutex;
    struct shelf own, shown; /* KEPT at most; as many as were ever made */
    struct memory *memory;   /* of those shown, or NULL */
    size_t used, num_shown;  /* bytes of it; buffers made of it */
    size_t taken_bytes, taken;
    bool closed;
};

static bool make_room(struct shelf *shelf, size_t room) {
    if (room <= shelf->room)
        return true;
    room = room < 2 * shelf->room ? 2 * shelf->room : room;
    struct buffer **buffers = realloc(shelf->buffers, room * sizeof *buffers);
    if (!buffers)
        return false;
    shelf->buffers = buffers;
    shelf->room = room;
    return true;
}

struct pool *pool_open(void) {
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool && make_room(&pool->own, KEPT)) {
        pthread_mutex_init(&pool->mutex, NULL);
        return pool;
    }
    free(pool);
    return NULL;
}

bool pool_show(struct pool *pool, size_t bytes) {
    pool->memory = memory_open(bytes, MEMORY_MAKER_WRITES);
    return pool->memory;
}

static void empty(struct shelf *shelf) {
    while (shelf->count)
        buffer_destroy(shelf->buffers[--shelf->count]);
    free(shelf->buffers);
}

static void destroy(struct pool *pool) {
    empty(&pool->own);
    empty(&pool->shown);
    memory_release(&pool->memory);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

/* Replies on their way may outlive their shard: the last buffer to come back
 * takes the pool with it. */
void pool_close(struct pool **where) {
    struct pool *pool = *where;
    *where = NULL;
    if (!pool)
        return;
    pthread_mutex_lock(&pool->mutex);
    pool->closed = true;
    bool last = pool->taken == 0;
    pthread_mutex_unlock(&pool->mutex);
    if (last)
        destroy(pool);
}

static void come_back(void *owner, struct buffer *buffer) {
    struct pool *pool = owner;
    pthread_mutex_lock(&pool->mutex);
    pool->taken--;
    pool->taken_bytes -= buffer_bytes(buffer);
    bool shown = buffer_memory(buffer);
    struct shelf *shelf = shown ? &pool->shown : &pool->own;
    bool keep = !pool->closed && (shown || shelf->count < KEPT);
    if (keep)
        shelf->buffers[shelf->count++] = buffer;
    bool last = pool->closed && pool->taken == 0;
    pthread_mutex_unlock(&pool->mutex);
    if (!keep)
        buffer_destroy(buffer);
    if (last)
        destroy(pool);
}

/* The newest of this size: the warmest in the cache. */
static struct buffer *from_shelf(struct shelf *shelf, size_t bytes) {
    for (size_t i = shelf->count; i-- > 0;) {
        struct buffer *buffer = shelf->buffers[i];
        if (buffer_bytes(buffer) != bytes)
            continue;
        shelf->buffers[i] = shelf->buffers[--shelf->count];
        buffer_revive(buffer);
        return buffer;
    }
    return NULL;
}

/* A new one of the memory; it always finds room on the shelf. */
static struct buffer *carve(struct pool *pool, size_t bytes) {
    size_t left = pool->memory ? memory_bytes(pool->memory) - pool->used : 0;
    size_t size = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (size < bytes || size > left ||
        !make_room(&pool->shown, pool->num_shown + 1))
        return NULL;
    struct buffer *buffer =
        buffer_open_in(pool->memory, pool->used, bytes, come_back, pool);
    if (buffer) {
        pool->used += size;
        pool->num_shown++;
    }
    return buffer;
}

static struct buffer *count_in(struct pool *pool, struct buffer *buffer) {
    if (buffer) {
        pool->taken++;
        pool->taken_bytes += buffer_bytes(buffer);
    }
    pthread_mutex_unlock(&pool->mutex);
    return buffer;
}

struct buffer *pool_take(struct pool *pool, size_t bytes) {
    pthread_mutex_lock(&pool->mutex);
    struct buffer *buffer = from_shelf(&pool->own, bytes);
    return count_in(pool,
                    buffer ? buffer : buffer_open(bytes, come_back, pool));
}

struct buffer *pool_take_shown(struct pool *pool, size_t bytes) {
    pthread_mutex_lock(&pool->mutex);
    struct buffer *buffer = from_shelf(&pool->shown, bytes);
    return count_in(pool, buffer ? buffer : carve(pool, bytes));
}

size_t pool_taken_bytes(struct pool *pool) {
    pthread_mutex_lock(&pool->mutex);
    size_t bytes = pool->taken_bytes;
    pthread_mutex_unlock(&pool->mutex);
    return bytes;
}
