/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct link_fixture *fixture

#include "core/net/link/link.h"

#include "core/base/time.h"
#include "core/net/link/link_internal.h"
#include "tests/cluster/bad_peers.h"
#include "tests/lib/link_fixture.h"
#include "tests/lib/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

FIXTURE(link_fixture_setup, link_fixture_teardown);

TEST(an_inproc_name_is_free_once_its_link_is_closed) {
    static const struct link_settings settings = {.max_frame = 100};
    for (int i = 0; i < 100; i++) {
        struct link *link;
        assert_ok(
            link_open(&link, fixture->zmq, LINK_SERVER, &settings, &failure));
        if (link_bind_inproc(link, "name", &failure))
            fail_msg("time %d: %s", i, failure.text);
        link_close(&link);
    }
}

/* The next one has the memory of the one before, mostly. */
TEST(a_link_opened_after_another_sees_its_connection) {
    static const struct link_settings settings = {.max_frame = 100};
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE, since;
    for (int i = 0; i < 100; i++) {
        struct link *link;
        assert_ok(
            link_open(&link, fixture->zmq, LINK_CLIENT, &settings, &failure));
        assert_ok(link_connect(link, fixture->address, &failure));
        while (link_is_lost(link, &since))
            assert_true(time_now() < deadline);
        link_close(&link);
    }
}

/* A raw DEALER that may send what a link would not. NAME: its own, or NULL. */
static void *raw_socket(struct link_fixture *fixture, const char *name,
                        size_t size) {
    int none = 0;
    void *socket = zmq_socket(fixture->zmq, ZMQ_DEALER);
    zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none);
    if (name)
        zmq_setsockopt(socket, ZMQ_ROUTING_ID, name, size);
    assert_int_equal(zmq_connect(socket, textf("tcp://%s", fixture->address)),
                     0);
    return socket;
}

TEST(header_and_payload_arrive_both_ways) {
    struct link_frame frame;
    uint32_t peer = link_fixture_connect(fixture);
    link_fixture_send(fixture->client, 0, "push", "floats");
    link_fixture_receive(fixture->server_link, &frame);
    assert_int_equal(frame.peer, peer);
    assert_int_equal(frame.payload.size, 6);
    assert_memory_equal(frame.payload.data, "floats", 6);
    link_release(&frame);
    link_fixture_send(fixture->server_link, peer, "weights", NULL);
    link_fixture_receive(fixture->client, &frame);
    assert_int_equal(frame.payload.size, 0);
    link_release(&frame);
}

LINK_FIXTURE_SHM(header_and_payload_arrive_both_ways);

/* Both ends are of this process: what one sends the other receives. */
TEST(bytes_of_headers_and_payloads_are_counted_on_both_sides) {
    struct link_frame frame;
    uint32_t peer = link_fixture_connect(fixture);
    struct link_traffic before = link_traffic(), after;
    link_fixture_send(fixture->client, 0, "push", "floats");
    link_fixture_receive(fixture->server_link, &frame);
    link_release(&frame);
    after = link_traffic();
    assert_int_equal(after.sent - before.sent, strlen("pushfloats"));
    assert_int_equal(after.received - before.received, strlen("pushfloats"));
    link_fixture_send(fixture->server_link, peer, "weights", NULL);
    link_fixture_receive(fixture->client, &frame);
    link_release(&frame);
    after = link_traffic();
    assert_int_equal(after.sent - before.sent, strlen("pushfloatsweights"));
    assert_int_equal(after.received - before.received,
                     strlen("pushfloatsweights"));
}

LINK_FIXTURE_SHM(bytes_of_headers_and_payloads_are_counted_on_both_sides);

TEST(a_server_distinguishes_its_peers) {
    uint32_t peer = link_fixture_connect(fixture);
    struct link *other = link_fixture_client(fixture);
    struct link_frame frame;
    link_fixture_send(other, 0, "other", NULL);
    link_fixture_receive(fixture->server_link, &frame);
    assert_int_not_equal(frame.peer, peer);
    link_fixture_send(fixture->server_link, frame.peer, "for the other", NULL);
    link_fixture_send(fixture->server_link, peer, "for the first", NULL);
    link_release(&frame);
    link_fixture_expect(other, "for the other");
    link_fixture_expect(fixture->client, "for the first");
    link_close(&other);
}

LINK_FIXTURE_SHM(a_server_distinguishes_its_peers);

enum { MANY = 300 };

/* RAW says so, is answered by the number it came with, and hears its own. */
static void expect_own_answer(struct link_fixture *fixture, void *raw) {
    static int said;
    char text[32], heard[32] = "";
    int limit = 20000;
    struct link_frame frame;
    snprintf(text, sizeof text, "%d", said++);
    zmq_setsockopt(raw, ZMQ_RCVTIMEO, &limit, sizeof limit);
    zmq_send(raw, text, strlen(text), 0);
    link_fixture_receive(fixture->server_link, &frame);
    link_fixture_send(fixture->server_link, frame.peer, text, NULL);
    link_release(&frame);
    assert_int_equal(zmq_recv(raw, heard, sizeof heard, 0), strlen(text));
    assert_string_equal(heard, text);
}

