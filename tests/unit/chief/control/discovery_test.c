/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/control/discovery.h"

#include "core/base/time.h"
#include "tests/lib/link_fixture.h"
#include "tests/lib/test.h"

/* The ps accepts the connection, and joins by other means before the chief has
 * sent anything: a connection without a message would be logged as a stranger.
 */
TEST_WITH(link_fixture_setup, link_fixture_teardown,
          a_ps_that_joins_meanwhile_gets_the_announcement) {
    struct link_fixture *fixture = *state;
    struct cluster_task task = {.port = fixture->port};
    snprintf(task.host, sizeof task.host, "127.0.0.1");
    struct cluster cluster = {.role = CLUSTER_CHIEF};
    cluster.jobs[CLUSTER_PS] = (struct cluster_job){.tasks = &task, .count = 1};
    struct roster roster;
    assert_true(roster_open(&roster, false, 0, 1, TIME_S));
    struct discovery *discovery =
        discovery_open(&(struct discovery_settings){.zmq = fixture->zmq,
                                                    .address = "10.0.0.1:2222",
                                                    .cluster = &cluster,
                                                    .roster = &roster,
                                                    .log = &fixture->log});
    zmq_pollitem_t items[LINK_POLL_ITEMS];
    int count = link_poll_items(fixture->server_link, items);
    int64_t now = time_now(), deadline = now + LINK_FIXTURE_DEADLINE;
    do { /* until the connection is accepted */
        assert_true(time_now() < deadline);
        discovery_step(discovery, now += TIME_S / 4);
    } while (!zmq_poll(items, count, 50));
    roster_ps(&roster, 0)->state = ROSTER_HELD;
    struct link_frame frame;
    for (int i = 0; i < 4; i++, zmq_poll(NULL, 0, 50))
        discovery_step(discovery, now += TIME_S / 4);
    char text[256];
    link_fixture_receive(fixture->server_link, &frame);
    assert_false(link_bad_peer(fixture->server_link, text, sizeof text));
    link_release(&frame);
    discovery_close(&discovery);
    roster_close(&roster);
}

/* Tries a member of FIXTURE's server, or of a port that refuses, once. */
static bool is_accepted(struct link_fixture *fixture, bool refuses) {
    struct cluster cluster = {.role = CLUSTER_CHIEF};
    struct roster roster;
    assert_true(roster_open(&roster, false, 0, 1, TIME_S));
    struct roster_slot *slot = roster_ps(&roster, 0);
    struct roster_claim claim = {.incarnation = 7,
                                 .port = fixture->port,
                                 .host = "",
                                 .address =
                                     textf("127.0.0.%u:%u", refuses ? 2u : 1u,
                                           refuses ? 1u : fixture->port)};
    assert_int_equal(roster_claim(slot, &claim, 1), ROSTER_GRANTED);
    struct discovery *discovery =
        discovery_open(&(struct discovery_settings){.zmq = fixture->zmq,
                                                    .address = "10.0.0.1:2222",
                                                    .cluster = &cluster,
                                                    .roster = &roster,
                                                    .log = &fixture->log});
    int64_t now = time_now(), deadline = now + LINK_FIXTURE_DEADLINE;
    for (int turn = 0; turn < 20 && !slot->accepts; turn++) {
        assert_true(time_now() < deadline);
        discovery_step(discovery, now += TIME_S / 4);
        zmq_poll(NULL, 0, 50);
    }
    bool accepts = slot->accepts;
    assert_true(slot->is_tried);
    discovery_close(&discovery);
    roster_close(&roster);
    return accepts;
}

TEST_WITH(link_fixture_setup, link_fixture_teardown,
          whether_a_member_is_reached_is_tried_once) {
    struct link_fixture *fixture = *state;
    struct link_frame frame;
    char text[256];
    assert_false(is_accepted(fixture, true));
    assert_true(is_accepted(fixture, false));
    link_fixture_receive(fixture->server_link, &frame);
    assert_false(link_bad_peer(fixture->server_link, text, sizeof text));
    link_release(&frame);
}
