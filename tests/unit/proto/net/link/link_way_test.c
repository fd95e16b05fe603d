/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/net/link/link.h"

#include "proto/base/time.h"
#include "proto/net/link/link_parts.h"
#include "tests/lib/wire_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>
#include <unistd.h>

/* A client without a server of its run on this host. */
static void who_is_not_on_this_host_is_reached_over_tcp(void **state) {
    struct wire_fixture *fixture = *state;
    struct failure why;
    char text[128];
    link_prefer_lane(fixture->client, (uint64_t)getpid());
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
    await_way(fixture->client, "over TCP: it has ended");
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

int main(void) {
    const struct CMUnitTest tests[] = {
        WIRE_FIXTURE_TEST(who_is_not_on_this_host_is_reached_over_tcp),
        WIRE_FIXTURE_LANE_TEST(who_loses_a_young_lane_goes_by_tcp),
        WIRE_FIXTURE_LANE_TEST(
            who_loses_an_old_lane_to_an_end_is_told_of_the_end),
        WIRE_FIXTURE_LANE_TEST(who_is_not_answered_in_a_second_goes_by_tcp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
