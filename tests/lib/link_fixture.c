/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/link_fixture.h"

#include "core/base/time.h"
#include "tests/lib/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static const struct link_settings settings = {.max_frame =
                                                  LINK_FIXTURE_MAX_FRAME};

static struct link *open_link(void *zmq, enum link_kind kind) {
    struct link *link;
    assert_ok(link_open(&link, zmq, kind, &settings, &failure));
    return link;
}

struct link *link_fixture_server(struct link_fixture *fixture, uint16_t port) {
    struct link *link = open_link(fixture->zmq, LINK_SERVER);
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    while (link_bind(link, port, &failure)) {
        if (!port || time_now() > deadline)
            fail_msg("%s", failure.text);
        zmq_poll(NULL, 0, 10); /* libzmq closes a port behind link_close */
    }
    return link;
}

int link_fixture_setup(void **state) {
    struct link_fixture *fixture = calloc(1, sizeof *fixture);
    setenv("CMOCKA_TEST_ABORT", "1", 1);
    fixture->zmq = zmq_ctx_new();
    fixture->server_link = link_fixture_server(fixture, 0);
    fixture->client = open_link(fixture->zmq, LINK_CLIENT);
    fixture->port = link_port(fixture->server_link);
    snprintf(fixture->address, sizeof fixture->address, "127.0.0.1:%u",
             fixture->port);
    log_open(&fixture->log, "test", -1);
    fixture->saved_stderr = -1;
    *state = fixture;
    return 0;
}

int link_fixture_setup_shm(void **state) {
    link_fixture_setup(state);
    struct link_fixture *fixture = *state;
    fixture->lane = true;
    fixture->word = message_random();
    assert_ok(link_listen_shm(fixture->server_link, fixture->word, &failure));
    return 0;
}

int link_fixture_teardown(void **state) {
    struct link_fixture *fixture = *state;
    if (fixture->saved_stderr >= 0)
        link_fixture_captured_log(fixture);
    link_close(&fixture->client);
    link_close(&fixture->server_link);
    zmq_ctx_term(fixture->zmq);
    free(fixture);
    return 0;
}

void link_fixture_prefer_shm(struct link_fixture *fixture) {
    link_prefer_shm(fixture->client, fixture->word);
}

/* Both sides of a lane are of this thread. */
static void meet(struct link_fixture *fixture, struct link *client) {
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    zmq_pollitem_t items[2 * LINK_POLL_ITEMS];
    struct link_frame frame;
    link_prefer_shm(client, fixture->word);
    while (!link_renewed(client)) {
        int count = link_poll_items(client, items);
        count += link_poll_items(fixture->server_link, items + count);
        assert_true(time_now() < deadline);
        zmq_poll(items, count, 20);
        assert_false(link_view(fixture->server_link, &frame));
    }
}

static void connect_client(struct link_fixture *fixture, struct link *client) {
    if (fixture->lane)
        meet(fixture, client);
    assert_ok(link_connect(client, fixture->address, &failure));
}

struct link *link_fixture_client(struct link_fixture *fixture) {
    struct link *link = open_link(fixture->zmq, LINK_CLIENT);
    connect_client(fixture, link);
    return link;
}

/* Waits until something may be here, or DEADLINE. */
static bool await(struct link *link, int64_t deadline) {
    zmq_pollitem_t items[LINK_POLL_ITEMS];
    int count = link_poll_items(link, items);
    return zmq_poll(items, count, time_poll_ms(time_now(), deadline)) > 0;
}

uint32_t link_fixture_connect(struct link_fixture *fixture) {
    struct link_frame frame;
    connect_client(fixture, fixture->client);
    link_fixture_send(fixture->client, 0, "hello", NULL);
    link_fixture_receive(fixture->server_link, &frame);
    uint32_t peer = frame.peer;
    link_release(&frame);
    link_fixture_send(fixture->server_link, peer, "hello", NULL);
    link_fixture_expect(fixture->client, "hello");
    return peer;
}

void link_fixture_send(struct link *link, uint32_t peer, const char *text,
                       const char *payload) {
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    zmq_pollitem_t item = {link_socket(link), 0, ZMQ_POLLOUT, 0};
    struct link_payload bytes;
    bool left;
    do {
        assert_true(time_now() < deadline);
        link_no_payload(&bytes);
        if (payload) {
            assert_true(link_reserve(link, peer, &bytes, strlen(payload)));
            memcpy(link_reserved(&bytes), payload, strlen(payload));
        }
        left = link_commit(link, peer, text, strlen(text), &bytes);
    } while (!left && zmq_poll(&item, 1, 10) >= 0);
}

void link_fixture_receive(struct link *link, struct link_frame *frame) {
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    while (!link_view(link, frame))
        if (!await(link, deadline))
            fail_msg("nothing came within the limit");
}

void link_fixture_expect(struct link *link, const char *text) {
    struct link_frame frame;
    link_fixture_receive(link, &frame);
    assert_int_equal(frame.header.size, strlen(text));
    assert_memory_equal(frame.header.data, text, strlen(text));
    link_release(&frame);
}

void link_fixture_expect_nothing(struct link *link) {
    struct link_frame frame;
    int64_t deadline = time_now() + 100 * TIME_MS;
    while (time_now() < deadline) {
        await(link, deadline);
        assert_false(link_view(link, &frame));
    }
}

int link_fixture_connect_plain(uint16_t port) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(descriptor >= 0);
    if (connect(descriptor, (struct sockaddr *)&address, sizeof address) &&
        errno != ECONNRESET) /* which the server may do at once */
        fail_msg("cannot connect to port %u", port);
    return descriptor;
}

void link_fixture_await_bad_peer(struct link *server_link, char *text,
                                 size_t size) {
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    struct link_frame frame;
    while (!link_bad_peer(server_link, text, size)) {
        assert_false(link_view(server_link, &frame));
        assert_true(time_now() < deadline);
        zmq_poll(NULL, 0, 10);
    }
}

void link_fixture_capture_log(struct link_fixture *fixture) {
    fixture->log_file = memfd_create("log", MFD_CLOEXEC);
    fixture->saved_stderr = dup(STDERR_FILENO);
    dup2(fixture->log_file, STDERR_FILENO);
    log_open(&fixture->log, "test", -1);
}

const char *link_fixture_captured_log(struct link_fixture *fixture) {
    ssize_t got =
        pread(fixture->log_file, fixture->said, sizeof fixture->said - 1, 0);
    fixture->said[got > 0 ? got : 0] = 0;
    dup2(fixture->saved_stderr, STDERR_FILENO);
    close(fixture->saved_stderr);
    close(fixture->log_file);
    fixture->saved_stderr = -1;
    return fixture->said;
}
