/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "core/net/shm/ring.h"

#include "tests/lib/seed.h"
#include "tests/lib/test.h"

#include <pthread.h>
#include <sched.h>

enum { PAYLOAD = 5000 };

struct fixture {
    struct ring_shared *shared;
    unsigned char *bytes;
    uint64_t capacity;
    struct ring_writer writer;
    struct ring_reader reader;
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    fixture->capacity = ring_capacity(PAYLOAD);
    fixture->shared = aligned_alloc(64, sizeof *fixture->shared);
    fixture->bytes = aligned_alloc(64, fixture->capacity);
    memset(fixture->shared, 0, sizeof *fixture->shared);
    memset(fixture->bytes, 0, fixture->capacity);
    ring_writer_init(&fixture->writer, fixture->shared, fixture->bytes,
                     fixture->capacity);
    ring_reader_init(&fixture->reader, fixture->shared, fixture->bytes,
                     fixture->capacity);
    *state = fixture;
    return 0;
}

TEARDOWN(teardown) {
    free(fixture->shared);
    free(fixture->bytes);
    free(fixture);
}

FIXTURE(setup, teardown);

/* The message of NUMBER: header and payload follow from it. False: no room. */
static bool write_message(struct ring_writer *writer, uint32_t number) {
    uint64_t size = number * UINT64_C(2654435761) % PAYLOAD;
    unsigned char *room = ring_reserve(writer, size);
    if (!room)
        return false;
    assert_int_equal((uintptr_t)room % RING_ALIGNMENT, 0);
    memset(room, (int)(number & 0xff), size);
    ring_commit(writer, &number, sizeof number,
                &(struct ring_payload){.bytes = size, .inside = true});
    return true;
}

static void expect_message(struct ring_reader *reader, uint32_t number) {
    struct ring_message message;
    uint32_t found;
    assert_int_equal(ring_next(reader, &message), RING_MESSAGE);
    assert_int_equal(message.header_bytes, sizeof found);
    memcpy(&found, message.header, sizeof found);
    assert_int_equal(found, number);
    uint64_t size = number * UINT64_C(2654435761) % PAYLOAD;
    assert_int_equal(message.payload.bytes, size);
    const unsigned char *bytes = message.inside;
    for (uint64_t i = 0; i < size; i++)
        if (bytes[i] != (number & 0xff))
            fail_msg("byte %lu of message %u", (unsigned long)i, number);
    ring_next_done(reader);
}

TEST(messages_are_read_in_order_and_whole) {
    struct ring_message message;
    struct philox_sequence chance;
    uint32_t written = 0, read = 0;
    seed_open(&chance);
    while (read < 100000) {
        uint32_t writes = philox_next(&chance) % 8;
        while (writes-- && write_message(&fixture->writer, written))
            written++;
        uint32_t reads = philox_next(&chance) % 8;
        while (reads-- && read < written)
            expect_message(&fixture->reader, read++);
        if (read == written)
            assert_int_equal(ring_next(&fixture->reader, &message), RING_EMPTY);
    }
}

TEST(an_empty_ring_fits_the_longest_message) {
    for (uint32_t i = 0; i < 5000; i++) {
        assert_non_null(ring_reserve(&fixture->writer, PAYLOAD));
        assert_true(write_message(&fixture->writer, i));
        expect_message(&fixture->reader, i);
    }
}

/* A backlog of 16 KiB goes round in the first part of a ring of a megabyte. */
TEST(only_part_of_a_large_ring_is_used) {
    uint64_t capacity = 1 << 20, most = 0;
    struct ring_shared *shared = aligned_alloc(64, sizeof *shared);
    unsigned char *bytes = aligned_alloc(64, capacity);
    struct ring_writer writer;
    struct ring_reader reader;
    memset(shared, 0, sizeof *shared);
    memset(bytes, 0, capacity);
    ring_writer_init(&writer, shared, bytes, capacity);
    ring_reader_init(&reader, shared, bytes, capacity);
    for (uint32_t i = 0; i < 5000; i++) {
        assert_true(write_message(&writer, i));
        uint64_t end = ((writer.head - 1) & (capacity - 1)) + 1;
        most = end > most ? end : most;
        if (i >= 4)
            expect_message(&reader, i - 4);
    }
    assert_true(most > 64 << 10 && most < 320 << 10);
    free(shared);
    free(bytes);
}

TEST(a_full_ring_refuses_until_it_is_read) {
    uint32_t count = 0;
    while (write_message(&fixture->writer, count))
        count++;
    assert_true(count > 10);
    assert_null(ring_reserve(&fixture->writer, PAYLOAD));
    assert_null(ring_reserve(&fixture->writer, UINT64_MAX));
    for (uint32_t i = 0; i < count; i++)
        expect_message(&fixture->reader, i);
    assert_int_equal(ring_released(&fixture->writer), fixture->writer.head);
    assert_non_null(ring_reserve(&fixture->writer, PAYLOAD));
}