TEST(each_of_many_connections_in_turn_is_answered) {
    for (int i = 0; i < MANY; i++) {
        void *raw = raw_socket(fixture, NULL, 0);
        expect_own_answer(fixture, raw);
        zmq_close(raw);
    }
}

/* Who speaks first came last. */
TEST(each_of_many_connections_at_once_is_answered) {
    struct rlimit before, most;
    void *raw[MANY];
    getrlimit(RLIMIT_NOFILE, &before);
    most = (struct rlimit){before.rlim_max, before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &most);
    for (int i = 0; i < MANY; i++)
        raw[i] = raw_socket(fixture, NULL, 0);
    for (int i = MANY - 1; i >= 0; i--)
        expect_own_answer(fixture, raw[i]);
    for (int i = 0; i < MANY; i++)
        expect_own_answer(fixture, raw[i]);
    for (int i = 0; i < MANY; i++)
        zmq_close(raw[i]);
    setrlimit(RLIMIT_NOFILE, &before);
}

TEST(roles_of_one_process_connect_over_inproc) {
    struct link_settings settings = {.max_frame = 64};
    struct link *server_link, *client;
    assert_ok(link_open(&server_link, fixture->zmq, LINK_SERVER, &settings,
                        &failure));
    assert_ok(
        link_open(&client, fixture->zmq, LINK_CLIENT, &settings, &failure));
    assert_ok(link_connect_inproc(client, "here", &failure));
    assert_ok(link_bind_inproc(server_link, "here", &failure));
    assert_int_equal(link_port(server_link), 0);
    link_fixture_send(client, 0, "hello", "payload");
    link_fixture_expect(server_link, "hello");
    link_close(&client);
    link_close(&server_link);
    assert_null(server_link);
}

TEST(a_kept_payload_outlives_its_frame) {
    struct link_frame frame;
    struct link_held held;
    link_fixture_connect(fixture);
    link_fixture_send(fixture->client, 0, "push", "floats");
    link_fixture_receive(fixture->server_link, &frame);
    link_hold(&frame, &held);
    assert_int_equal(frame.payload.size, 0);
    link_release(&frame);
    link_fixture_send(fixture->client, 0, "push", "others");
    link_fixture_receive(fixture->server_link, &frame);
    assert_int_equal(held.payload.size, 6);
    assert_memory_equal(held.payload.data, "floats", 6);
    link_release_held(&held);
    link_hold(&frame, &held);
    link_release(&frame);
    assert_memory_equal(held.payload.data, "others", 6);
    link_release_held(&held);
}

LINK_FIXTURE_SHM(a_kept_payload_outlives_its_frame);

TEST(a_port_in_use_is_named) {
    struct link_settings settings = {.max_frame = 64};
    struct link *second;
    assert_ok(
        link_open(&second, fixture->zmq, LINK_SERVER, &settings, &failure));
    assert_error(link_bind(second, fixture->port, &failure),
                 FAILURE_PORT_IN_USE);
    assert_contains(failure.text, textf("port %u ", fixture->port));
    link_close(&second);
}

TEST(an_invalid_address_is_an_error) {
    assert_error(link_connect(fixture->client, "nowhere", &failure),
                 FAILURE_CONNECTION_FAILED);
    assert_error(link_connect_inproc(fixture->client, "", &failure),
                 FAILURE_SYSTEM_REFUSED);
}

TEST(a_new_address_replaces_the_earlier_one) {
    assert_ok(link_connect(fixture->client, "127.0.0.1:1", &failure));
    link_fixture_connect(fixture);
    assert_ok(link_connect(fixture->client, fixture->address, &failure));
    link_fixture_send(fixture->client, 0, "still connected", NULL);
    link_fixture_expect(fixture->server_link, "still connected");
}

TEST(a_message_of_three_parts_closes_its_connection) {
    link_fixture_connect(fixture);
    void *raw = raw_socket(fixture, NULL, 0);
    for (int part = 0; part < 3; part++)
        zmq_send(raw, "part", 4, part < 2 ? ZMQ_SNDMORE : 0);
    zmq_send(raw, "more", 4, 0);
    link_fixture_expect_nothing(fixture->server_link);
    link_fixture_send(fixture->client, 0, "unharmed", NULL);
    link_fixture_expect(fixture->server_link, "unharmed");
    zmq_close(raw);
}

LINK_FIXTURE_SHM(a_message_of_three_parts_closes_its_connection);

TEST(only_a_banned_peer_is_not_read) {
    uint32_t peer = link_fixture_connect(fixture);
    struct link *other = link_fixture_client(fixture);
    link_ban(fixture->server_link, peer);
    link_fixture_send(fixture->client, 0, "unheard", NULL);
    link_fixture_send(other, 0, "heard", NULL);
    link_fixture_expect(fixture->server_link, "heard");
    link_fixture_expect_nothing(fixture->server_link);
    link_close(&other);
}

