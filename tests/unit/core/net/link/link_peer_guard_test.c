/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct link_fixture *fixture

#include "core/net/link/link.h"

#include "core/base/time.h"
#include "tests/lib/link_fixture.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static void read_all(int peer_socket, unsigned char *bytes, size_t size) {
    struct timeval limit = {20, 0};
    setsockopt(peer_socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(recv(peer_socket, bytes, size, MSG_WAITALL), size);
}

/* The greeting of ZMTP 3.0 and a NULL handshake, then BYTES. */
static int exchange_messages(uint16_t port, const void *bytes, size_t size) {
    static const unsigned char greeting[64] = {
        0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'};
    static const unsigned char ready[] = {
        4,   41,  5,   'R', 'E', 'A', 'D', 'Y', 11,  'S', 'o',
        'c', 'k', 'e', 't', '-', 'T', 'y', 'p', 'e', 0,   0,
        0,   6,   'D', 'E', 'A', 'L', 'E', 'R', 8,   'I', 'd',
        'e', 'n', 't', 'i', 't', 'y', 0,   0,   0,   0};
    int peer_socket = link_fixture_connect_plain(port);
    assert_int_equal(write(peer_socket, greeting, sizeof greeting),
                     sizeof greeting);
    assert_int_equal(write(peer_socket, ready, sizeof ready), sizeof ready);
    unsigned char theirs[256];
    read_all(peer_socket, theirs, sizeof greeting);
    read_all(peer_socket, theirs, 2);
    read_all(peer_socket, theirs + 2, theirs[1]);
    assert_int_equal(write(peer_socket, bytes, size), size);
    return peer_socket;
}

/* Reads until the other side hangs up. */
static void await_close(int peer_socket) {
    char bytes[512];
    struct timeval limit = {20, 0};
    setsockopt(peer_socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ssize_t got;
    while ((got = read(peer_socket, bytes, sizeof bytes)) > 0)
        ;
    assert_true(got == 0 || errno == ECONNRESET);
    close(peer_socket);
}

FIXTURE(link_fixture_setup, link_fixture_teardown);

TEST(a_header_of_four_gib_closes_the_connection) {
    static const unsigned char four_gib[] = {2, 0, 0, 0, 1, 0, 0, 0, 0, 'x'};
    link_fixture_connect(fixture);
    int peer_socket = exchange_messages(fixture->port, "\0\5small", 7);
    link_fixture_expect(fixture->server_link, "small");
    close(peer_socket);
    await_close(exchange_messages(fixture->port, four_gib, sizeof four_gib));
    link_fixture_send(fixture->client, 0, "unharmed", NULL);
    link_fixture_expect(fixture->server_link, "unharmed");
}

LINK_FIXTURE_SHM(a_header_of_four_gib_closes_the_connection);

/* Also where other peers have said all that they may in the log. */
TEST(an_http_request_logs_one_line_about_a_bad_peer) {
    static const char request[] = "GET / HTTP/1.1\r\nHost: here\r\nUser-Agent: "
                                  "curl/7.88.1\r\nAccept: */*\r\n\r\n";
    char text[128];
    link_fixture_connect(fixture);
    for (int i = 0; i < 1000; i++)
        link_may_log(fixture->server_link, textf("%d bytes", i));
    int peer_socket = link_fixture_connect_plain(fixture->port);
    assert_int_equal(write(peer_socket, request, strlen(request)),
                     strlen(request));
    shutdown(peer_socket, SHUT_WR);
    link_fixture_await_bad_peer(fixture->server_link, text, sizeof text);
    assert_false(link_bad_peer(fixture->server_link, text, sizeof text));
    close(peer_socket);
    link_fixture_send(fixture->client, 0, "unharmed", NULL);
    link_fixture_expect(fixture->server_link, "unharmed");
}

LINK_FIXTURE_SHM(an_http_request_logs_one_line_about_a_bad_peer);

/* ZMTP 1.0, which takes nearly every byte for its own: an empty name and a
 * message of five bytes, each after its length and a zero. */
TEST(a_message_of_the_oldest_protocol_is_refused) {
    static const unsigned char old[] = "\x01\x00\x06\x00hello";
    char text[128];
    int peer_socket = link_fixture_connect_plain(fixture->port);
    assert_int_equal(write(peer_socket, old, sizeof old - 1), sizeof old - 1);
    link_fixture_await_bad_peer(fixture->server_link, text, sizeof text);
    assert_contains(text, "sent no Capstan message");
    await_close(peer_socket);
}

/* As where those go back that knew who had this port before. */
TEST(peers_that_leave_a_following_run_at_once_are_reported_if_others_come) {
    static const struct link_settings settings = {
        .max_frame = LINK_FIXTURE_MAX_FRAME, .follows = true};
    char text[128];
    struct link *link;
    assert_ok(link_open(&link, fixture->zmq, LINK_SERVER, &settings, &failure));
    assert_ok(link_bind(link, 0, &failure));
    int64_t end = time_now() + TIME_S / 2;
    while (time_now() < end) {
        close(link_fixture_connect_plain(link_port(link)));
        assert_false(link_bad_peer(link, text, sizeof text));
        poll(NULL, 0, 10);
    }
    poll(NULL, 0, 700);
    close(link_fixture_connect_plain(link_port(link)));
    link_fixture_await_bad_peer(link, text, sizeof text);
    link_close(&link);
}

TEST(a_silent_connection_is_logged_and_dropped) {
    char text[128];
    int peer_socket = link_fixture_connect_plain(fixture->port);
    link_fixture_await_bad_peer(fixture->server_link, text, sizeof text);
    assert_contains(text, "sent no Capstan message");
    await_close(peer_socket);
    assert_false(link_bad_peer(fixture->server_link, text, sizeof text));
}

/* Turns of the server until STRANGER is hung up on. */
static void run_until_closed(struct link_fixture *fixture, int peer_socket) {
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    struct pollfd end = {peer_socket, POLLRDHUP, 0};
    char text[128];
    while (!poll(&end, 1, 10)) {
        link_bad_peer(fixture->server_link, text, sizeof text);
        assert_true(time_now() < deadline);
    }
    await_close(peer_socket);
}

TEST(a_connection_not_admitted_in_time_is_closed) {
    struct link_frame frame;
    link_fixture_connect(fixture);
    assert_true(link_renewed(fixture->client));
    int talks = exchange_messages(fixture->port, "\0\4here", 6);
    link_fixture_receive(fixture->server_link, &frame);
    link_release(&frame);
    int silent = exchange_messages(fixture->port, "", 0);
    link_fixture_send(fixture->client, 0, "member", NULL);
    link_fixture_receive(fixture->server_link, &frame);
    link_release(&frame);
    link_admit(fixture->server_link, frame.peer);
    link_admit_within(fixture->server_link, 50 * TIME_MS, 1 << 20);
    run_until_closed(fixture, talks);
    run_until_closed(fixture, silent);
    int later = exchange_messages(fixture->port, "\0\5later", 7);
    link_fixture_expect(fixture->server_link, "later");
    run_until_closed(fixture, later);
    link_fixture_send(fixture->client, 0, "unharmed", NULL);
    link_fixture_expect(fixture->server_link, "unharmed");
    assert_false(link_renewed(fixture->client));
}

/* So many could wait for who shakes hands, asks without end and reads nothing;
 * others are answered all the same. */
TEST(replies_do_not_accumulate_for_a_peer_that_does_not_read) {
    enum { ASKED = 20000, SAID = 1500 };
    static char word[SAID];
    struct link_frame frame;
    unsigned sent = 0;
    int peer_socket = exchange_messages(fixture->port, "\0\4here", 6);
    link_fixture_receive(fixture->server_link, &frame);
    uint32_t peer = frame.peer;
    link_release(&frame);
    size_t before = mallinfo2().uordblks;
    for (int i = 0; i < ASKED; i++)
        sent += link_reply(fixture->server_link, peer, word, sizeof word);
    assert_true(mallinfo2().uordblks < before + (1 << 20));
    assert_true(sent > 0);
    uint32_t client = link_fixture_connect(fixture);
    assert_true(link_reply(fixture->server_link, client, "heard", 5));
    link_fixture_expect(fixture->client, "heard");
    assert_false(link_reply(fixture->server_link, client, word, 1 << 20));
    close(peer_socket);
}

/* Strangers come until next to none is left: it is said, and the oldest go, so
 * that this process can open files and members get in. */
TEST(bad_peers_do_not_exhaust_descriptors) {
    enum { BAD_PEERS = 60, FILES = 8 }; /* both sides are of this process */
    struct rlimit before, few;
    char text[128];
    int peer_sockets[BAD_PEERS], files[FILES];
    getrlimit(RLIMIT_NOFILE, &before);
    link_fixture_connect(fixture);
    int highest = dup(STDERR_FILENO);
    close(highest);
    few = (struct rlimit){(rlim_t)highest + 2 * BAD_PEERS, before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    bool said = false;
    for (int i = 0; i < BAD_PEERS; i++) {
        peer_sockets[i] = link_fixture_connect_plain(fixture->port);
        for (int turn = 0; turn < 3; turn++, zmq_poll(NULL, 0, 1))
            said |= link_bad_peer(fixture->server_link, text, sizeof text) &&
                    strstr(text, "ulimit -n");
    }
    assert_true(said);
    for (int i = 0; i < FILES; i++)
        assert_true((files[i] = dup(STDERR_FILENO)) >= 0);
    link_fixture_send(fixture->client, 0, "unharmed", NULL);
    link_fixture_expect(fixture->server_link, "unharmed");
    for (int i = 0; i < FILES; i++)
        close(files[i]);
    for (int i = 0; i < BAD_PEERS; i++)
        close(peer_sockets[i]);
    setrlimit(RLIMIT_NOFILE, &before);
}

enum { KIB = 1024, CREDIT = 1000 * KIB };

/* COUNT frames of a KiB, as fast as they leave. False:
 * the other side has closed. */
static bool send_kibs(int peer_socket, int count) {
    unsigned char frame[9 + KIB] = {2, [7] = KIB >> 8};
    bool open = true;
    for (int i = 0; i < count && open; i++)
        open = send(peer_socket, frame, sizeof frame, MSG_NOSIGNAL) ==
               (ssize_t)sizeof frame;
    return open;
}

/* The server views nothing, as while it computes. */
TEST(an_unknown_peer_with_much_unread_is_disconnected) {
    char text[128];
    link_admit_within(fixture->server_link, 60 * TIME_S, CREDIT);
    int peer_socket = exchange_messages(fixture->port, "\0\5small", 7);
    assert_true(send_kibs(peer_socket, 240));
    send_kibs(peer_socket, 100);
    await_close(peer_socket);
    while (link_bad_peer(fixture->server_link, text, sizeof text) &&
           !strstr(text, "faster than it is read"))
        ;
    assert_contains(text, "faster than it is read");
}

/* As health checks and scanners do it, while the server reads nothing. */
TEST(connections_that_end_keep_nobody_out_for_long) {
    enum { CHECKS = 12 };
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    struct timeval limit = {.tv_usec = 300000};
    bool stays = false;
    link_admit_within(fixture->server_link, 60 * TIME_S, CREDIT);
    int peer_socket = exchange_messages(fixture->port, "\0\5small", 7);
    for (int i = 0; i < CHECKS; i++) {
        int check = link_fixture_connect_plain(fixture->port);
        char greeting;
        recv(check, &greeting, 1, 0);
        close(check);
    }
    while (!stays && time_now() < deadline) {
        char bytes[64];
        ssize_t got;
        int newcomer = link_fixture_connect_plain(fixture->port);
        setsockopt(newcomer, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        while ((got = recv(newcomer, bytes, sizeof bytes, 0)) > 0)
            ;
        stays = got < 0 && errno == EAGAIN;
        close(newcomer);
    }
    assert_true(stays);
    close(peer_socket);
}

/* Its credit, and a frame of LINK_FIXTURE_MAX_FRAME. */
TEST(an_admitted_peer_may_have_its_credit_unread) {
    struct link_frame frame;
    link_admit_within(fixture->server_link, 60 * TIME_S, CREDIT);
    int peer_socket = exchange_messages(fixture->port, "\0\5small", 7);
    link_fixture_receive(fixture->server_link, &frame);
    link_admit(fixture->server_link, frame.peer);
    link_release(&frame);
    assert_true(send_kibs(peer_socket, 900));
    for (int i = 0; i < 900; i++) {
        link_fixture_receive(fixture->server_link, &frame);
        assert_int_equal(frame.header.size, KIB);
        link_release(&frame);
    }
    assert_true(send_kibs(peer_socket, 900));
    send_kibs(peer_socket, 200);
    await_close(peer_socket);
}

TEST(a_client_does_not_guard_against_bad_peers) {
    int64_t since, deadline = time_now() + LINK_FIXTURE_DEADLINE;
    char text[128];
    link_fixture_connect(fixture);
    link_close(&fixture->server_link);
    do {
        for (int i = 0; i < 100000; i++) /* it takes no event from the client */
            assert_false(link_bad_peer(fixture->client, text, sizeof text));
        assert_true(time_now() < deadline);
    } while (!link_is_lost(fixture->client, &since));
}

TEST(the_same_warning_about_peers_is_logged_once) {
    assert_true(link_may_log(fixture->server_link, "one thing"));
    assert_false(link_may_log(fixture->server_link, "one thing"));
    assert_true(link_may_log(fixture->server_link, "another"));
    assert_true(link_may_log(fixture->client, "one thing"));
}

TEST(peers_cannot_flood_the_log_with_different_warnings) {
    char text[32];
    unsigned said = 0;
    for (int i = 0; i < 1000; i++) {
        snprintf(text, sizeof text, "%d bytes", i);
        said += link_may_log(fixture->server_link, text);
    }
    assert_int_equal(said, 8);
}

static void a_client_that_does_not_read_is_dropped(void **state) {
    struct link_fixture *fixture = *state;
    uint32_t peer = link_fixture_connect(fixture);
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    struct link_frame frame;
    char text[128];
    link_fixture_send(fixture->server_link, peer, "unread", NULL);
    while (!link_bad_peer(fixture->server_link, text, sizeof text)) {
        link_fixture_expect_nothing(fixture->server_link);
        assert_true(time_now() < deadline);
    }
    assert_contains(text, "has read nothing for 3 s");
    assert_false(link_commit(fixture->server_link, peer, "x", 1, NULL));
    assert_true(link_view(fixture->client, &frame));
    link_release(&frame);
}

LINK_FIXTURE_SHM(a_client_that_does_not_read_is_dropped);

/* What has no member behind it is of no interest. */
TEST(a_connection_closed_by_its_peer_is_reported) {
    struct link_frame frame;
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    uint32_t peer = 0;
    char text[128];
    int visitor = exchange_messages(fixture->port, "\0\4here", 6);
    link_fixture_expect(fixture->server_link, "here");
    close(visitor);
    int member = exchange_messages(fixture->port, "\0\6member", 8);
    link_fixture_receive(fixture->server_link, &frame);
    uint32_t number = frame.peer;
    link_admit(fixture->server_link, number);
    link_release(&frame);
    assert_false(link_next_closed(fixture->server_link, &peer));
    close(member);
    while (!link_next_closed(fixture->server_link, &peer)) {
        link_bad_peer(fixture->server_link, text, sizeof text);
        assert_true(time_now() < deadline);
    }
    assert_int_equal(peer, number);
    assert_false(link_next_closed(fixture->server_link, &peer));
}
