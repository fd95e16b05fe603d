/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/time.h"
#include "core/net/link/link_check.h"
#include "tests/lib/test.h"

#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

static const int64_t LIMIT = TIME_S / 2;

/* A socket bound to *PORT of this host, any if 0; with BACKLOG it listens. */
static int bound(uint16_t *port, int backlog) {
    int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    assert_int_equal(bind(server, (struct sockaddr *)&address, size), 0);
    assert_int_equal(getsockname(server, (struct sockaddr *)&address, &size),
                     0);
    *port = ntohs(address.sin_port);
    if (backlog >= 0)
        assert_int_equal(listen(server, backlog), 0);
    return server;
}

static void expect(const struct link_check *check, enum link_check_state state,
                   const char *text) {
    if (check->state != state || !strstr(check->text, text))
        fail_msg("%s:%u is %s: %s", check->host, check->port,
                 link_check_state_name(check->state), check->text);
}

TEST(a_server_of_capstans_kind_answers) {
    void *zmq = zmq_ctx_new(), *server = zmq_socket(zmq, ZMQ_ROUTER);
    char endpoint[64];
    size_t size = sizeof endpoint;
    assert_int_equal(zmq_bind(server, "tcp://127.0.0.1:*"), 0);
    assert_int_equal(zmq_getsockopt(server, ZMQ_LAST_ENDPOINT, endpoint, &size),
                     0);
    struct link_check check = {.host = "localhost",
                               .port =
                                   (uint16_t)atoi(strrchr(endpoint, ':') + 1)};
    int64_t start = time_now();
    link_check_run(&check, 1, 300 * TIME_S);
    expect(&check, LINK_CHECK_ANSWERS, "answers");
    assert_true(time_now() - start < 100 * TIME_S);
    zmq_close(server);
    zmq_ctx_term(zmq);
}

TEST(a_port_without_a_listener_refuses) {
    struct link_check check = {.host = "127.0.0.1"};
    int server = bound(&check.port, -1);
    link_check_run(&check, 1, LIMIT);
    expect(&check, LINK_CHECK_REFUSED, "the host is reachable");
    close(server);
}

TEST(a_name_that_does_not_resolve_is_said_to) {
    struct link_check check = {.host = "nowhere.invalid", .port = 1};
    link_check_run(&check, 1, 60 * TIME_S);
    expect(&check, LINK_CHECK_UNRESOLVED, "does not resolve");
}

/* A server with a full queue drops what comes, as a firewall does. */
TEST(a_host_that_drops_everything_does_not_answer_in_time) {
    enum { CLIENTS = 4 };
    struct link_check check = {.host = "127.0.0.1"};
    int server = bound(&check.port, 0), clients[CLIENTS];
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(check.port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        connect(clients[i], (struct sockaddr *)&address, sizeof address);
    }
    link_check_run(&check, 1, LIMIT);
    expect(&check, LINK_CHECK_TIMEOUT, "no answer from the host within 0.5 s");
    for (int i = 0; i < CLIENTS; i++)
        close(clients[i]);
    close(server);
}

TEST(a_silent_server_is_not_taken_for_capstan) {
    struct link_check check = {.host = "127.0.0.1"};
    int server = bound(&check.port, 8);
    link_check_run(&check, 1, LIMIT);
    expect(&check, LINK_CHECK_FOREIGN, "says nothing within 0.5 s");
    close(server);
}

/* Greets one client as another program does. */
static void *greet(void *server) {
    int client = accept(*(int *)server, NULL, NULL);
    if (write(client, "SSH-2.0\r\n", 9) != 9)
        return NULL;
    close(client);
    return server;
}

TEST(another_program_is_not_taken_for_capstan) {
    struct link_check check = {.host = "127.0.0.1"};
    int server = bound(&check.port, 8);
    pthread_t thread;
    void *greeted;
    assert_int_equal(pthread_create(&thread, NULL, greet, &server), 0);
    link_check_run(&check, 1, 20 * TIME_S);
    pthread_join(thread, &greeted);
    assert_non_null(greeted);
    expect(&check, LINK_CHECK_FOREIGN, "is no process of Capstan");
    close(server);
}

/* More than are tried at once; silent ones do not add up their limits. */
TEST(all_addresses_are_tried_side_by_side) {
    enum { COUNT = 300 };
    struct link_check checks[COUNT];
    uint16_t refused, silent;
    int one = bound(&refused, -1), other = bound(&silent, COUNT);
    for (int i = 0; i < COUNT; i++)
        checks[i] = (struct link_check){.host = "127.0.0.1",
                                        .port = i % 2 ? refused : silent};
    int64_t start = time_now();
    link_check_run(checks, COUNT, 2 * TIME_S);
    assert_true(time_now() - start < COUNT / 4 * 2 * TIME_S);
    for (int i = 0; i < COUNT; i++)
        expect(&checks[i], i % 2 ? LINK_CHECK_REFUSED : LINK_CHECK_FOREIGN, "");
    close(one);
    close(other);
}
