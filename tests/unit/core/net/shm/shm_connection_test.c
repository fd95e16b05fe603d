/* SPDX-License-Identifier: Apache-2.0 */
/* Frames between two processes of a host: their order, the bells, memory that
 * is shown, and an end that is killed. */
#define STATE struct shm_fixture *fixture

#include "core/net/shm/shm_connection.h"

#include "core/base/time.h"
#include "core/net/shm/shm_connection_internal.h"
#include "proto/messages/message.h"
#include "tests/lib/shm_fixture.h"
#include "tests/lib/test.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

static void send_bytes(struct shm_connection *connection, uint32_t number,
                       size_t bytes) {
    static unsigned char data[SHM_FIXTURE_FRAME];
    memset(data, (int)(number & 0xff), bytes);
    struct shm_connection_payload payload = {data, bytes, NULL};
    assert_true(
        shm_connection_send(connection, &number, sizeof number, &payload));
}

static void expect_bytes(struct shm_connection *connection, uint32_t number,
                         size_t bytes) {
    struct shm_connection_view view;
    uint32_t found;
    assert_true(shm_connection_pending(connection));
    assert_true(shm_connection_view(connection, &view));
    assert_int_equal(view.header_bytes, sizeof found);
    memcpy(&found, view.header, sizeof found);
    assert_int_equal(found, number);
    assert_int_equal(view.payload_bytes, bytes);
    const unsigned char *data = view.payload;
    assert_true(!bytes || (data[0] == (number & 0xff) &&
                           data[bytes - 1] == (number & 0xff)));
    shm_connection_release(connection);
}

FIXTURE(shm_fixture_setup, shm_fixture_teardown);

TEST(messages_pass_in_both_directions) {
    struct shm_connection_view view;
    shm_fixture_connect(fixture);
    for (uint32_t i = 0; i < 1000; i++) {
        send_bytes(fixture->called, i, i * 7);
        send_bytes(fixture->served, i + 1, i * 5);
        expect_bytes(fixture->served, i, i * 7);
        expect_bytes(fixture->called, i + 1, i * 5);
    }
    assert_false(shm_connection_view(fixture->served, &view));
    assert_true(shm_connection_send(fixture->called, "x", 1, NULL));
    assert_true(shm_connection_view(fixture->served, &view));
    assert_int_equal(view.payload_bytes, 0);
    shm_connection_release(fixture->served);
}

TEST(messages_beyond_the_ring_wait_and_arrive_in_order) {
    shm_fixture_connect(fixture);
    for (uint32_t i = 0; i < 100; i++) {
        if (i % 3 == 0) {
            unsigned char *capacity =
                shm_connection_reserve(fixture->served, 9999);
            struct shm_connection_payload payload = {capacity, 9999, NULL};
            memset(capacity, (int)i, 9999);
            assert_true(
                shm_connection_send(fixture->served, &i, sizeof i, &payload));
        } else {
            send_bytes(fixture->served, i, 9999);
        }
    }
    assert_non_null(fixture->served->first); /* or nothing waited */
    for (uint32_t i = 0; i < 100; i++) {
        expect_bytes(fixture->called, i, 9999);
        shm_fixture_run_once(fixture->server);
    }
    assert_null(fixture->served->first);
}

/* Longer than the ring, between short ones; in turns from memory that is copied
 * and from a buffer of the sender. */
TEST(a_long_payload_arrives_whole_and_in_order) {
    enum { LONG = 40 * SHM_FIXTURE_FRAME + 7, ROUNDS = 4 };
    static unsigned char expected[LONG];
    shm_fixture_connect(fixture);
    fixture->served->max_frame = fixture->called->max_frame = LONG;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        struct buffer *buffer = buffer_open(LONG, NULL, NULL);
        struct shm_connection_view view = {0};
        unsigned char *data =
            i % 2 ? buffer_data(buffer)
                  : shm_connection_reserve(fixture->served, LONG);
        assert_non_null(data);
        for (size_t b = 0; b < LONG; b++)
            expected[b] = data[b] = (unsigned char)(b ^ b >> 7 ^ b >> 15 ^ i);
        struct shm_connection_payload payload = {data, LONG,
                                                 i % 2 ? buffer : NULL};
        send_bytes(fixture->served, 2 * i, 100);
        assert_true(
            shm_connection_send(fixture->served, &i, sizeof i, &payload));
        buffer_release(&buffer);
        send_bytes(fixture->served, 2 * i + 1, 100);
        expect_bytes(fixture->called, 2 * i, 100);
        for (int turn = 0; !shm_connection_view(fixture->called, &view);
             turn++) {
            assert_true(turn < 1000);
            shm_fixture_run_once(fixture->server);
        }
        assert_true(shm_connection_view(fixture->called, &view));
        assert_int_equal(view.payload_bytes, LONG);
        assert_memory_equal(view.header, &i, sizeof i);
        assert_memory_equal(view.payload, expected, LONG);
        shm_connection_release(fixture->called);
        shm_fixture_run_once(fixture->server);
        expect_bytes(fixture->called, 2 * i + 1, 100);
    }
}

