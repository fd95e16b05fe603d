#include "ps/pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

/* Buffers that nobody holds stay for the next copy: fresh memory costs a page
 * fault a page. More than a few would be memory that a ps does not need. */
enum { KEPT = 32 };

struct pool {
    pthread_mutex_t mutex;
    struct buffer *kept[KEPT];
    unsigned num_kept;
    size_t taken_bytes, taken;
    bool closed;
};

struct pool *pool_open(void) {
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool)
        pthread_mutex_init(&pool->mutex, NULL);
    return pool;
}

static void destroy(struct pool *pool) {
    for (unsigned i = 0; i < pool->num_kept; i++)
        buffer_destroy(pool->kept[i]);
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
    bool keep = pool->num_kept < KEPT && !pool->closed;
    if (keep)
        pool->kept[pool->num_kept++] = buffer;
    bool last = pool->closed && pool->taken == 0;
    pthread_mutex_unlock(&pool->mutex);
    if (!keep)
        buffer_destroy(buffer);
    if (last)
        destroy(pool);
}

/* The newest kept buffer of this size: the warmest in the cache. */
static struct buffer *from_kept(struct pool *pool, size_t bytes) {
    for (unsigned i = pool->num_kept; i-- > 0;) {
        struct buffer *buffer = pool->kept[i];
        if (buffer_bytes(buffer) != bytes)
            continue;
        pool->kept[i] = pool->kept[--pool->num_kept];
        buffer_revive(buffer);
        return buffer;
    }
    return NULL;
}

struct buffer *pool_take(struct pool *pool, size_t bytes) {
    pthread_mutex_lock(&pool->mutex);
    struct buffer *buffer = from_kept(pool, bytes);
    if (!buffer)
        buffer = buffer_open(bytes, come_back, pool);
    if (buffer) {
        pool->taken++;
        pool->taken_bytes += bytes;
    }
    pthread_mutex_unlock(&pool->mutex);
    return buffer;
}

size_t pool_taken_bytes(struct pool *pool) {
    pthread_mutex_lock(&pool->mutex);
    size_t bytes = pool->taken_bytes;
    pthread_mutex_unlock(&pool->mutex);
    return bytes;
}
