/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/net/link/link.h"

#include "proto/base/time.h"
#include "proto/net/link/link_internal.h"
#include "tests/lib/link_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>
#include <unistd.h>

/* A client without a server of its run on this host. */
static void a_peer_on_another_host_is_reached_over_tcp(void **state) {
    struct link_fixture *fixture = *state;
    struct failure why;
    char text[128];
    link_prefer_shm(fixture->client, (uint64_t)getpid());
    assert_true(link_transport(fixture->client, text, sizeof text));
    assert_non_null(strstr(text, "over TCP: it is not on this host"));
    assert_false(link_transport(fixture->client, text, sizeof text));
    assert_int_equal(link_connect(fixture->client, fixture->address, &why), 0);
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
    assert_non_null(strstr(text, expected));
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

/* A lane that has held is called again; who ended has no name to be called by,
 * as if it had never been on this host. */
static void losing_an_old_shared_memory_connection_reports_the_close(
    void **state) {
    struct link_fixture *fixture = *state;
    link_fixture_connect(fixture);
    await_transport(fixture->client, "over shared memory");
    fixture->client->shm_since -= 60 * TIME_S;
    link_close(&fixture->server_link);
    await_transport(fixture->client, "over TCP: it has ended");
}

/* The server's end of a lane never answers. */
static void a_peer_without_an_answer_in_a_second_uses_tcp(void **state) {
    struct link_fixture *fixture = *state;
    struct failure why;
    assert_int_equal(link_connect(fixture->client, fixture->address, &why), 0);
    link_fixture_prefer_shm(fixture);
    assert_false(link_commit(fixture->client, 0, "x", 1, NULL));
    await_transport(fixture->client, "over TCP: no answer within 1 s");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        LINK_FIXTURE_TEST(a_peer_on_another_host_is_reached_over_tcp),
        LINK_FIXTURE_SHM_TEST(
            losing_a_new_shared_memory_connection_falls_back_to_tcp),
        LINK_FIXTURE_SHM_TEST(
            losing_an_old_shared_memory_connection_reports_the_close),
        LINK_FIXTURE_SHM_TEST(a_peer_without_an_answer_in_a_second_uses_tcp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
