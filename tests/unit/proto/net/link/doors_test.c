/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/net/link/doors.h"

#include "proto/base/time.h"
#include "tests/lib/wire_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static const struct link_settings settings = {
    .max_frame = WIRE_FIXTURE_MAX_FRAME, .receive_frames = 16};

/* The address two ports below the server's. */
static void below(const struct wire_fixture *fixture, char *text, size_t size) {
    snprintf(text, size, "127.0.0.1:%d", fixture->port - 2);
}

/* Says a word by all doors until the server has it, and answers it. */
static void speak(struct wire_fixture *fixture, struct doors *doors) {
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
    struct link_frame frame;
    zmq_pollitem_t item = {link_socket(fixture->server), 0, ZMQ_POLLIN, 0};
    do {
        assert_true(time_now() < deadline);
        doors_commit(doors, "who", 3);
        zmq_poll(&item, 1, 20);
    } while (!link_view(fixture->server, &frame));
    uint32_t peer = frame.peer;
    char host[64];
    assert_true(link_peer_host(&frame, host, sizeof host));
    assert_string_equal(host, "127.0.0.1");
    link_release(&frame);
    wire_fixture_send(fixture->server, peer, "me", NULL);
}

static void the_peer_is_found_behind_one_of_the_ports(void **state) {
    struct wire_fixture *fixture = *state;
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
    struct doors doors;
    struct link_frame frame;
    char address[64];
    unsigned which;
    below(fixture, address, sizeof address);
    assert_int_equal(doors_open(&doors, fixture->zmq, &settings, 4, NULL),
                     STATUS_OK);
    assert_int_equal(doors_connect(&doors, address, NULL), STATUS_OK);
    speak(fixture, &doors);
    while (!doors_view(&doors, &frame, &which)) {
        zmq_pollitem_t item = {link_socket(doors.links[2]), 0, ZMQ_POLLIN, 0};
        assert_true(time_now() < deadline);
        zmq_poll(&item, 1, 20);
    }
    link_release(&frame);
    assert_int_equal(which, 2);
    doors_choose(&doors, which);
    assert_int_equal(doors.count, 1);
    speak(fixture, &doors);
    doors_close(&doors);
    assert_int_equal(doors.count, 0);
}

static void there_is_at_least_one_door_and_not_too_many(void **state) {
    struct wire_fixture *fixture = *state;
    struct doors doors;
    assert_int_equal(doors_open(&doors, fixture->zmq, &settings, 0, NULL),
                     STATUS_OK);
    assert_int_equal(doors.count, 1);
    doors_close(&doors);
    assert_int_equal(doors_open(&doors, fixture->zmq, &settings, 999, NULL),
                     STATUS_OK);
    assert_int_equal(doors.count, DOORS_MAX);
    assert_false(doors_commit(&doors, "who", 3));
    doors_close(&doors);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            the_peer_is_found_behind_one_of_the_ports, wire_fixture_setup,
            wire_fixture_teardown),
        cmocka_unit_test_setup_teardown(
            there_is_at_least_one_door_and_not_too_many, wire_fixture_setup,
            wire_fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
