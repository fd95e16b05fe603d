/* SPDX-License-Identifier: Apache-2.0 */
#include "core/net/shm/buffer.h"

#include "tests/lib/test.h"

#include <pthread.h>

TEST(a_returned_buffer_is_reused) {
    struct buffer_pool *pool = buffer_pool_open();
    struct buffer *first = buffer_pool_take(pool, 1000), *address = first;
    assert_int_equal(buffer_pool_used_bytes(pool), 1000);
    buffer_release(&first);
    assert_int_equal(buffer_pool_used_bytes(pool), 0);
    struct buffer *second = buffer_pool_take(pool, 1000);
    assert_ptr_equal(second, address);
    assert_true(buffer_is_unique(second));
    struct buffer *other = buffer_pool_take(pool, 999);
    assert_int_equal(buffer_bytes(other), 999);
    assert_int_equal(buffer_pool_used_bytes(pool), 1999);
    buffer_release(&second);
    buffer_release(&other);
    buffer_pool_close(&pool);
    assert_null(pool);
    buffer_pool_close(&pool);
}

TEST(buffers_outlive_a_closed_pool) {
    struct buffer_pool *pool = buffer_pool_open();
    struct buffer *first = buffer_pool_take(pool, 64),
                  *second = buffer_pool_take(pool, 64);
    buffer_pool_close(&pool);
    memset(buffer_data(first), 1, 64);
    buffer_release(&first);
    memset(buffer_data(second), 2, 64);
    buffer_release(&second); /* ends the pool: a sanitizer sees a leak */
}

TEST(buffers_beyond_the_limit_are_freed) {
    struct buffer_pool *pool = buffer_pool_open();
    struct buffer *buffers[100];
    for (int i = 0; i < 100; i++)
        buffers[i] = buffer_pool_take(pool, 64);
    assert_int_equal(buffer_pool_used_bytes(pool), 6400);
    for (int i = 0; i < 100; i++)
        buffer_release(&buffers[i]);
    assert_int_equal(buffer_pool_used_bytes(pool), 0);
    buffer_pool_close(&pool);
}

static void *release_all(void *argument) {
    struct buffer **buffers = argument;
    for (int i = 0; i < 64; i++)
        buffer_release(&buffers[i]);
    return NULL;
}

TEST(buffers_are_returned_from_any_thread) {
    for (int round = 0; round < 50; round++) {
        struct buffer_pool *pool = buffer_pool_open();
        struct buffer *buffers[2][64];
        pthread_t threads[2];
        for (int i = 0; i < 128; i++)
            buffers[i / 64][i % 64] =
                buffer_pool_take(pool, 32 + (size_t)i % 3);
        for (int t = 0; t < 2; t++)
            pthread_create(&threads[t], NULL, release_all, buffers[t]);
        struct buffer *mine = buffer_pool_take(pool, 32);
        buffer_pool_close(&pool);
        buffer_release(&mine);
        for (int t = 0; t < 2; t++)
            pthread_join(threads[t], NULL);
    }
}

TEST(shared_buffers_never_exceed_their_segment) {
    struct buffer_pool *pool = buffer_pool_open();
    struct buffer *buffers[40];
    assert_null(buffer_pool_take_shared(pool, 64));
    assert_true(buffer_pool_add_shared(pool, 40 * 64));
    for (int i = 0; i < 40; i++) {
        buffers[i] = buffer_pool_take_shared(pool, 60);
        assert_non_null(buffer_segment(buffers[i]));
        memset(buffer_data(buffers[i]), i, 60);
    }
    assert_null(buffer_pool_take_shared(pool, 60));
    assert_int_equal(buffer_pool_used_bytes(pool), 40 * 60);
    for (int i = 0; i < 40; i++)
        buffer_release(&buffers[i]);
    assert_int_equal(buffer_pool_used_bytes(pool), 0);
    struct buffer *plain = buffer_pool_take(pool, 60);
    assert_null(buffer_segment(plain));
    for (int i = 0; i < 40; i++)
        assert_non_null(buffers[i] = buffer_pool_take_shared(pool, 60));
    assert_null(buffer_pool_take_shared(pool, 60));
    buffer_pool_close(&pool);
    for (int i = 0; i < 40; i++)
        buffer_release(&buffers[i]);
    buffer_release(&plain);
}
