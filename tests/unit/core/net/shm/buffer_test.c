/* SPDX-License-Identifier: Apache-2.0 */
#include "core/net/shm/buffer.h"

#include "tests/lib/test.h"

#include <pthread.h>

TEST(data_is_aligned_and_as_long_as_asked) {
    for (size_t bytes = 0; bytes < 200; bytes++) {
        struct buffer *buffer = buffer_open(bytes, NULL, NULL);
        assert_int_equal((uintptr_t)buffer_data(buffer) % 64, 0);
        assert_int_equal(buffer_bytes(buffer), bytes);
        memset(buffer_data(buffer), 1, bytes);
        buffer_release(&buffer);
        assert_null(buffer);
    }
}

TEST(sizes_that_overflow_fail) {
    assert_null(buffer_open(SIZE_MAX, NULL, NULL));
    assert_null(buffer_open(SIZE_MAX - 64, NULL, NULL));
}

TEST(only_the_last_holder_is_unique) {
    struct buffer *first = buffer_open(8, NULL, NULL), *none = NULL;
    struct buffer *second = buffer_hold(first);
    assert_ptr_equal(first, second);
    assert_false(buffer_is_unique(first));
    buffer_release(&second);
    assert_true(buffer_is_unique(first));
    buffer_release(&first);
    buffer_release(&none);
}

static void count_back(void *owner, struct buffer *buffer) {
    (void)buffer;
    ++*(int *)owner;
}

TEST(the_last_release_returns_it_to_its_owner) {
    int back = 0;
    struct buffer *buffer = buffer_open(8, count_back, &back), *kept = buffer;
    struct buffer *other = buffer_hold(buffer);
    buffer_release(&buffer);
    assert_int_equal(back, 0);
    buffer_release(&other);
    assert_int_equal(back, 1);
    buffer_reuse(kept);
    assert_true(buffer_is_unique(kept));
    buffer = kept;
    buffer_release(&buffer);
    assert_int_equal(back, 2);
    buffer_destroy(kept);
}

enum { ROUNDS = 20000 };

static void *hold_and_release(void *argument) {
    for (int i = 0; i < ROUNDS; i++) {
        struct buffer *mine = buffer_hold(argument);
        buffer_release(&mine);
    }
    return NULL;
}

TEST(holders_of_several_threads_are_counted) {
    pthread_t threads[4];
    struct buffer *buffer = buffer_open(8, NULL, NULL);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, hold_and_release, buffer);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_true(buffer_is_unique(buffer));
    buffer_release(&buffer);
}

TEST(a_slice_holds_its_memory) {
    struct shm_segment *segment =
        shm_segment_open(8192, SHM_SEGMENT_OWNER_WRITES);
    char *base = shm_segment_base(segment);
    struct buffer *buffer = buffer_open_in(segment, 64, 100, NULL, NULL);
    assert_ptr_equal(buffer_segment(buffer), segment);
    assert_ptr_equal(buffer_data(buffer), base + 64);
    assert_int_equal(buffer_bytes(buffer), 100);
    shm_segment_release(&segment);
    memset(buffer_data(buffer), 1, 100);
    buffer_release(&buffer);
}

TEST(only_shared_buffers_lie_in_a_segment) {
    struct buffer *shared = buffer_open_shared(5000);
    struct buffer *plain = buffer_open(5000, NULL, NULL);
    struct buffer *empty = buffer_open_shared(0);
    assert_non_null(buffer_segment(shared));
    assert_null(buffer_segment(plain));
    assert_int_equal(buffer_bytes(empty), 0);
    memset(buffer_data(shared), 1, 5000);
    buffer_release(&shared);
    buffer_release(&plain);
    buffer_release(&empty);
}