TEST(a_sleeping_side_requests_a_wakeup) {
    struct ring_payload none = {.inside = true};
    ring_reserve(&fixture->writer, 0);
    assert_false(ring_commit(&fixture->writer, "x", 1, &none));
    assert_false(ring_prepare_wait(&fixture->reader));
    struct ring_message message;
    assert_int_equal(ring_next(&fixture->reader, &message), RING_MESSAGE);
    assert_false(ring_next_done(&fixture->reader));
    assert_true(ring_prepare_wait(&fixture->reader));
    ring_reserve(&fixture->writer, 0);
    assert_true(ring_commit(&fixture->writer, "x", 1, &none));
    ring_reserve(&fixture->writer, 0);
    assert_false(ring_commit(&fixture->writer, "x", 1, &none));
    ring_request_room(&fixture->writer);
    assert_int_equal(ring_next(&fixture->reader, &message), RING_MESSAGE);
    assert_true(ring_next_done(&fixture->reader));
    assert_int_equal(ring_next(&fixture->reader, &message), RING_MESSAGE);
    assert_false(ring_next_done(&fixture->reader));
}

TEST(an_invalid_head_breaks_the_ring) {
    struct ring_message message;
    assert_true(write_message(&fixture->writer, 7));
    const uint64_t heads[] = {1, 63, fixture->capacity + 64, UINT64_MAX - 63,
                              UINT64_C(1) << 63};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        atomic_store(&fixture->shared->head, heads[i]);
        assert_int_equal(ring_next(&fixture->reader, &message), RING_BROKEN);
    }
}

TEST(an_invalid_tail_gives_no_space) {
    while (write_message(&fixture->writer, 7))
        ;
    uint64_t head = fixture->writer.head;
    const uint64_t tails[] = {head + 64, UINT64_MAX, UINT64_C(1) << 63};
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        atomic_store(&fixture->shared->tail, tails[i]);
        assert_int_equal(ring_released(&fixture->writer), 0);
        assert_false(write_message(&fixture->writer, 7));
    }
    atomic_store(&fixture->shared->tail, head);
    assert_int_equal(ring_released(&fixture->writer), head);
    atomic_store(&fixture->shared->tail, 0);
    assert_int_equal(ring_released(&fixture->writer), head);
}

/* Whatever the other side writes: what is read lies in the ring. */
TEST(garbage_is_never_followed_out_of_the_ring) {
    struct philox_sequence chance;
    unsigned messages = 0, broken = 0;
    seed_open(&chance);
    for (int i = 0; i < 300000; i++) {
        ring_reader_init(&fixture->reader, fixture->shared, fixture->bytes,
                         fixture->capacity);
        fixture->reader.tail = philox_next(&chance) % 4096 * RING_ALIGNMENT;
        uint64_t ahead =
            philox_next(&chance) % (fixture->capacity / RING_ALIGNMENT + 2);
        atomic_store(&fixture->shared->head,
                     fixture->reader.tail + ahead * RING_ALIGNMENT);
        uint32_t words[8];
        for (int w = 0; w < 8; w++)
            words[w] = philox_next(&chance) >> philox_next(&chance) % 32;
        words[0] %= 5;
        memcpy(fixture->bytes +
                   (fixture->reader.tail & (fixture->capacity - 1)),
               words, sizeof words);
        struct ring_message message;
        enum ring_state is = ring_next(&fixture->reader, &message);
        broken += is == RING_BROKEN;
        if (is != RING_MESSAGE)
            continue;
        messages++;
        const unsigned char *end = fixture->bytes + fixture->capacity;
        const unsigned char *header = message.header, *inside = message.inside;
        assert_true(header >= fixture->bytes && header <= end);
        assert_true(message.header_bytes <= RING_HEADER);
        assert_true((size_t)(end - header) >= message.header_bytes);
        if (inside)
            assert_true(inside >= fixture->bytes && inside <= header &&
                        (size_t)(header - inside) >= message.payload.bytes);
        ring_next_done(&fixture->reader);
    }
    assert_true(messages > 1000 && broken > 1000);
}

struct reading {
    struct fixture *fixture;
    uint32_t count;
};

static void *read_all(void *argument) {
    struct reading *reading = argument;
    struct ring_message message;
    for (uint32_t i = 0; i < reading->count; i++) {
        while (ring_next(&reading->fixture->reader, &message) == RING_EMPTY)
            sched_yield();
        expect_message(&reading->fixture->reader, i);
    }
    return NULL;
}

TEST(two_threads_agree) {
    struct reading reading = {fixture, 50000};
    pthread_t thread;
    pthread_create(&thread, NULL, read_all, &reading);
    for (uint32_t i = 0; i < reading.count;)
        if (write_message(&fixture->writer, i))
            i++;
        else
            sched_yield();
    pthread_join(thread, NULL);
    assert_int_equal(ring_released(&fixture->writer), fixture->writer.head);
}