/* The reader has a smaller limit than the sender. */
TEST(parts_of_too_long_a_payload_end_the_connection) {
    enum { LONG = 8 * SHM_FIXTURE_FRAME };
    struct shm_connection_view view;
    shm_fixture_connect(fixture);
    fixture->served->max_frame = LONG;
    fixture->called->max_frame = LONG - 1;
    void *data = shm_connection_reserve(fixture->served, LONG);
    struct shm_connection_payload payload = {data, LONG, NULL};
    memset(data, 0, LONG);
    assert_true(shm_connection_send(fixture->served, "x", 1, &payload));
    for (int turn = 0; shm_fixture_is_open(fixture->called); turn++) {
        assert_true(turn < 1000);
        assert_false(shm_connection_view(fixture->called, &view));
        shm_fixture_run_once(fixture->server);
    }
    assert_string_equal(shm_connection_error(fixture->called),
                        "a frame that is too long");
}

/* How many of 4 messages find room before the first is read, when COUNT have
 * gone before. */
static unsigned count_ahead(struct shm_fixture *fixture, unsigned count) {
    unsigned ahead = 0;
    struct shm_connection_view view;
    for (unsigned i = 0; i < count + 4; i++) {
        char *capacity =
            shm_connection_try_reserve(fixture->called, SHM_FIXTURE_FRAME / 4);
        struct shm_connection_payload payload = {capacity,
                                                 SHM_FIXTURE_FRAME / 4, NULL};
        if (!capacity)
            break;
        assert_true(shm_connection_send(fixture->called, "", 0, &payload));
        ahead += i >= count;
        if (i >= count)
            continue;
        assert_true(shm_connection_view(fixture->served, &view));
        shm_connection_release(fixture->served);
    }
    while (shm_connection_view(fixture->served, &view))
        shm_connection_release(fixture->served);
    return ahead;
}

TEST(the_send_limit_holds_at_any_ring_position) {
    unsigned least = 4;
    shm_fixture_connect(fixture);
    for (unsigned i = 0; i < 40; i++) {
        unsigned ahead = count_ahead(fixture, i);
        least = ahead < least ? ahead : least;
    }
    assert_true(least < 4); /* or it says nothing */
    shm_connection_set_headroom(fixture->called, SHM_FIXTURE_FRAME);
    for (unsigned i = 0; i < 40; i++)
        assert_int_equal(count_ahead(fixture, i), 4);
}

static bool has_wakeup(struct shm_connection *connection) {
    struct pollfd item = {shm_connection_wakeup(connection), POLLIN, 0};
    eventfd_t rung;
    bool has = poll(&item, 1, 0) == 1;
    if (has)
        eventfd_read(shm_connection_wakeup(connection), &rung);
    return has;
}

TEST(wakeups_are_sent_for_messages_and_for_space) {
    struct shm_connection_view view;
    unsigned sent = 0;
    shm_fixture_connect(fixture);
    has_wakeup(fixture->called);
    has_wakeup(fixture->served);
    shm_connection_prepare_wait(fixture->served);
    while (shm_connection_try_reserve(fixture->called, SHM_FIXTURE_FRAME)) {
        send_bytes(fixture->called, sent++, SHM_FIXTURE_FRAME / 2);
        assert_int_equal(has_wakeup(fixture->served), false);
        shm_connection_notify(fixture->called);
        assert_int_equal(has_wakeup(fixture->served), sent == 1);
    }
    assert_false(has_wakeup(fixture->called));
    assert_true(shm_connection_view(fixture->served, &view));
    shm_connection_release(fixture->served);
    assert_true(has_wakeup(fixture->called));
}

