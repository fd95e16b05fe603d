#include "proto/wire/link.h"

#include "proto/base/time.h"
#include "proto/wire/link_parts.h"
#include "tests/wire_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

static void nothing_leaves_without_a_connection(void **state) {
    struct wire_fixture *fixture = *state;
    struct link_payload payload;
    assert_false(link_commit(fixture->client, 0, "x", 1, NULL));
    assert_true(link_reserve(fixture->client, 0, &payload, 100));
    assert_false(link_commit(fixture->client, 0, "x", 1, &payload));
    assert_false(link_commit(fixture->server, 12345, "x", 1, NULL));
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

static void read_all(int stranger, unsigned char *bytes, size_t size) {
    struct timeval limit = {20, 0};
    setsockopt(stranger, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(recv(stranger, bytes, size, MSG_WAITALL), size);
}

/* The greeting of ZMTP 3.0 and a NULL handshake, then BYTES. */
static int speak(uint16_t port, const void *bytes, size_t size) {
    static const unsigned char greeting[64] = {
        0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'};
    static const unsigned char ready[] = {
        4,   41,  5,   'R', 'E', 'A', 'D', 'Y', 11,  'S', 'o',
        'c', 'k', 'e', 't', '-', 'T', 'y', 'p', 'e', 0,   0,
        0,   6,   'D', 'E', 'A', 'L', 'E', 'R', 8,   'I', 'd',
        'e', 'n', 't', 'i', 't', 'y', 0,   0,   0,   0};
    int stranger = wire_fixture_stranger(port);
    assert_int_equal(write(stranger, greeting, sizeof greeting),
                     sizeof greeting);
    assert_int_equal(write(stranger, ready, sizeof ready), sizeof ready);
    unsigned char theirs[256];
    read_all(stranger, theirs, sizeof greeting);
    read_all(stranger, theirs, 2);
    read_all(stranger, theirs + 2, theirs[1]);
    assert_int_equal(write(stranger, bytes, size), size);
    return stranger;
}

/* Reads until the other side hangs up. */
static void await_end(int stranger) {
    char bytes[512];
    struct timeval limit = {20, 0};
    setsockopt(stranger, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ssize_t got;
    while ((got = read(stranger, bytes, sizeof bytes)) > 0)
        ;
    assert_true(got == 0 || errno == ECONNRESET);
    close(stranger);
}

static void four_gib_by_its_header_cost_the_connection(void **state) {
    struct wire_fixture *fixture = *state;
    static const unsigned char four_gib[] = {2, 0, 0, 0, 1, 0, 0, 0, 0, 'x'};
    wire_fixture_connect(fixture);
    int stranger = speak(fixture->port, "\0\5small", 7);
    wire_fixture_expect(fixture->server, "small");
    close(stranger);
    await_end(speak(fixture->port, four_gib, sizeof four_gib));
    wire_fixture_send(fixture->client, 0, "unharmed", NULL);
    wire_fixture_expect(fixture->server, "unharmed");
}

static void a_web_request_is_one_word_about_a_stranger(void **state) {
    struct wire_fixture *fixture = *state;
    static const char request[] = "GET / HTTP/1.1\r\nHost: here\r\nUser-Agent: "
                                  "curl/7.88.1\r\nAccept: */*\r\n\r\n";
    char text[128];
    wire_fixture_connect(fixture);
    int stranger = wire_fixture_stranger(fixture->port);
    assert_int_equal(write(stranger, request, strlen(request)),
                     strlen(request));
    shutdown(stranger, SHUT_WR);
    wire_fixture_stranger_noticed(fixture->server, text, sizeof text);
    assert_false(link_stranger(fixture->server, text, sizeof text));
    close(stranger);
    wire_fixture_send(fixture->client, 0, "unharmed", NULL);
    wire_fixture_expect(fixture->server, "unharmed");
}

/* ZMTP 1.0, which takes nearly every byte for its own: an empty name and a
 * message of five bytes, each after its length and a zero. */
static void a_message_of_the_oldest_protocol_is_not_taken(void **state) {
    struct wire_fixture *fixture = *state;
    static const unsigned char old[] = "\x01\x00\x06\x00hello";
    char text[128];
    int stranger = wire_fixture_stranger(fixture->port);
    assert_int_equal(write(stranger, old, sizeof old - 1), sizeof old - 1);
    wire_fixture_stranger_noticed(fixture->server, text, sizeof text);
    assert_string_equal(text, "said nothing we understand");
    await_end(stranger);
}

static void who_connects_and_is_silent_is_noticed_and_dropped(void **state) {
    struct wire_fixture *fixture = *state;
    char text[128];
    int stranger = wire_fixture_stranger(fixture->port);
    wire_fixture_stranger_noticed(fixture->server, text, sizeof text);
    assert_string_equal(text, "said nothing we understand");
    await_end(stranger);
    assert_false(link_stranger(fixture->server, text, sizeof text));
}

static void a_client_watches_for_no_strangers(void **state) {
    struct wire_fixture *fixture = *state;
    char text[16];
    assert_false(link_stranger(fixture->client, text, sizeof text));
}

static void the_same_is_said_of_peers_once(void **state) {
    struct wire_fixture *fixture = *state;
    assert_true(link_may_say(fixture->server, "one thing"));
    assert_false(link_may_say(fixture->server, "one thing"));
    assert_true(link_may_say(fixture->server, "another"));
    assert_true(link_may_say(fixture->client, "one thing"));
}

static void peers_cannot_fill_a_log_with_different_things(void **state) {
    struct wire_fixture *fixture = *state;
    char text[32];
    unsigned said = 0;
    for (int i = 0; i < 1000; i++) {
        snprintf(text, sizeof text, "%d bytes", i);
        said += link_may_say(fixture->server, text);
    }
    assert_int_equal(said, 8);
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

/* A client without a server of its run on this host. */
static void who_is_not_on_this_host_is_reached_over_tcp(void **state) {
    struct wire_fixture *fixture = *state;
    struct failure why;
    char text[128];
    link_prefer_lane(fixture->client, 1, (uint64_t)getpid());
    assert_true(link_way(fixture->client, text, sizeof text));
    assert_non_null(strstr(text, "over TCP: it is not on this host"));
    assert_false(link_way(fixture->client, text, sizeof text));
    assert_int_equal(link_connect(fixture->client, fixture->address, &why), 0);
    wire_fixture_send(fixture->client, 0, "hello", NULL);
    wire_fixture_expect(fixture->server, "hello");
}

/* Steps CLIENT until it says how its messages go now. */
static void await_way(struct link *client, const char *expected) {
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
    zmq_pollitem_t items[LINK_POLL_ITEMS];
    char text[128];
    link_renewed(client);
    while (!link_way(client, text, sizeof text)) {
        assert_true(time_now() < deadline);
        zmq_poll(items, link_poll_items(client, items), 20);
        link_renewed(client);
    }
    assert_non_null(strstr(text, expected));
}

static void who_loses_a_young_lane_goes_by_tcp(void **state) {
    struct wire_fixture *fixture = *state;
    char text[128];
    uint32_t peer = wire_fixture_connect(fixture);
    assert_true(link_way(fixture->client, text, sizeof text));
    assert_string_equal(text, "over shared memory");
    link_ban(fixture->server, peer);
    wire_fixture_silent(fixture->server);
    await_way(fixture->client, "over TCP: ");
    wire_fixture_send(fixture->client, 0, "hello", NULL);
    wire_fixture_expect(fixture->server, "hello");
    assert_false(link_commit(fixture->server, peer, "x", 1, NULL));
}

/* A lane that has held is called again; who ended has no name to be called by,
 * as if it had never been on this host. */
static void who_loses_an_old_lane_to_an_end_is_told_of_the_end(void **state) {
    struct wire_fixture *fixture = *state;
    wire_fixture_connect(fixture);
    await_way(fixture->client, "over shared memory");
    fixture->client->lane_since -= 60 * TIME_S;
    link_close(&fixture->server);
    await_way(fixture->client, "over TCP: the other side has left");
}

/* The server's end of a lane never answers. */
static void who_is_not_answered_in_a_second_goes_by_tcp(void **state) {
    struct wire_fixture *fixture = *state;
    struct failure why;
    assert_int_equal(link_connect(fixture->client, fixture->address, &why), 0);
    wire_fixture_prefer_lane(fixture);
    assert_false(link_commit(fixture->client, 0, "x", 1, NULL));
    await_way(fixture->client, "over TCP: no answer within 1 s");
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

static void a_client_that_reads_nothing_is_left(void **state) {
    struct wire_fixture *fixture = *state;
    uint32_t peer = wire_fixture_connect(fixture);
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
    struct link_frame frame;
    char text[128];
    wire_fixture_send(fixture->server, peer, "unread", NULL);
    while (!link_stranger(fixture->server, text, sizeof text)) {
        wire_fixture_silent(fixture->server);
        assert_true(time_now() < deadline);
    }
    assert_non_null(strstr(text, "has read nothing for 3 s"));
    assert_false(link_commit(fixture->server, peer, "x", 1, NULL));
    assert_true(link_view(fixture->client, &frame));
    link_release(&frame);
}

#define LINK_TEST(f)                                                           \
    cmocka_unit_test_setup_teardown(f, wire_fixture_setup,                     \
                                    wire_fixture_teardown)

#define LANE_TEST(f)                                                           \
    {                                                                          \
        .name = #f "_over_shared_memory", .test_func = f,                      \
        .setup_func = wire_fixture_setup_lane,                                 \
        .teardown_func = wire_fixture_teardown                                 \
    }

/* What the kernel queues for the connections of PORT in this process, their
 * sums by side. */
static void kernel_buffers(uint16_t port, int *server, int *client) {
    *server = *client = 0;
    for (int fd = 0; fd < 1024; fd++) {
        struct sockaddr_in6 own = {0}, other = {0};
        socklen_t size = sizeof own, others = sizeof other, length = sizeof fd;
        int bytes = 0;
        if (getsockname(fd, (struct sockaddr *)&own, &size) ||
            getpeername(fd, (struct sockaddr *)&other, &others) ||
            getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &length))
            continue;
        if (ntohs(own.sin6_port) == port)
            *server += bytes;
        if (ntohs(other.sin6_port) == port)
            *client += bytes;
    }
}

/* A rate so low that the kernel's least is more. */
static void a_known_rate_bounds_what_the_kernel_queues(void **state) {
    struct wire_fixture *fixture = *state;
    const int little = 2 * (12 << 10);
    int server, client;
    link_pace(fixture->server, 0.001, 2);
    link_pace(fixture->client, -1, 2);
    link_pace(fixture->client, NAN, 2);
    link_pace(fixture->client, INFINITY, 2);
    link_pace(fixture->client, 0.001, 0);
    wire_fixture_connect(fixture);
    kernel_buffers(fixture->port, &server, &client);
    assert_in_range(server, 1, little);
    assert_true(client > little);
    link_pace(fixture->client, 0.001, 2);
    wire_fixture_connect(fixture);
    kernel_buffers(fixture->port, &server, &client);
    assert_in_range(client, 1, little);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        LINK_TEST(header_and_payload_arrive_both_ways),
        LINK_TEST(a_server_tells_its_peers_apart),
        LINK_TEST(roles_of_one_process_meet_inside),
        LINK_TEST(nothing_leaves_without_a_connection),
        LINK_TEST(a_kept_payload_outlives_its_frame),
        LINK_TEST(a_borrowed_buffer_is_held_until_it_has_left),
        LINK_TEST(a_port_in_use_is_named),
        LINK_TEST(an_address_that_is_none_is_an_error),
        LINK_TEST(an_earlier_address_is_left),
        LINK_TEST(a_message_of_three_parts_costs_its_connection),
        LINK_TEST(a_banned_peer_is_not_read_others_are),
        LINK_TEST(who_names_itself_after_another_is_not_read),
        LINK_TEST(a_frame_beyond_the_limit_is_never_delivered),
        LINK_TEST(four_gib_by_its_header_cost_the_connection),
        LINK_TEST(a_web_request_is_one_word_about_a_stranger),
        LINK_TEST(a_name_inside_is_free_once_its_link_is_closed),
        LINK_TEST(a_message_of_the_oldest_protocol_is_not_taken),
        LINK_TEST(who_connects_and_is_silent_is_noticed_and_dropped),
        LINK_TEST(a_client_watches_for_no_strangers),
        LINK_TEST(the_same_is_said_of_peers_once),
        LINK_TEST(peers_cannot_fill_a_log_with_different_things),
        LANE_TEST(header_and_payload_arrive_both_ways),
        LANE_TEST(a_server_tells_its_peers_apart),
        LANE_TEST(nothing_leaves_without_a_connection),
        LANE_TEST(a_kept_payload_outlives_its_frame),
        LANE_TEST(a_borrowed_buffer_is_held_until_it_has_left),
        LANE_TEST(a_banned_peer_is_not_read_others_are),
        LANE_TEST(a_message_of_three_parts_costs_its_connection),
        LANE_TEST(who_names_itself_after_another_is_not_read),
        LANE_TEST(four_gib_by_its_header_cost_the_connection),
        LANE_TEST(a_web_request_is_one_word_about_a_stranger),
        LANE_TEST(a_borrowed_part_of_shown_memory_is_not_copied),
        LINK_TEST(who_is_not_on_this_host_is_reached_over_tcp),
        LANE_TEST(who_loses_a_young_lane_goes_by_tcp),
        LANE_TEST(who_loses_an_old_lane_to_an_end_is_told_of_the_end),
        LANE_TEST(who_is_not_answered_in_a_second_goes_by_tcp),
        LINK_TEST(who_lingers_does_so_briefly_and_only_after_traffic),
        LANE_TEST(who_lingers_does_so_briefly_and_only_after_traffic),
        LANE_TEST(a_client_that_reads_nothing_is_left),
        LINK_TEST(a_known_rate_bounds_what_the_kernel_queues),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
