/* SPDX-License-Identifier: Apache-2.0 */
/* A member has ended if its connection is closed and its port refuses. */
#include "chief/control/port_probe.h"

#include "core/base/time.h"
#include "tests/lib/test.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

/* A listener, and SLOT with its address, whose connection was closed at 1. */
static int listen_for(struct roster_slot *slot) {
    struct sockaddr_in here = {.sin_family = AF_INET};
    socklen_t size = sizeof here;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(listener, (struct sockaddr *)&here, size), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&here, &size), 0);
    *slot = (struct roster_slot){
        .state = ROSTER_HELD, .closed = 1, .accepts = true};
    snprintf(slot->address, sizeof slot->address, "127.0.0.1:%u",
             ntohs(here.sin_port));
    return listener;
}

static bool refuses_at(struct port_probe *probe, const struct roster_slot *slot,
                       int64_t now) {
    for (int turn = 0; turn < 3; turn++)
        if (port_probe_refuses(probe, slot, now))
            return true;
    return false;
}

TEST(a_port_that_refuses_three_times_is_known_a_second_after_the_end) {
    struct port_probe probe = {0};
    struct roster_slot slot;
    close(listen_for(&slot));
    assert_false(refuses_at(&probe, &slot, TIME_S / 4));
    assert_false(refuses_at(&probe, &slot, TIME_S / 2 + 1));
    assert_false(refuses_at(&probe, &slot, TIME_S * 3 / 4 + 1));
    assert_true(refuses_at(&probe, &slot, TIME_S + 1));
    port_probe_close(&probe);
}

TEST(a_port_that_answers_shows_no_end) {
    struct port_probe probe = {0};
    struct roster_slot slot;
    int listener = listen_for(&slot);
    assert_false(refuses_at(&probe, &slot, TIME_S));
    close(listener); /* tried once: the silence of the ps decides */
    assert_false(refuses_at(&probe, &slot, 2 * TIME_S));
    slot.closed = TIME_S; /* the next connection */
    assert_false(refuses_at(&probe, &slot, 2 * TIME_S));
    assert_false(refuses_at(&probe, &slot, 3 * TIME_S));
    assert_true(refuses_at(&probe, &slot, 4 * TIME_S));
    port_probe_close(&probe);
}

TEST(one_that_has_joined_again_or_is_gone_is_not_tried) {
    struct port_probe probe = {0};
    struct roster_slot slot;
    close(listen_for(&slot));
    slot.closed = 0;
    assert_false(refuses_at(&probe, &slot, TIME_S));
    slot.closed = 1;
    slot.state = ROSTER_VACATED;
    assert_false(refuses_at(&probe, &slot, TIME_S));
    slot.state = ROSTER_HELD;
    slot.accepts = false; /* it has never been reached */
    for (int64_t turn = 1; turn <= 4; turn++)
        assert_false(refuses_at(&probe, &slot, turn * TIME_S));
    slot.accepts = true;
    snprintf(slot.address, sizeof slot.address, "no number:1");
    assert_false(refuses_at(&probe, &slot, TIME_S));
    port_probe_close(&probe);
}
