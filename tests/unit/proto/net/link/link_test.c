/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/net/link/link.h"

#include "proto/base/time.h"
#include "proto/net/link/link_parts.h"
#include "tests/cluster/strangers.h"
#include "tests/lib/wire_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void a_name_inside_is_free_once_its_link_is_closed(void **state) {
    struct wire_fixture *fixture = *state;
    static const struct link_settings settings = {.max_frame = 100};
    for (int i = 0; i < 100; i++) {
        struct link *link;
        struct failure why;
        assert_int_equal(
            link_open(&link, fixture->zmq, LINK_SERVER, &settings, &why), 0);
        if (link_bind_inside(link, "name", &why))
            fail_msg("time %d: %s", i, why.text);
        link_close(&link);
    }
}

/* A raw DEALER that may send what a link would not. NAME: its own, or NULL. */
static void *raw_socket(struct wire_fixture *fixture, const char *name,
                        size_t size) {
    char endpoint[80];
    int linger = 0;
    void *socket = zmq_socket(fixture->zmq, ZMQ_DEALER);
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    if (name)
        zmq_setsockopt(socket, ZMQ_ROUTING_ID, name, size);
    snprintf(endpoint, sizeof endpoint, "tcp://%s", fixture->address);
    assert_int_equal(zmq_connect(socket, endpoint), 0);
    return socket;
}

static void header_and_payload_arrive_both_ways(void **state) {
    struct wire_fixture *fixture = *state;
    struct link_frame frame;
    uint32_t peer = wire_fixture_connect(fixture);
    wire_fixture_send(fixture->client, 0, "push", "floats");
    wire_fixture_view(fixture->server, &frame);
    assert_int_equal(frame.peer, peer);
    assert_int_equal(frame.payload.size, 6);
    assert_memory_equal(frame.payload.data, "floats", 6);
    link_release(&frame);
    wire_fixture_send(fixture->server, peer, "weights", NULL);
    wire_fixture_view(fixture->client, &frame);
    assert_int_equal(frame.payload.size, 0);
    link_release(&frame);
}

static void a_server_tells_its_peers_apart(void **state) {
    struct wire_fixture *fixture = *state;
    uint32_t peer = wire_fixture_connect(fixture);
    struct link *other = wire_fixture_client(fixture);
    struct link_frame frame;
    wire_fixture_send(other, 0, "other", NULL);
    wire_fixture_view(fixture->server, &frame);
    assert_int_not_equal(frame.peer, peer);
    wire_fixture_send(fixture->server, frame.peer, "for the other", NULL);
    wire_fixture_send(fixture->server, peer, "for the first", NULL);
    link_release(&frame);
    wire_fixture_expect(other, "for the other");
    wire_fixture_expect(fixture->client, "for the first");
    link_close(&other);
}

enum { MANY = 300 };

/* RAW says so, is answered by the number it came with, and hears its own. */
static void expect_own_answer(struct wire_fixture *fixture, void *raw) {
    static int said;
    char text[32], heard[32] = "";
    int limit = 20000;
    struct link_frame frame;
    snprintf(text, sizeof text, "%d", said++);
    zmq_setsockopt(raw, ZMQ_RCVTIMEO, &limit, sizeof limit);
    zmq_send(raw, text, strlen(text), 0);
    wire_fixture_view(fixture->server, &frame);
    wire_fixture_send(fixture->server, frame.peer, text, NULL);
    link_release(&frame);
    assert_int_equal(zmq_recv(raw, heard, sizeof heard, 0), strlen(text));
    assert_string_equal(heard, text);
}

static void each_of_many_connections_in_turn_is_answered(void **state) {
    struct wire_fixture *fixture = *state;
    for (int i = 0; i < MANY; i++) {
        void *raw = raw_socket(fixture, NULL, 0);
        expect_own_answer(fixture, raw);
        zmq_close(raw);
    }
}

