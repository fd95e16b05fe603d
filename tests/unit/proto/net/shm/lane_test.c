/* SPDX-License-Identifier: Apache-2.0 */
/* Frames between two processes of a host: their order, the bells, memory that
 * is shown, and an end that is killed. */
#include "proto/net/shm/lane.h"

#include "proto/base/time.h"
#include "proto/net/messages/message.h"
#include "proto/net/shm/lane_parts.h"
#include "tests/lib/lane_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

static void send_bytes(struct lane *lane, uint32_t number, size_t bytes) {
    static unsigned char data[LANE_FIXTURE_FRAME];
    memset(data, (int)(number & 0xff), bytes);
    struct lane_payload payload = {data, bytes, NULL};
    assert_true(lane_send(lane, &number, sizeof number, &payload));
}

static void expect_bytes(struct lane *lane, uint32_t number, size_t bytes) {
    struct lane_view view;
    uint32_t found;
    assert_true(lane_waiting(lane));
    assert_true(lane_view(lane, &view));
    assert_int_equal(view.header_bytes, sizeof found);
    memcpy(&found, view.header, sizeof found);
    assert_int_equal(found, number);
    assert_int_equal(view.payload_bytes, bytes);
    const unsigned char *data = view.payload;
    assert_true(!bytes || (data[0] == (number & 0xff) &&
                           data[bytes - 1] == (number & 0xff)));
    lane_done(lane);
}

static void messages_go_both_ways(void **state) {
    struct lane_fixture *fixture = *state;
    struct lane_view view;
    lane_fixture_meet(fixture);
    for (uint32_t i = 0; i < 1000; i++) {
        send_bytes(fixture->called, i, i * 7);
        send_bytes(fixture->served, i + 1, i * 5);
        expect_bytes(fixture->served, i, i * 7);
        expect_bytes(fixture->called, i + 1, i * 5);
    }
    assert_false(lane_view(fixture->served, &view));
    assert_true(lane_send(fixture->called, "x", 1, NULL));
    assert_true(lane_view(fixture->served, &view));
    assert_int_equal(view.payload_bytes, 0);
    lane_done(fixture->served);
}

static void what_finds_no_room_waits_and_comes_in_order(void **state) {
    struct lane_fixture *fixture = *state;
    lane_fixture_meet(fixture);
    for (uint32_t i = 0; i < 100; i++) {
        if (i % 3 == 0) {
            unsigned char *room = lane_reserve(fixture->served, 9999);
            struct lane_payload payload = {room, 9999, NULL};
            memset(room, (int)i, 9999);
            assert_true(lane_send(fixture->served, &i, sizeof i, &payload));
        } else {
            send_bytes(fixture->served, i, 9999);
        }
    }
    assert_non_null(fixture->served->first); /* or nothing waited */
    for (uint32_t i = 0; i < 100; i++) {
        expect_bytes(fixture->called, i, 9999);
        lane_fixture_turn(fixture->server);
    }
    assert_null(fixture->served->first);
}

/* How many of 4 messages find room before the first is read, when COUNT have
 * gone before. */
static unsigned count_ahead(struct lane_fixture *fixture, unsigned count) {
    unsigned ahead = 0;
    struct lane_view view;
    for (unsigned i = 0; i < count + 4; i++) {
        char *room = lane_room(fixture->called, LANE_FIXTURE_FRAME / 4);
        struct lane_payload payload = {room, LANE_FIXTURE_FRAME / 4, NULL};
        if (!room)
            break;
        assert_true(lane_send(fixture->called, "", 0, &payload));
        ahead += i >= count;
        if (i >= count)
            continue;
        assert_true(lane_view(fixture->served, &view));
        lane_done(fixture->served);
    }
    while (lane_view(fixture->served, &view))
        lane_done(fixture->served);
    return ahead;
}

static void so_much_is_sent_ahead_wherever_the_ring_stands(void **state) {
    struct lane_fixture *fixture = *state;
    unsigned least = 4;
    lane_fixture_meet(fixture);
    for (unsigned i = 0; i < 40; i++) {
        unsigned ahead = count_ahead(fixture, i);
        least = ahead < least ? ahead : least;
    }
    assert_true(least < 4); /* or it says nothing */
    lane_keep_ahead(fixture->called, LANE_FIXTURE_FRAME);
    for (unsigned i = 0; i < 40; i++)
        assert_int_equal(count_ahead(fixture, i), 4);
}

static bool has_rung(struct lane *lane) {
    struct pollfd item = {lane_bell(lane), POLLIN, 0};
    eventfd_t rung;
    bool has = poll(&item, 1, 0) == 1;
    if (has)
        eventfd_read(lane_bell(lane), &rung);
    return has;
}