TEST(a_reserved_message_is_written_in_place) {
    struct shm_connection_view view;
    shm_fixture_connect(fixture);
    char *capacity = shm_connection_reserve(fixture->called, 100);
    assert_true(capacity >
                (char *)shm_segment_base(fixture->called->shm_segment));
    capacity = shm_connection_reserve(fixture->called,
                                      200); /* the first was not sent */
    capacity[199] = 5;
    struct shm_connection_payload payload = {capacity, 200, NULL};
    assert_true(shm_connection_send(fixture->called, "h", 1, &payload));
    capacity[199] = 6;
    assert_true(shm_connection_view(fixture->served, &view));
    assert_int_equal(((const char *)view.payload)[199], 6);
    assert_null(shm_connection_reserve(fixture->called, SHM_FIXTURE_FRAME + 1));
}

TEST(shared_memory_is_read_in_place_and_released) {
    struct shm_connection_view view;
    shm_fixture_connect(fixture);
    struct shm_segment *segment =
        shm_segment_open(1 << 16, SHM_SEGMENT_OWNER_WRITES);
    for (int i = 0; i < 300; i++) {
        struct buffer *buffer = buffer_open_in(segment, 64, 640, NULL, NULL);
        char *bytes = buffer_data(buffer);
        struct shm_connection_payload payload = {bytes + 40, 600, buffer};
        assert_true(shm_connection_send(fixture->served, "h", 1, &payload));
        assert_false(buffer_is_unique(buffer));
        bytes[40 + 599] = (char)i;
        assert_true(shm_connection_view(fixture->called, &view));
        assert_int_equal(view.payload_bytes, 600);
        assert_int_equal(((const char *)view.payload)[599], (char)i);
        assert_non_null(view.shm_segment);
        shm_connection_release(fixture->called);
        shm_connection_progress(fixture->served);
        assert_true(buffer_is_unique(buffer));
        buffer_release(&buffer);
    }
    assert_int_equal(fixture->called->num_mapped, 1);
    shm_segment_release(&segment);
}

TEST(payloads_beyond_the_shareable_memory_are_copied) {
    struct shm_connection_view view;
    shm_fixture_connect(fixture);
    for (int i = 0; i < SHM_CONNECTION_SEGMENTS + 3; i++) {
        struct shm_segment *segment =
            shm_segment_open(4096, SHM_SEGMENT_OWNER_WRITES);
        struct buffer *buffer = buffer_open_in(segment, 0, 99, NULL, NULL);
        struct shm_connection_payload payload = {buffer_data(buffer), 99,
                                                 buffer};
        memset(buffer_data(buffer), i, 99);
        assert_true(shm_connection_send(fixture->called, "h", 1, &payload));
        buffer_release(&buffer);
        shm_segment_release(&segment);
    }
    for (int i = 0; i < SHM_CONNECTION_SEGMENTS + 3; i++) {
        assert_true(shm_connection_view(fixture->served, &view));
        assert_int_equal(((const char *)view.payload)[98], i);
        assert_int_equal(view.shm_segment != NULL, i < SHM_CONNECTION_SEGMENTS);
        shm_connection_release(fixture->served);
    }
}

TEST(connecting_to_an_unknown_name_fails) {
    char text[128];
    assert_int_equal(shm_endpoint_connect(fixture->client, "capstan-none", text,
                                          sizeof text),
                     0);
    assert_contains(text, "not on this host");
}

/* In a child: a client that floods the server until it is killed. */
static void flood(struct shm_fixture *fixture) {
    struct shm_endpoint *endpoint = shm_endpoint_open(&shm_fixture_settings);
    char text[128];
    uint32_t number =
        shm_endpoint_connect(endpoint, fixture->name, text, sizeof text);
    static unsigned char bytes[9999];
    for (;;) {
        struct shm_connection *connection = shm_endpoint_find(endpoint, number);
        struct shm_connection_payload payload = {bytes, sizeof bytes, NULL};
        if (!shm_fixture_is_open(connection) ||
            !shm_connection_send(connection, "flood", 5, &payload))
            shm_fixture_run_once(endpoint);
    }
}

