/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct link_fixture *fixture

#include "core/net/link/link.h"

#include "core/base/time.h"
#include "core/net/link/link_internal.h"
#include "tests/lib/link_fixture.h"
#include "tests/lib/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

FIXTURE(link_fixture_setup, link_fixture_teardown);

/* A client without a server of its run on this host. */
TEST(a_peer_on_another_host_is_reached_over_tcp) {
    char text[128];
    link_prefer_shm(fixture->client, (uint64_t)getpid());
    assert_true(link_transport(fixture->client, text, sizeof text));
    assert_contains(text, "over TCP: it is not on this host");
    assert_false(link_transport(fixture->client, text, sizeof text));
    assert_ok(link_connect(fixture->client, fixture->address, &failure));
    link_fixture_send(fixture->client, 0, "hello", NULL);
    link_fixture_expect(fixture->server_link, "hello");
}

/* Steps CLIENT until it says how its messages go now. */
static void await_transport(struct link *client, const char *expected) {
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    zmq_pollitem_t items[LINK_POLL_ITEMS];
    char text[128];
    link_renewed(client);
    while (!link_transport(client, text, sizeof text)) {
        assert_true(time_now() < deadline);
        zmq_poll(items, link_poll_items(client, items), 20);
        link_renewed(client);
    }
    assert_contains(text, expected);
}

static void losing_a_new_shared_memory_connection_falls_back_to_tcp(
    void **state) {
    struct link_fixture *fixture = *state;
    char text[128];
    uint32_t peer = link_fixture_connect(fixture);
    assert_true(link_transport(fixture->client, text, sizeof text));
    assert_string_equal(text, "over shared memory");
    link_ban(fixture->server_link, peer);
    link_fixture_expect_nothing(fixture->server_link);
    await_transport(fixture->client, "over TCP: ");
    link_fixture_send(fixture->client, 0, "hello", NULL);
    link_fixture_expect(fixture->server_link, "hello");
    assert_false(link_commit(fixture->server_link, peer, "x", 1, NULL));
}

LINK_FIXTURE_SHM(losing_a_new_shared_memory_connection_falls_back_to_tcp);

/* libzmq listens for a moment after a link is closed. */
static void await_refusal(uint16_t port) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    for (bool refused = false; !refused;) {
        int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        refused = connect(descriptor, (const struct sockaddr *)&address,
                          sizeof address) &&
                  errno == ECONNREFUSED;
        close(descriptor);
        assert_true(time_now() < deadline);
    }
}

/* A lane that has held is called again; who ended has no name to be called by,
 * as if it had never been on this host. */
static void losing_an_old_shared_memory_connection_is_said_once_tcp_works(
    void **state) {
    struct link_fixture *fixture = *state;
    zmq_pollitem_t items[LINK_POLL_ITEMS];
    char text[128];
    link_fixture_connect(fixture);
    await_transport(fixture->client, "over shared memory");
    assert_true(link_is_over_shm(fixture->client));
    fixture->client->shm_since -= 60 * TIME_S;
    link_close(&fixture->server_link);
    await_refusal(fixture->port);
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    while (link_is_over_shm(fixture->client) ||
           fixture->client->transport != LINK_TCP) {
        assert_true(time_now() < deadline);
        zmq_poll(items, link_poll_items(fixture->client, items), 20);
        link_renewed(fixture->client);
    }
    assert_false(link_transport(fixture->client, text, sizeof text));
    fixture->server_link = link_fixture_server(fixture, fixture->port);
    await_transport(fixture->client, "over TCP: it has closed its shared");
}

LINK_FIXTURE_SHM(losing_an_old_shared_memory_connection_is_said_once_tcp_works);

/* The server's end of a lane never answers. */
static void a_peer_without_an_answer_in_a_second_uses_tcp(void **state) {
    struct link_fixture *fixture = *state;
    assert_ok(link_connect(fixture->client, fixture->address, &failure));
    link_fixture_prefer_shm(fixture);
    assert_false(link_commit(fixture->client, 0, "x", 1, NULL));
    await_transport(fixture->client, "over TCP: no answer within 1 s");
}

LINK_FIXTURE_SHM(a_peer_without_an_answer_in_a_second_uses_tcp);

/* A port of this machine that listens, not as a link does. */
static int listen_plain(uint16_t *port) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    assert_int_equal(
        bind(listener, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(listener, 16), 0);
    getsockname(listener, (struct sockaddr *)&address, &size);
    *port = ntohs(address.sin_port);
    return listener;
}

/* Each connection to LISTENER gets WORDS, and is closed unless STAYS, until
 * CLIENT answers with something but WAS. */
static enum link_answer serve_until_known(struct link *client, int listener,
                                          const char *words, bool stays,
                                          enum link_answer was) {
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE, since;
    enum link_answer answer;
    while ((answer = link_answer(client, &since)) == was) {
        struct pollfd item = {listener, POLLIN, 0};
        assert_true(time_now() < deadline);
        if (poll(&item, 1, 20) != 1)
            continue;
        int peer = accept(listener, NULL, NULL);
        if (*words)
            assert_true(send(peer, words, strlen(words), MSG_NOSIGNAL) > 0);
        if (!stays)
            close(peer);
    }
    return answer;
}

TEST(what_answers_in_place_of_a_link_is_known) {
    static const struct {
        const char *words;
        bool stays;
        enum link_answer answer;
    } programs[] = {
        {"SSH-2.0-OpenSSH_9.2p1\r\n", true, LINK_ANSWER_PROTOCOL},
        {"HTTP/1.1 400 Bad Request\r\n\r\n", true, LINK_ANSWER_PROTOCOL},
        {"", false, LINK_ANSWER_CLOSED},
        {"", true, LINK_ANSWER_SILENT},
    };
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        uint16_t port;
        int listener = listen_plain(&port);
        assert_ok(link_connect(fixture->client, textf("127.0.0.1:%u", port),
                               &failure));
        assert_int_equal(serve_until_known(fixture->client, listener,
                                           programs[i].words, programs[i].stays,
                                           LINK_ANSWER_UNKNOWN),
                         programs[i].answer);
        close(listener);
    }
}

/* libzmq itself would not try again. */
TEST(a_link_that_takes_the_port_of_another_program_is_reached) {
    uint16_t port;
    int64_t since, before = time_now();
    int listener = listen_plain(&port);
    const char *address = textf("127.0.0.1:%u", port);
    assert_ok(link_connect(fixture->client, address, &failure));
    serve_until_known(fixture->client, listener, "220 mail\r\n", false,
                      LINK_ANSWER_UNKNOWN);
    close(listener);
    link_close(&fixture->server_link);
    fixture->server_link = link_fixture_server(fixture, port);
    assert_ok(link_connect(fixture->client, address, &failure));
    link_fixture_send(fixture->client, 0, "hello", NULL);
    link_fixture_expect(fixture->server_link, "hello");
    assert_int_equal(link_answer(fixture->client, &since), LINK_ANSWER_LINK);
    assert_true(since >= before);
}
