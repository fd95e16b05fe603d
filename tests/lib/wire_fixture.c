/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/wire_fixture.h"

#include "proto/base/time.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static const struct link_settings settings = {
    .max_frame = WIRE_FIXTURE_MAX_FRAME, .receive_frames = 1000};

static struct link *open_link(void *zmq, enum link_kind kind) {
    struct link *link;
    struct failure why;
    if (link_open(&link, zmq, kind, &settings, &why))
        fail_msg("%s", why.text);
    return link;
}

int wire_fixture_setup(void **state) {
    struct wire_fixture *fixture = calloc(1, sizeof *fixture);
    struct failure why;
    setenv("CMOCKA_TEST_ABORT", "1", 1);
    fixture->zmq = zmq_ctx_new();
    fixture->server = open_link(fixture->zmq, LINK_SERVER);
    fixture->client = open_link(fixture->zmq, LINK_CLIENT);
    if (link_bind(fixture->server, 0, &why))
        fail_msg("%s", why.text);
    fixture->port = link_port(fixture->server);
    snprintf(fixture->address, sizeof fixture->address, "127.0.0.1:%u",
             fixture->port);
    log_open(&fixture->log, "test", -1);
    fixture->log_kept = -1;
    *state = fixture;
    return 0;
}

int wire_fixture_setup_lane(void **state) {
    struct failure why;
    wire_fixture_setup(state);
    struct wire_fixture *fixture = *state;
    fixture->lane = true;
    fixture->word = message_random();
    if (link_offer_lane(fixture->server, fixture->word, &why))
        fail_msg("%s", why.text);
    return 0;
}

int wire_fixture_teardown(void **state) {
    struct wire_fixture *fixture = *state;
    if (fixture->log_kept >= 0)
        wire_fixture_said(fixture);
    link_close(&fixture->client);
    link_close(&fixture->server);
    zmq_ctx_term(fixture->zmq);
    free(fixture);
    return 0;
}

void wire_fixture_prefer_lane(struct wire_fixture *fixture) {
    link_prefer_lane(fixture->client, fixture->word);
}

/* Both sides of a lane are of this thread. */
static void meet(struct wire_fixture *fixture, struct link *client) {
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
    zmq_pollitem_t items[2 * LINK_POLL_ITEMS];
    struct link_frame frame;
    link_prefer_lane(client, fixture->word);
    while (!link_renewed(client)) {
        int count = link_poll_items(client, items);
        count += link_poll_items(fixture->server, items + count);
        assert_true(time_now() < deadline);
        zmq_poll(items, count, 20);
        assert_false(link_view(fixture->server, &frame));
    }
}

static void connect_client(struct wire_fixture *fixture, struct link *client) {
    struct failure why;
    if (fixture->lane)
        meet(fixture, client);
    if (link_connect(client, fixture->address, &why))
        fail_msg("%s", why.text);
}

struct link *wire_fixture_client(struct wire_fixture *fixture) {
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

uint32_t wire_fixture_connect(struct wire_fixture *fixture) {
    struct link_frame frame;
    connect_client(fixture, fixture->client);
    wire_fixture_send(fixture->client, 0, "hello", NULL);
    wire_fixture_view(fixture->server, &frame);
    uint32_t peer = frame.peer;
    link_release(&frame);
    wire_fixture_send(fixture->server, peer, "hello", NULL);
    wire_fixture_expect(fixture->client, "hello");
    return peer;
}

void wire_fixture_send(struct link *link, uint32_t peer, const char *text,
                       const char *payload) {
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
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

void wire_fixture_view(struct link *link, struct link_frame *frame) {
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
    while (!link_view(link, frame))
        if (!await(link, deadline))
            fail_msg("nothing came within the limit");
}

void wire_fixture_expect(struct link *link, const char *text) {
    struct link_frame frame;
    wire_fixture_view(link, &frame);
    assert_int_equal(frame.header.size, strlen(text));
    assert_memory_equal(frame.header.data, text, strlen(text));
    link_release(&frame);
}

void wire_fixture_silent(struct link *link) {
    struct link_frame frame;
    int64_t deadline = time_now() + 100 * TIME_MS;
    while (time_now() < deadline) {
        await(link, deadline);
        assert_false(link_view(link, &frame));
    }
}

int wire_fixture_stranger(uint16_t port) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(descriptor >= 0);
    if (connect(descriptor, (struct sockaddr *)&address, sizeof address))
        fail_msg("cannot connect to port %u", port);
    return descriptor;
}

void wire_fixture_stranger_noticed(struct link *server, char *text,
                                   size_t size) {
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
    struct link_frame frame;
    while (!link_stranger(server, text, size)) {
        assert_false(link_view(server, &frame));
        assert_true(time_now() < deadline);
        zmq_poll(NULL, 0, 10);
    }
}

void wire_fixture_listen(struct wire_fixture *fixture) {
    fixture->log_file = memfd_create("log", MFD_CLOEXEC);
    fixture->log_kept = dup(STDERR_FILENO);
    dup2(fixture->log_file, STDERR_FILENO);
    log_open(&fixture->log, "test", -1);
}

const char *wire_fixture_said(struct wire_fixture *fixture) {
    ssize_t got =
        pread(fixture->log_file, fixture->said, sizeof fixture->said - 1, 0);
    fixture->said[got > 0 ? got : 0] = 0;
    dup2(fixture->log_kept, STDERR_FILENO);
    close(fixture->log_kept);
    close(fixture->log_file);
    fixture->log_kept = -1;
    return fixture->said;
}
