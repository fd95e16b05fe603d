/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/net/link/link.h"

#include "proto/base/time.h"
#include "proto/net/shm/memory.h"
#include "tests/lib/wire_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static void nothing_leaves_without_a_connection(void **state) {
    struct wire_fixture *fixture = *state;
    struct link_payload payload;
    assert_false(link_commit(fixture->client, 0, "x", 1, NULL));
    assert_true(link_reserve(fixture->client, 0, &payload, 100));
    assert_false(link_commit(fixture->client, 0, "x", 1, &payload));
    assert_false(link_commit(fixture->server, 12345, "x", 1, NULL));
}

static void a_borrowed_buffer_is_held_until_it_has_left(void **state) {
    struct wire_fixture *fixture = *state;
    uint32_t peer = wire_fixture_connect(fixture);
    struct buffer *buffer = buffer_open(4000, NULL, NULL);
    struct link_payload payload;
    struct link_frame frame;
    memset(buffer_data(buffer), 7, 4000);
    link_borrow(&payload, buffer, 1000, 2000);
    assert_false(buffer_alone(buffer));
    link_drop(&payload);
    assert_true(buffer_alone(buffer));
    link_borrow(&payload, buffer, 1000, 2000);
    assert_true(link_commit(fixture->server, peer, "w", 1, &payload));
    wire_fixture_view(fixture->client, &frame);
    assert_int_equal(frame.payload.size, 2000);
    assert_int_equal(*(char *)frame.payload.data, 7);
    link_release(&frame);
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
    while (!buffer_alone(buffer) && time_now() < deadline)
        zmq_poll(NULL, 0, 1);
    assert_true(buffer_alone(buffer));
    link_borrow(&payload, buffer, 0, 4000);
    assert_false(link_commit(fixture->server, peer + 1, "w", 1, &payload));
    assert_true(buffer_alone(buffer));
    buffer_release(&buffer);
}

static void a_borrowed_part_of_shown_memory_is_not_copied(void **state) {
    struct wire_fixture *fixture = *state;
    struct memory *memory = memory_open(1 << 20, MEMORY_MAKER_WRITES);
    struct buffer *buffer = buffer_open_in(memory, 4096, 4000, NULL, NULL);
    struct buffer *plain = buffer_open(8, NULL, NULL);
    struct link_payload payload;
    struct link_frame frame;
    uint32_t peer = wire_fixture_connect(fixture);
    assert_true(link_shows(fixture->server, peer, buffer));
    assert_false(link_shows(fixture->server, peer, plain));
    assert_false(link_shows(fixture->server, peer + 256, buffer));
    link_borrow(&payload, buffer, 1000, 2000);
    assert_true(link_commit(fixture->server, peer, "w", 1, &payload));
    wire_fixture_view(fixture->client, &frame);
    assert_false(buffer_alone(buffer));
    *((char *)buffer_data(buffer) + 1999) = 9;
    assert_int_equal(((const char *)frame.payload.data)[999], 9);
    link_release(&frame);
    wire_fixture_silent(fixture->server);
    assert_true(buffer_alone(buffer));
    buffer_release(&buffer);
    buffer_release(&plain);
    memory_release(&memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        WIRE_FIXTURE_TEST(nothing_leaves_without_a_connection),
        WIRE_FIXTURE_TEST(a_borrowed_buffer_is_held_until_it_has_left),
        WIRE_FIXTURE_LANE_TEST(nothing_leaves_without_a_connection),
        WIRE_FIXTURE_LANE_TEST(a_borrowed_buffer_is_held_until_it_has_left),
        WIRE_FIXTURE_LANE_TEST(a_borrowed_part_of_shown_memory_is_not_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