TEST(a_killed_client_is_dropped) {
    struct shm_endpoint_message message;
    unsigned read = 0;
    pid_t child = fork();
    if (!child)
        flood(fixture);
    shm_fixture_await_client(fixture);
    while (read < 1000) {
        if (shm_endpoint_view(fixture->server, &message)) {
            shm_connection_release(message.shm_connection);
            read++;
        } else {
            shm_fixture_run_once(fixture->server);
        }
    }
    struct shm_segment *segment =
        shm_segment_open(4096, SHM_SEGMENT_OWNER_WRITES);
    struct buffer *buffer = buffer_open_in(segment, 0, 64, NULL, NULL);
    struct shm_connection_payload payload = {buffer_data(buffer), 64, buffer};
    assert_true(shm_connection_send(shm_fixture_accepted(fixture), "held", 4,
                                    &payload));
    assert_false(buffer_is_unique(buffer));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    shm_fixture_expect_dropped(fixture, NULL);
    assert_true(buffer_is_unique(buffer));
    buffer_release(&buffer);
    shm_segment_release(&segment);
}

TEST(a_killed_server_is_detected) {
    char text[128], name[SHM_ENDPOINT_NAME];
    shm_endpoint_name(name, message_random());
    int ready = eventfd(0, EFD_CLOEXEC);
    pid_t child = fork();
    if (!child) {
        struct shm_endpoint *endpoint =
            shm_endpoint_open(&shm_fixture_settings);
        shm_endpoint_listen(endpoint, name);
        eventfd_write(ready, 1);
        for (;;)
            shm_fixture_run_once(endpoint);
    }
    eventfd_t count;
    eventfd_read(ready, &count);
    close(ready);
    uint32_t number =
        shm_endpoint_connect(fixture->client, name, text, sizeof text);
    while (!shm_fixture_is_open(shm_endpoint_find(fixture->client, number)))
        shm_fixture_run_once(fixture->client);
    send_bytes(shm_endpoint_find(fixture->client, number), 1, 5000);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    int64_t deadline = time_now() + SHM_FIXTURE_DEADLINE;
    while (shm_endpoint_find(fixture->client, number)) {
        assert_true(time_now() < deadline);
        shm_fixture_run_once(fixture->client);
    }
    assert_int_equal(
        shm_endpoint_connect(fixture->client, name, text, sizeof text), 0);
}

/* A child waits for a bell that only rings when it sleeps. */
TEST(a_sleeping_peer_is_woken) {
    pid_t child = fork();
    if (!child) {
        struct shm_endpoint *endpoint =
            shm_endpoint_open(&shm_fixture_settings);
        struct shm_endpoint_message message;
        char text[128];
        shm_endpoint_connect(endpoint, fixture->name, text, sizeof text);
        for (;;) {
            struct pollfd item = {shm_endpoint_descriptor(endpoint), POLLIN, 0};
            shm_endpoint_prepare_wait(endpoint);
            poll(&item, 1, -1);
            shm_endpoint_progress(endpoint, time_now());
            while (shm_endpoint_view(endpoint, &message)) {
                shm_connection_release(message.shm_connection);
                shm_connection_send(message.shm_connection, "pong", 4, NULL);
            }
        }
    }
    struct shm_endpoint_message message;
    shm_fixture_await_client(fixture);
    while (!shm_fixture_is_open(shm_fixture_accepted(fixture)))
        shm_fixture_run_once(fixture->server);
    struct shm_connection *connection = shm_fixture_accepted(fixture);
    for (int i = 0; i < 20000; i++) {
        int64_t deadline = time_now() + SHM_FIXTURE_DEADLINE;
        assert_true(shm_connection_send(connection, "ping", 4, NULL));
        while (!shm_endpoint_view(fixture->server, &message)) {
            struct pollfd item = {shm_endpoint_descriptor(fixture->server),
                                  POLLIN, 0};
            shm_endpoint_prepare_wait(fixture->server);
            assert_true(poll(&item, 1, 60000) == 1);
            shm_endpoint_progress(fixture->server, time_now());
            assert_true(time_now() < deadline);
        }
        shm_connection_release(message.shm_connection);
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

TEST(nothing_is_left_in_the_file_system) {
    shm_fixture_connect(fixture);
    assert_true(count_lines("/proc/self/maps", "/memfd:") > 0);
    assert_int_equal(count_lines("/proc/self/maps", "/dev/shm/"), 0);
    shm_endpoint_close(&fixture->client);
    shm_endpoint_close(&fixture->server);
    assert_int_equal(count_lines("/proc/net/unix", fixture->name), 0);
}