/* Who speaks first came last. */
static void each_of_many_connections_at_once_is_answered(void **state) {
    struct wire_fixture *fixture = *state;
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

static void roles_of_one_process_meet_inside(void **state) {
    struct wire_fixture *fixture = *state;
    struct link_settings settings = {.max_frame = 64, .receive_frames = 8};
    struct failure why;
    struct link *server, *client;
    assert_int_equal(
        link_open(&server, fixture->zmq, LINK_SERVER, &settings, &why), 0);
    assert_int_equal(
        link_open(&client, fixture->zmq, LINK_CLIENT, &settings, &why), 0);
    assert_int_equal(link_connect_inside(client, "here", &why), 0);
    assert_int_equal(link_bind_inside(server, "here", &why), 0);
    assert_int_equal(link_port(server), 0);
    wire_fixture_send(client, 0, "hello", "payload");
    wire_fixture_expect(server, "hello");
    link_close(&client);
    link_close(&server);
    assert_null(server);
}

static void a_kept_payload_outlives_its_frame(void **state) {
    struct wire_fixture *fixture = *state;
    struct link_frame frame;
    struct link_held held;
    wire_fixture_connect(fixture);
    wire_fixture_send(fixture->client, 0, "push", "floats");
    wire_fixture_view(fixture->server, &frame);
    link_keep(&frame, &held);
    assert_int_equal(frame.payload.size, 0);
    link_release(&frame);
    wire_fixture_send(fixture->client, 0, "push", "others");
    wire_fixture_view(fixture->server, &frame);
    assert_int_equal(held.payload.size, 6);
    assert_memory_equal(held.payload.data, "floats", 6);
    link_let_go(&held);
    link_keep(&frame, &held);
    link_release(&frame);
    assert_memory_equal(held.payload.data, "others", 6);
    link_let_go(&held);
}

static void a_port_in_use_is_named(void **state) {
    struct wire_fixture *fixture = *state;
    struct link_settings settings = {.max_frame = 64, .receive_frames = 8};
    struct link *second;
    struct failure why;
    char number[16];
    assert_int_equal(
        link_open(&second, fixture->zmq, LINK_SERVER, &settings, &why), 0);
    assert_int_equal(link_bind(second, fixture->port, &why), STATUS_RETRY);
    snprintf(number, sizeof number, "port %u ", fixture->port);
    assert_non_null(strstr(why.text, number));
    link_close(&second);
}

static void an_address_that_is_none_is_an_error(void **state) {
    struct wire_fixture *fixture = *state;
    struct failure why;
    assert_int_equal(link_connect(fixture->client, "nowhere", &why),
                     STATUS_RETRY);
    assert_int_equal(link_connect_inside(fixture->client, "", &why),
                     STATUS_FAILED);
}

static void an_earlier_address_is_left(void **state) {
    struct wire_fixture *fixture = *state;
    struct failure why;
    assert_int_equal(link_connect(fixture->client, "127.0.0.1:1", &why), 0);
    wire_fixture_connect(fixture);
    assert_int_equal(link_connect(fixture->client, fixture->address, &why), 0);
    wire_fixture_send(fixture->client, 0, "still connected", NULL);
    wire_fixture_expect(fixture->server, "still connected");
}

static void a_message_of_three_parts_costs_its_connection(void **state) {
    struct wire_fixture *fixture = *state;
    wire_fixture_connect(fixture);
    void *raw = raw_socket(fixture, NULL, 0);
    for (int part = 0; part < 3; part++)
        zmq_send(raw, "part", 4, part < 2 ? ZMQ_SNDMORE : 0);
    zmq_send(raw, "more", 4, 0);
    wire_fixture_silent(fixture->server);
    wire_fixture_send(fixture->client, 0, "unharmed", NULL);
    wire_fixture_expect(fixture->server, "unharmed");
    zmq_close(raw);
}

static void a_banned_peer_is_not_read_others_are(void **state) {
    struct wire_fixture *fixture = *state;
    uint32_t peer = wire_fixture_connect(fixture);
    struct link *other = wire_fixture_client(fixture);
    link_ban(fixture->server, peer);
    wire_fixture_send(fixture->client, 0, "unheard", NULL);
    wire_fixture_send(other, 0, "heard", NULL);
    wire_fixture_expect(fixture->server, "heard");
    wire_fixture_silent(fixture->server);
    link_close(&other);
}

/* Any name but a counter's with a zero before it is a stranger's own. */
static void who_names_itself_after_another_is_not_read(void **state) {
    struct wire_fixture *fixture = *state;
    uint32_t peer = wire_fixture_connect(fixture);
    char name[5] = {1};
    memcpy(name + 1, &peer, sizeof peer);
    void *raw = raw_socket(fixture, name, sizeof name);
    zmq_send(raw, "forged", 6, 0);
    wire_fixture_silent(fixture->server);
    zmq_close(raw);
    raw = raw_socket(fixture, "another length", 14);
    zmq_send(raw, "forged", 6, 0);
    wire_fixture_silent(fixture->server);
    zmq_close(raw);
    wire_fixture_send(fixture->client, 0, "true", NULL);
    wire_fixture_expect(fixture->server, "true");
}

static void a_frame_beyond_the_limit_is_never_delivered(void **state) {
    struct wire_fixture *fixture = *state;
    wire_fixture_connect(fixture);
    void *raw = raw_socket(fixture, NULL, 0);
    char *huge = calloc(1, WIRE_FIXTURE_MAX_FRAME + 1);
    zmq_send(raw, huge, WIRE_FIXTURE_MAX_FRAME + 1, 0);
    wire_fixture_silent(fixture->server);
    zmq_close(raw);
    raw = raw_socket(fixture, NULL, 0);
    zmq_send(raw, huge, WIRE_FIXTURE_MAX_FRAME, 0);
    struct link_frame frame;
    wire_fixture_view(fixture->server, &frame);
    assert_int_equal(frame.header.size, WIRE_FIXTURE_MAX_FRAME);
    link_release(&frame);
    zmq_close(raw);
    free(huge);
}

/* The server takes few messages before TCP holds their senders back. */
static uint16_t take_few(struct wire_fixture *fixture) {
    static const struct link_settings few = {.max_frame = 100,
                                             .receive_frames = 2};
    struct failure why;
    link_close(&fixture->server);
    if (link_open(&fixture->server, fixture->zmq, LINK_SERVER, &few, &why) ||
        link_bind(fixture->server, 0, &why))
        fail_msg("%s", why.text);
    return link_port(fixture->server);
}

/* Their queues are full when one goes and the other is silent for long. */
static void who_goes_while_nobody_reads_does_no_harm(void **state) {
    enum { SENT = 50, WHILE_MS = 500, LONG_MS = 4000 };
    struct wire_fixture *fixture = *state;
    uint16_t port = take_few(fixture);
    struct link_frame frame;
    int stays = strangers_chat(port, "x", 1, SENT);
    int goes = strangers_chat(port, "x", 1, SENT);
    zmq_poll(NULL, 0, WHILE_MS); /* what is taken has come */
    strangers_reset(goes);
    zmq_poll(NULL, 0, LONG_MS);
    unsigned read_of_each[2] = {0}, most = 0;
    uint32_t first = UINT32_MAX;
    while (most < SENT) {
        wire_fixture_view(fixture->server, &frame);
        first = first == UINT32_MAX ? frame.peer : first;
        unsigned count = ++read_of_each[frame.peer != first];
        most = count > most ? count : most;
        link_release(&frame);
    }
    close(stays);
}

/* A ping could come when the server's queue is full, and end it. */
static void who_has_nothing_to_say_sends_nothing(void **state) {
    enum { LONG_MS = 1500 };
    struct wire_fixture *fixture = *state;
    struct failure why;
    uint16_t port;
    char address[32];
    int listener = strangers_listen(&port);
    snprintf(address, sizeof address, "127.0.0.1:%u", port);
    assert_int_equal(link_connect(fixture->client, address, &why), STATUS_OK);
    int connection = strangers_welcome(listener);
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
static int64_t linger(struct wire_fixture *fixture, bool traffic) {
    struct link_frame frame;
    int64_t shortest = TIME_S;
    for (int i = 0; i < 10; i++) {
        if (traffic) {
            wire_fixture_send(fixture->client, 0, "push", NULL);
            wire_fixture_view(fixture->server, &frame);
            link_release(&frame);
        }
        int64_t start = awake();
        assert_false(link_linger(&fixture->server, 1));
        if (awake() - start < shortest)
            shortest = awake() - start;
    }
    return shortest;
}

static void who_lingers_does_so_briefly_and_only_after_traffic(void **state) {
    struct wire_fixture *fixture = *state;
    wire_fixture_connect(fixture);
    assert_true(linger(fixture, true) < TIME_MS / 2);
    assert_true(linger(fixture, false) < 40 * TIME_US);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        WIRE_FIXTURE_TEST(header_and_payload_arrive_both_ways),
        WIRE_FIXTURE_TEST(a_server_tells_its_peers_apart),
        WIRE_FIXTURE_TEST(each_of_many_connections_in_turn_is_answered),
        WIRE_FIXTURE_TEST(each_of_many_connections_at_once_is_answered),
        WIRE_FIXTURE_TEST(roles_of_one_process_meet_inside),
        WIRE_FIXTURE_TEST(a_kept_payload_outlives_its_frame),
        WIRE_FIXTURE_TEST(a_port_in_use_is_named),
        WIRE_FIXTURE_TEST(an_address_that_is_none_is_an_error),
        WIRE_FIXTURE_TEST(an_earlier_address_is_left),
        WIRE_FIXTURE_TEST(a_message_of_three_parts_costs_its_connection),
        WIRE_FIXTURE_TEST(a_banned_peer_is_not_read_others_are),
        WIRE_FIXTURE_TEST(who_names_itself_after_another_is_not_read),
        WIRE_FIXTURE_TEST(a_frame_beyond_the_limit_is_never_delivered),
        WIRE_FIXTURE_TEST(who_goes_while_nobody_reads_does_no_harm),
        WIRE_FIXTURE_TEST(who_has_nothing_to_say_sends_nothing),
        WIRE_FIXTURE_TEST(a_name_inside_is_free_once_its_link_is_closed),
        WIRE_FIXTURE_LANE_TEST(header_and_payload_arrive_both_ways),
        WIRE_FIXTURE_LANE_TEST(a_server_tells_its_peers_apart),
        WIRE_FIXTURE_LANE_TEST(a_kept_payload_outlives_its_frame),
        WIRE_FIXTURE_LANE_TEST(a_banned_peer_is_not_read_others_are),
        WIRE_FIXTURE_LANE_TEST(a_message_of_three_parts_costs_its_connection),
        WIRE_FIXTURE_LANE_TEST(who_names_itself_after_another_is_not_read),
        WIRE_FIXTURE_TEST(who_lingers_does_so_briefly_and_only_after_traffic),
        WIRE_FIXTURE_LANE_TEST(
            who_lingers_does_so_briefly_and_only_after_traffic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
