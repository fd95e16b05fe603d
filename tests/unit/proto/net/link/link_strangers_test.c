/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/net/link/link.h"

#include "proto/base/time.h"
#include "tests/lib/wire_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

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

/* Turns of the server until STRANGER is hung up on. */
static void tend_until_end(struct wire_fixture *fixture, int stranger) {
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
    struct pollfd end = {stranger, POLLRDHUP, 0};
    char text[128];
    while (!poll(&end, 1, 10)) {
        link_stranger(fixture->server, text, sizeof text);
        assert_true(time_now() < deadline);
    }
    await_end(stranger);
}

static void who_is_not_admitted_in_time_is_let_go(void **state) {
    struct wire_fixture *fixture = *state;
    struct link_frame frame;
    wire_fixture_connect(fixture);
    assert_true(link_renewed(fixture->client));
    int talks = speak(fixture->port, "\0\4here", 6);
    wire_fixture_view(fixture->server, &frame);
    link_release(&frame);
    int silent = speak(fixture->port, "", 0);
    wire_fixture_send(fixture->client, 0, "member", NULL);
    wire_fixture_view(fixture->server, &frame);
    link_release(&frame);
    link_admit(fixture->server, frame.peer);
    link_admit_within(fixture->server, 50 * TIME_MS);
    tend_until_end(fixture, talks);
    tend_until_end(fixture, silent);
    int later = speak(fixture->port, "\0\5later", 7);
    wire_fixture_expect(fixture->server, "later");
    tend_until_end(fixture, later);
    wire_fixture_send(fixture->client, 0, "unharmed", NULL);
    wire_fixture_expect(fixture->server, "unharmed");
    assert_false(link_renewed(fixture->client));
}

/* So many could wait for who shakes hands, asks without end and reads nothing;
 * others are answered all the same. */
static void answers_do_not_pile_up_for_who_reads_nothing(void **state) {
    enum { ASKED = 20000, SAID = 1500 };
    struct wire_fixture *fixture = *state;
    static char word[SAID];
    struct link_frame frame;
    unsigned sent = 0;
    int stranger = speak(fixture->port, "\0\4here", 6);
    wire_fixture_view(fixture->server, &frame);
    uint32_t peer = frame.peer;
    link_release(&frame);
    size_t before = mallinfo2().uordblks;
    for (int i = 0; i < ASKED; i++)
        sent += link_answer(fixture->server, peer, word, sizeof word);
    assert_true(mallinfo2().uordblks < before + (1 << 20));
    assert_true(sent > 0);
    uint32_t client = wire_fixture_connect(fixture);
    assert_true(link_answer(fixture->server, client, "heard", 5));
    wire_fixture_expect(fixture->client, "heard");
    assert_false(link_answer(fixture->server, client, word, 1 << 20));
    close(stranger);
}

/* Strangers come until next to none is left: it is said, and the oldest go, so
 * that this process can open files and members get in. */
static void strangers_leave_descriptors_to_others(void **state) {
    enum { STRANGERS = 60, FILES = 8 }; /* both sides are of this process */
    struct wire_fixture *fixture = *state;
    struct rlimit before, few;
    char text[128];
    int strangers[STRANGERS], files[FILES];
    getrlimit(RLIMIT_NOFILE, &before);
    wire_fixture_connect(fixture);
    int highest = dup(STDERR_FILENO);
    close(highest);
    few = (struct rlimit){(rlim_t)highest + 2 * STRANGERS, before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    bool said = false;
    for (int i = 0; i < STRANGERS; i++) {
        strangers[i] = wire_fixture_stranger(fixture->port);
        for (int turn = 0; turn < 3; turn++, zmq_poll(NULL, 0, 1))
            said |= link_stranger(fixture->server, text, sizeof text) &&
                    strstr(text, "ulimit -n");
    }
    assert_true(said);
    for (int i = 0; i < FILES; i++)
        assert_true((files[i] = dup(STDERR_FILENO)) >= 0);
    wire_fixture_send(fixture->client, 0, "unharmed", NULL);
    wire_fixture_expect(fixture->server, "unharmed");
    for (int i = 0; i < FILES; i++)
        close(files[i]);
    for (int i = 0; i < STRANGERS; i++)
        close(strangers[i]);
    setrlimit(RLIMIT_NOFILE, &before);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        WIRE_FIXTURE_TEST(four_gib_by_its_header_cost_the_connection),
        WIRE_FIXTURE_TEST(a_web_request_is_one_word_about_a_stranger),
        WIRE_FIXTURE_TEST(a_message_of_the_oldest_protocol_is_not_taken),
        WIRE_FIXTURE_TEST(who_connects_and_is_silent_is_noticed_and_dropped),
        WIRE_FIXTURE_TEST(who_is_not_admitted_in_time_is_let_go),
        WIRE_FIXTURE_TEST(answers_do_not_pile_up_for_who_reads_nothing),
        WIRE_FIXTURE_TEST(strangers_leave_descriptors_to_others),
        WIRE_FIXTURE_TEST(a_client_watches_for_no_strangers),
        WIRE_FIXTURE_TEST(the_same_is_said_of_peers_once),
        WIRE_FIXTURE_TEST(peers_cannot_fill_a_log_with_different_things),
        WIRE_FIXTURE_LANE_TEST(four_gib_by_its_header_cost_the_connection),
        WIRE_FIXTURE_LANE_TEST(a_web_request_is_one_word_about_a_stranger),
        WIRE_FIXTURE_LANE_TEST(a_client_that_reads_nothing_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