LINK_FIXTURE_SHM(only_a_banned_peer_is_not_read);

/* Any name but a counter's with a zero before it is a stranger's own. */
TEST(a_peer_with_anothers_identity_is_not_read) {
    uint32_t peer = link_fixture_connect(fixture);
    char name[5] = {1};
    memcpy(name + 1, &peer, sizeof peer);
    void *raw = raw_socket(fixture, name, sizeof name);
    zmq_send(raw, "forged", 6, 0);
    link_fixture_expect_nothing(fixture->server_link);
    zmq_close(raw);
    raw = raw_socket(fixture, "another length", 14);
    zmq_send(raw, "forged", 6, 0);
    link_fixture_expect_nothing(fixture->server_link);
    zmq_close(raw);
    link_fixture_send(fixture->client, 0, "true", NULL);
    link_fixture_expect(fixture->server_link, "true");
}

LINK_FIXTURE_SHM(a_peer_with_anothers_identity_is_not_read);

TEST(a_frame_beyond_the_limit_is_never_delivered) {
    link_fixture_connect(fixture);
    void *raw = raw_socket(fixture, NULL, 0);
    char *huge = calloc(1, LINK_FIXTURE_MAX_FRAME + 1);
    zmq_send(raw, huge, LINK_FIXTURE_MAX_FRAME + 1, 0);
    link_fixture_expect_nothing(fixture->server_link);
    zmq_close(raw);
    raw = raw_socket(fixture, NULL, 0);
    zmq_send(raw, huge, LINK_FIXTURE_MAX_FRAME, 0);
    struct link_frame frame;
    link_fixture_receive(fixture->server_link, &frame);
    assert_int_equal(frame.header.size, LINK_FIXTURE_MAX_FRAME);
    link_release(&frame);
    zmq_close(raw);
    free(huge);
}

/* The server takes few messages before TCP holds their senders back. */
static uint16_t take_few(struct link_fixture *fixture) {
    static const struct link_settings few = {.max_frame = 100};
    link_close(&fixture->server_link);
    if (link_open(&fixture->server_link, fixture->zmq, LINK_SERVER, &few,
                  &failure) ||
        link_bind(fixture->server_link, 0, &failure))
        fail_msg("%s", failure.text);
    return link_port(fixture->server_link);
}

/* Their queues are full when one goes and the other is silent for long. */
TEST(a_peer_that_leaves_unread_does_no_harm) {
    enum { SENT = 50, WHILE_MS = 500, LONG_MS = 4000 };
    uint16_t port = take_few(fixture);
    struct link_frame frame;
    int stays = bad_peers_send_unread(port, "x", 1, SENT);
    int goes = bad_peers_send_unread(port, "x", 1, SENT);
    zmq_poll(NULL, 0, WHILE_MS); /* what is taken has come */
    bad_peers_reset(goes);
    zmq_poll(NULL, 0, LONG_MS);
    unsigned read_of_each[2] = {0}, most = 0;
    uint32_t first = UINT32_MAX;
    while (most < SENT) {
        link_fixture_receive(fixture->server_link, &frame);
        first = first == UINT32_MAX ? frame.peer : first;
        unsigned count = ++read_of_each[frame.peer != first];
        most = count > most ? count : most;
        link_release(&frame);
    }
    close(stays);
}

/* A ping could come when the server's queue is full, and end it. */
TEST(an_idle_link_sends_nothing) {
    enum { LONG_MS = 1500 };
    uint16_t port;
    int listener = bad_peers_listen(&port);
    assert_ok(
        link_connect(fixture->client, textf("127.0.0.1:%u", port), &failure));
    int connection = bad_peers_accept(listener);
    struct pollfd word = {connection, POLLIN, 0};
    assert_int_equal(poll(&word, 1, LONG_MS), 0);
    close(connection);
    close(listener);
}

/* Time that this thread has had a core: what waiting awake costs others. */
static int64_t awake(void) {
    struct timespec spent;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    return spent.tv_sec * TIME_S + spent.tv_nsec;
}

/* The shortest time awake of ten calls, with a frame before each when there is
 * TRAFFIC. */
static int64_t busy_poll(struct link_fixture *fixture, bool traffic) {
    struct link_frame frame;
    int64_t shortest = TIME_S;
    for (int i = 0; i < 10; i++) {
        if (traffic) {
            link_fixture_send(fixture->client, 0, "push", NULL);
            link_fixture_receive(fixture->server_link, &frame);
            link_release(&frame);
        }
        int64_t start = awake();
        assert_false(link_busy_poll(&fixture->server_link, 1));
        if (awake() - start < shortest)
            shortest = awake() - start;
    }
    return shortest;
}

TEST(busy_polling_is_brief_and_only_after_traffic) {
    link_fixture_connect(fixture);
    assert_true(busy_poll(fixture, true) < TIME_MS / 2);
    assert_true(busy_poll(fixture, false) < 40 * TIME_US);
}

LINK_FIXTURE_SHM(busy_polling_is_brief_and_only_after_traffic);
