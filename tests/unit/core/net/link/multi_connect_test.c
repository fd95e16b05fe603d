/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct link_fixture *fixture

#include "core/net/link/multi_connect.h"

#include "core/base/time.h"
#include "tests/lib/link_fixture.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

static const struct link_settings settings = {.max_frame =
                                                  LINK_FIXTURE_MAX_FRAME};

/* The address two ports below the server's. */
static void below(const struct link_fixture *fixture, char *text, size_t size) {
    snprintf(text, size, "127.0.0.1:%d", fixture->port - 2);
}

/* Says a word by all doors until the server has it, and answers it. */
static void exchange_messages(struct link_fixture *fixture,
                              struct multi_connect *multi_connect) {
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    struct link_frame frame;
    zmq_pollitem_t item = {link_socket(fixture->server_link), 0, ZMQ_POLLIN, 0};
    do {
        assert_true(time_now() < deadline);
        multi_connect_commit(multi_connect, "who", 3);
        zmq_poll(&item, 1, 20);
    } while (!link_view(fixture->server_link, &frame));
    uint32_t peer = frame.peer;
    char host[64];
    assert_true(link_peer_host(&frame, host, sizeof host));
    assert_string_equal(host, "127.0.0.1");
    link_release(&frame);
    link_fixture_send(fixture->server_link, peer, "me", NULL);
}

FIXTURE(link_fixture_setup, link_fixture_teardown);

TEST(the_peer_is_found_at_one_of_the_ports) {
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    struct multi_connect multi_connect;
    struct link_frame frame;
    char address[64];
    unsigned which;
    below(fixture, address, sizeof address);
    assert_int_equal(
        multi_connect_open(&multi_connect, fixture->zmq, &settings, 4, NULL),
        STATUS_OK);
    assert_int_equal(multi_connect_connect(&multi_connect, address, NULL),
                     STATUS_OK);
    exchange_messages(fixture, &multi_connect);
    while (!multi_connect_view(&multi_connect, &frame, &which)) {
        zmq_pollitem_t item = {link_socket(multi_connect.links[2]), 0,
                               ZMQ_POLLIN, 0};
        assert_true(time_now() < deadline);
        zmq_poll(&item, 1, 20);
    }
    link_release(&frame);
    assert_int_equal(which, 2);
    multi_connect_choose(&multi_connect, which);
    assert_int_equal(multi_connect.count, 1);
    exchange_messages(fixture, &multi_connect);
    multi_connect_close(&multi_connect);
    assert_int_equal(multi_connect.count, 0);
}

TEST(the_number_of_ports_is_bounded) {
    struct multi_connect multi_connect;
    assert_int_equal(
        multi_connect_open(&multi_connect, fixture->zmq, &settings, 0, NULL),
        STATUS_OK);
    assert_int_equal(multi_connect.count, 1);
    multi_connect_close(&multi_connect);
    assert_int_equal(
        multi_connect_open(&multi_connect, fixture->zmq, &settings, 999, NULL),
        STATUS_OK);
    assert_int_equal(multi_connect.count, MULTI_CONNECT_MAX);
    assert_false(multi_connect_commit(&multi_connect, "who", 3));
    multi_connect_close(&multi_connect);
}