static void bells_ring_for_what_is_sent_and_for_room(void **state) {
    struct lane_fixture *fixture = *state;
    struct lane_view view;
    unsigned sent = 0;
    lane_fixture_meet(fixture);
    has_rung(fixture->called);
    has_rung(fixture->served);
    lane_sleep(fixture->served);
    while (lane_room(fixture->called, LANE_FIXTURE_FRAME)) {
        send_bytes(fixture->called, sent++, LANE_FIXTURE_FRAME / 2);
        assert_int_equal(has_rung(fixture->served), false);
        lane_ring(fixture->called);
        assert_int_equal(has_rung(fixture->served), sent == 1);
    }
    assert_false(has_rung(fixture->called));
    assert_true(lane_view(fixture->served, &view));
    lane_done(fixture->served);
    assert_true(has_rung(fixture->called));
}

static void what_is_reserved_is_written_in_place(void **state) {
    struct lane_fixture *fixture = *state;
    struct lane_view view;
    lane_fixture_meet(fixture);
    char *room = lane_reserve(fixture->called, 100);
    assert_true(room > (char *)memory_base(fixture->called->memory));
    room = lane_reserve(fixture->called, 200); /* the first was not sent */
    room[199] = 5;
    struct lane_payload payload = {room, 200, NULL};
    assert_true(lane_send(fixture->called, "h", 1, &payload));
    room[199] = 6;
    assert_true(lane_view(fixture->served, &view));
    assert_int_equal(((const char *)view.payload)[199], 6);
    assert_null(lane_reserve(fixture->called, LANE_FIXTURE_FRAME + 1));
}

static void shown_memory_is_read_where_it_lies_and_let_go(void **state) {
    struct lane_fixture *fixture = *state;
    struct lane_view view;
    lane_fixture_meet(fixture);
    struct memory *memory = memory_open(1 << 16, MEMORY_MAKER_WRITES);
    for (int i = 0; i < 300; i++) {
        struct buffer *buffer = buffer_open_in(memory, 64, 640, NULL, NULL);
        char *bytes = buffer_data(buffer);
        struct lane_payload payload = {bytes + 40, 600, buffer};
        assert_true(lane_send(fixture->served, "h", 1, &payload));
        assert_false(buffer_alone(buffer));
        bytes[40 + 599] = (char)i;
        assert_true(lane_view(fixture->called, &view));
        assert_int_equal(view.payload_bytes, 600);
        assert_int_equal(((const char *)view.payload)[599], (char)i);
        assert_non_null(view.memory);
        lane_done(fixture->called);
        lane_settle(fixture->served);
        assert_true(buffer_alone(buffer));
        buffer_release(&buffer);
    }
    assert_int_equal(fixture->called->num_seen, 1);
    memory_release(&memory);
}

static void more_memory_than_can_be_shown_is_copied(void **state) {
    struct lane_fixture *fixture = *state;
    struct lane_view view;
    lane_fixture_meet(fixture);
    for (int i = 0; i < LANE_MEMORIES + 3; i++) {
        struct memory *memory = memory_open(4096, MEMORY_MAKER_WRITES);
        struct buffer *buffer = buffer_open_in(memory, 0, 99, NULL, NULL);
        struct lane_payload payload = {buffer_data(buffer), 99, buffer};
        memset(buffer_data(buffer), i, 99);
        assert_true(lane_send(fixture->called, "h", 1, &payload));
        buffer_release(&buffer);
        memory_release(&memory);
    }
    for (int i = 0; i < LANE_MEMORIES + 3; i++) {
        assert_true(lane_view(fixture->served, &view));
        assert_int_equal(((const char *)view.payload)[98], i);
        assert_int_equal(view.memory != NULL, i < LANE_MEMORIES);
        lane_done(fixture->served);
    }
}

static void nobody_is_called_by_a_name_that_is_not_there(void **state) {
    struct lane_fixture *fixture = *state;
    char text[128];
    assert_int_equal(
        lanes_call(fixture->client, "capstan-none", text, sizeof text), 0);
    assert_non_null(strstr(text, "not on this host"));
}

/* In a child: a client that floods the server until it is killed. */
static void flood(struct lane_fixture *fixture) {
    struct lanes *lanes = lanes_open(LANE_FIXTURE_FRAME);
    char text[128];
    uint32_t number = lanes_call(lanes, fixture->name, text, sizeof text);
    static unsigned char bytes[9999];
    for (;;) {
        struct lane *lane = lanes_find(lanes, number);
        struct lane_payload payload = {bytes, sizeof bytes, NULL};
        if (!lane_fixture_is_open(lane) ||
            !lane_send(lane, "flood", 5, &payload))
            lane_fixture_turn(lanes);
    }
}

static void a_client_that_is_killed_is_left(void **state) {
    struct lane_fixture *fixture = *state;
    struct lanes_message message;
    unsigned read = 0;
    pid_t child = fork();
    if (!child)
        flood(fixture);
    lane_fixture_await(fixture);
    while (read < 1000) {
        if (lanes_view(fixture->server, &message)) {
            lane_done(message.lane);
            read++;
        } else {
            lane_fixture_turn(fixture->server);
        }
    }
    struct memory *memory = memory_open(4096, MEMORY_MAKER_WRITES);
    struct buffer *buffer = buffer_open_in(memory, 0, 64, NULL, NULL);
    struct lane_payload payload = {buffer_data(buffer), 64, buffer};
    assert_true(lane_send(lane_fixture_served(fixture), "held", 4, &payload));
    assert_false(buffer_alone(buffer));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    lane_fixture_left(fixture, NULL);
    assert_true(buffer_alone(buffer));
    buffer_release(&buffer);
    memory_release(&memory);
}

static void a_server_that_is_killed_is_noticed(void **state) {
    struct lane_fixture *fixture = *state;
    char text[128], name[LANES_NAME];
    lanes_name(name, message_random());
    int ready = eventfd(0, EFD_CLOEXEC);
    pid_t child = fork();
    if (!child) {
        struct lanes *lanes = lanes_open(LANE_FIXTURE_FRAME);
        lanes_listen(lanes, name);
        eventfd_write(ready, 1);
        for (;;)
            lane_fixture_turn(lanes);
    }
    eventfd_t count;
    eventfd_read(ready, &count);
    close(ready);
    uint32_t number = lanes_call(fixture->client, name, text, sizeof text);
    while (!lane_fixture_is_open(lanes_find(fixture->client, number)))
        lane_fixture_turn(fixture->client);
    send_bytes(lanes_find(fixture->client, number), 1, 5000);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    int64_t deadline = time_now() + LANE_FIXTURE_LIMIT;
    while (lanes_find(fixture->client, number)) {
        assert_true(time_now() < deadline);
        lane_fixture_turn(fixture->client);
    }
    assert_int_equal(lanes_call(fixture->client, name, text, sizeof text), 0);
}

/* A child waits for a bell that only rings when it sleeps. */
static void a_sleeper_is_woken(void **state) {
    struct lane_fixture *fixture = *state;
    pid_t child = fork();
    if (!child) {
        struct lanes *lanes = lanes_open(LANE_FIXTURE_FRAME);
        struct lanes_message message;
        char text[128];
        lanes_call(lanes, fixture->name, text, sizeof text);
        for (;;) {
            struct pollfd item = {lanes_descriptor(lanes), POLLIN, 0};
            lanes_sleep(lanes);
            poll(&item, 1, -1);
            lanes_tend(lanes, time_now());
            while (lanes_view(lanes, &message)) {
                lane_done(message.lane);
                lane_send(message.lane, "pong", 4, NULL);
            }
        }
    }
    struct lanes_message message;
    lane_fixture_await(fixture);
    while (!lane_fixture_is_open(lane_fixture_served(fixture)))
        lane_fixture_turn(fixture->server);
    struct lane *lane = lane_fixture_served(fixture);
    for (int i = 0; i < 20000; i++) {
        int64_t deadline = time_now() + LANE_FIXTURE_LIMIT;
        assert_true(lane_send(lane, "ping", 4, NULL));
        while (!lanes_view(fixture->server, &message)) {
            struct pollfd item = {lanes_descriptor(fixture->server), POLLIN, 0};
            lanes_sleep(fixture->server);
            assert_true(poll(&item, 1, 20000) == 1);
            lanes_tend(fixture->server, time_now());
            assert_true(time_now() < deadline);
        }
        lane_done(message.lane);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* Lines of the file at PATH that have TEXT in them. */
static unsigned count_lines(const char *path, const char *text) {
    FILE *file = fopen(path, "r");
    char line[512];
    unsigned found = 0;
    while (fgets(line, sizeof line, file))
        found += strstr(line, text) != NULL;
    fclose(file);
    return found;
}

static void nothing_is_left_in_the_file_system(void **state) {
    struct lane_fixture *fixture = *state;
    lane_fixture_meet(fixture);
    assert_true(count_lines("/proc/self/maps", "/memfd:") > 0);
    assert_int_equal(count_lines("/proc/self/maps", "/dev/shm/"), 0);
    lanes_close(&fixture->client);
    lanes_close(&fixture->server);
    assert_int_equal(count_lines("/proc/net/unix", fixture->name), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        LANE_FIXTURE_TEST(messages_go_both_ways),
        LANE_FIXTURE_TEST(what_finds_no_room_waits_and_comes_in_order),
        LANE_FIXTURE_TEST(so_much_is_sent_ahead_wherever_the_ring_stands),
        LANE_FIXTURE_TEST(bells_ring_for_what_is_sent_and_for_room),
        LANE_FIXTURE_TEST(what_is_reserved_is_written_in_place),
        LANE_FIXTURE_TEST(shown_memory_is_read_where_it_lies_and_let_go),
        LANE_FIXTURE_TEST(more_memory_than_can_be_shown_is_copied),
        LANE_FIXTURE_TEST(nobody_is_called_by_a_name_that_is_not_there),
        LANE_FIXTURE_TEST(a_client_that_is_killed_is_left),
        LANE_FIXTURE_TEST(a_server_that_is_killed_is_noticed),
        LANE_FIXTURE_TEST(a_sleeper_is_woken),
        LANE_FIXTURE_TEST(nothing_is_left_in_the_file_system),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
