/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "chief/control/control_server.h"

#include "core/base/secret_file.h"
#include "core/base/time.h"
#include "core/net/link/zap_handler.h"
#include "tests/lib/link_fixture.h"
#include "tests/lib/test.h"

enum { RUN = 4711, CHIEF = 99, WORKER = 5 };

/* Worker 0 holds its slot and writes from the fixture's client. */
struct fixture {
    struct link_fixture *wire;
    struct roster roster;
    struct roster_slot *slot;
    struct control_server *control_server;
    uint32_t peer;
    Capstan__Control *received; /* by the worker */
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    void *wire;
    link_fixture_setup(&wire);
    fixture->wire = wire;
    fixture->peer = link_fixture_connect(wire);
    assert_true(roster_open(&fixture->roster, false, 1, 1, TIME_S));
    fixture->control_server =
        control_server_open(fixture->wire->server_link, &fixture->roster,
                            &fixture->wire->log, RUN, CHIEF);
    assert_non_null(fixture->control_server);
    fixture->slot = roster_find(&fixture->roster, CLUSTER_WORKER, 0);
    struct roster_claim claim = {WORKER, 1, 2, "h", "h:2", 0};
    roster_claim(fixture->slot, &claim, time_now());
    control_server_bind_peer(fixture->control_server, fixture->slot,
                             fixture->peer);
    *state = fixture;
    return 0;
}

TEARDOWN(teardown) {
    void *wire = fixture->wire;
    message_free_control(&fixture->received);
    control_server_close(&fixture->control_server);
    roster_close(&fixture->roster);
    link_fixture_teardown(&wire);
    free(fixture);
}

FIXTURE(setup, teardown);

static void write_control(struct link *link, Capstan__Control *control,
                          uint64_t run, uint64_t incarnation) {
    uint8_t bytes[256];
    control->version = MESSAGE_VERSION;
    control->run = run;
    control->incarnation = incarnation;
    size_t size = capstan__control__pack(control, bytes);
    assert_true(link_commit(link, 0, bytes, size, NULL));
}

/* The worker writes one Ready. */
static void write_message(struct link *link, uint64_t run, uint64_t incarnation,
                          uint64_t seq, uint64_t ack) {
    Capstan__Ready ready = CAPSTAN__READY__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.seq = seq;
    control.ack = ack;
    control.body_case = CAPSTAN__CONTROL__BODY_READY;
    control.ready = &ready;
    write_control(link, &control, run, incarnation);
}

/* WORKER joins again, as by a new connection, and says that it is INDEX. */
static void write_join_as(struct link *link, uint32_t index) {
    Capstan__Join join = CAPSTAN__JOIN__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    join.role = CLUSTER_WORKER;
    join.index = index;
    control.body_case = CAPSTAN__CONTROL__BODY_JOIN;
    control.join = &join;
    write_control(link, &control, RUN, WORKER);
}

/* The next message within LIMIT; false when none comes. */
static bool read_message(struct fixture *fixture,
                         struct control_message *incoming, int64_t limit) {
    int64_t deadline = time_now() + limit;
    zmq_pollitem_t item = {link_socket(fixture->wire->server_link), 0,
                           ZMQ_POLLIN, 0};
    while (!control_server_receive(fixture->control_server, time_now(),
                                   incoming)) {
        if (time_now() >= deadline)
            return false;
        zmq_poll(&item, 1, time_poll_ms(time_now(), deadline));
    }
    return true;
}

/* A chief's server with keys, of which the first two workers have theirs. */
static struct link_keys *derive_keys_of(struct link_party self) {
    static const unsigned char secret[SECRET_FILE_BYTES] = {1, 2, 3};
    struct link_keys_settings settings = {
        .roles = {{"chief", 1, 1}, {"worker", 2, 0}},
        .client = self,
        .servers = {self}};
    struct link_keys *keys;
    assert_ok(link_keys_open(&keys, secret, &settings, &failure));
    return keys;
}

/* What the chief gets of a join as worker JOINS, with the number of the worker
 * 0 that is there, by who has the key of worker INDEX. */
static bool is_joined_by(struct fixture *fixture, struct link_keys *chiefs,
                         uint32_t index, uint32_t joins) {
    struct link_keys *keys =
        derive_keys_of(cluster_party(CLUSTER_WORKER, index));
    struct link_settings settings = {.max_frame = LINK_FIXTURE_MAX_FRAME,
                                     .keys = chiefs,
                                     .party = cluster_party(CLUSTER_CHIEF, 0)};
    struct control_message incoming;
    struct link *server, *client;
    assert_ok(link_open(&server, fixture->wire->zmq, LINK_SERVER, &settings,
                        &failure));
    assert_ok(link_bind(server, 0, &failure));
    settings.keys = keys;
    assert_ok(link_open(&client, fixture->wire->zmq, LINK_CLIENT, &settings,
                        &failure));
    assert_ok(link_connect(client, textf("127.0.0.1:%u", link_port(server)),
                           &failure));
    struct control_server *control_server = control_server_open(
        server, &fixture->roster, &fixture->wire->log, RUN, CHIEF);
    zmq_pollitem_t item = {link_socket(client), 0, ZMQ_POLLOUT, 0};
    assert_int_equal(zmq_poll(&item, 1, 60000), 1);
    write_join_as(client, joins);
    item = (zmq_pollitem_t){link_socket(server), 0, ZMQ_POLLIN, 0};
    assert_int_equal(zmq_poll(&item, 1, 60000), 1);
    bool joined = control_server_receive(control_server, time_now(), &incoming);
    control_server_close(&control_server);
    link_close(&client);
    link_close(&server);
    link_keys_close(&keys);
    return joined;
}

TEST(a_worker_joins_as_the_task_of_its_key_alone) {
    struct link_party chief = cluster_party(CLUSTER_CHIEF, 0);
    struct link_keys *keys = derive_keys_of(chief);
    struct zap_handler *handler;
    assert_ok(
        zap_handler_open(&handler, fixture->wire->zmq, keys, chief, &failure));
    assert_true(is_joined_by(fixture, keys, 0, 0));
    link_fixture_capture_log(fixture->wire);
    assert_false(is_joined_by(fixture, keys, 1, 0));
    assert_false(is_joined_by(fixture, keys, 1, 1));
    assert_contains(link_fixture_captured_log(fixture->wire),
                    "as another process");
    zap_handler_close(&handler);
    link_keys_close(&keys);
}

/* A process of another release asks; its connection is then not read. */
TEST(a_join_of_another_release_is_answered) {
    struct control_message incoming;
    struct link_frame frame;
    uint8_t bytes[64];
    Capstan__Join join = CAPSTAN__JOIN__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT, *answer;
    struct link *client = link_fixture_client(fixture->wire);
    control.version = MESSAGE_VERSION + 1;
    control.body_case = CAPSTAN__CONTROL__BODY_JOIN;
    control.join = &join;
    size_t size = capstan__control__pack(&control, bytes);
    zmq_pollitem_t item = {link_socket(client), 0, ZMQ_POLLOUT, 0};
    assert_int_equal(zmq_poll(&item, 1, 60000), 1);
    assert_true(link_commit(client, 0, bytes, size, NULL));
    assert_false(read_message(fixture, &incoming, TIME_S / 2));
    link_fixture_receive(client, &frame);
    assert_ok(message_read_control(&answer, frame.header.data,
                                   frame.header.size, &failure));
    assert_int_equal(answer->refusal->code, FAILURE_VERSION_MISMATCH);
    message_free_control(&answer);
    link_release(&frame);
    link_close(&client);
}

static void expect_message(struct fixture *fixture, uint64_t seq) {
    struct control_message incoming;
    assert_true(read_message(fixture, &incoming, LINK_FIXTURE_DEADLINE));
    assert_ptr_equal(incoming.slot, fixture->slot);
    assert_int_equal(incoming.control->seq, seq);
}

/* What the worker hears next. */
static const Capstan__Control *receive_message(struct fixture *fixture,
                                               struct link *link) {
    struct link_frame frame;
    message_free_control(&fixture->received);
    link_fixture_receive(link, &frame);
    assert_ok(message_read_control(&fixture->received, frame.header.data,
                                   frame.header.size, &failure));
    link_release(&frame);
    return fixture->received;
}

static void send_stop(struct fixture *fixture, const char *text) {
    Capstan__Stop stop = CAPSTAN__STOP__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    stop.text = (char *)text;
    control.body_case = CAPSTAN__CONTROL__BODY_STOP;
    control.stop = &stop;
    control_server_send(fixture->control_server, fixture->slot, &control);
}

TEST(messages_arrive_once_in_order) {
    struct link *worker = fixture->wire->client;
    struct control_message incoming;
    write_message(worker, RUN, WORKER, 2, 0); /* too early */
    write_message(worker, RUN, WORKER, 1, 0);
    write_message(worker, RUN, WORKER, 1, 0); /* twice */
    write_message(worker, RUN + 1, WORKER, 2, 0);
    write_message(worker, RUN, WORKER, 2, 0);
    write_message(worker, RUN, WORKER, 0, 0); /* unnumbered */
    expect_message(fixture, 1);
    expect_message(fixture, 2);
    expect_message(fixture, 0);
    assert_false(read_message(fixture, &incoming, 50 * TIME_MS));
}

TEST(messages_of_unknown_peers_have_no_slot) {
    struct control_message incoming;
    write_message(fixture->wire->client, RUN, WORKER + 1, 9, 0);
    assert_true(read_message(fixture, &incoming, LINK_FIXTURE_DEADLINE));
    assert_null(incoming.slot);
    assert_int_equal(incoming.peer, fixture->peer);
    Capstan__Refusal refusal = CAPSTAN__REFUSAL__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    refusal.code = FAILURE_DECLARED_DEAD;
    refusal.text = "who?";
    control.body_case = CAPSTAN__CONTROL__BODY_REFUSAL;
    control.refusal = &refusal;
    control_server_reply(fixture->control_server, incoming.peer, &control);
    const Capstan__Control *received =
        receive_message(fixture, fixture->wire->client);
    assert_string_equal(received->refusal->text, "who?");
    assert_int_equal(received->run, 0);
    assert_int_equal(received->incarnation, CHIEF);
}

/* Who has picked up the numbers of a member is not it: it neither speaks in its
 * name nor hears what it is told. */
TEST(only_a_join_moves_a_session) {
    struct control_message incoming;
    struct link *other = link_fixture_client(fixture->wire);
    zmq_pollitem_t item = {link_socket(other), 0, ZMQ_POLLOUT, 0};
    assert_int_equal(zmq_poll(&item, 1, 60000), 1);
    write_message(other, RUN, WORKER, 1, 0);
    assert_false(read_message(fixture, &incoming, 100 * TIME_MS));
    send_stop(fixture, "for the member");
    assert_string_equal(
        receive_message(fixture, fixture->wire->client)->stop->text,
        "for the member");
    write_join_as(other, 0);
    assert_true(read_message(fixture, &incoming, LINK_FIXTURE_DEADLINE));
    write_message(fixture->wire->client, RUN, WORKER, 1, 0);
    assert_false(read_message(fixture, &incoming, 100 * TIME_MS));
    write_message(other, RUN, WORKER, 1, 0);
    expect_message(fixture, 1);
    control_server_step(fixture->control_server, time_now(), 100 * TIME_S);
    assert_string_equal(receive_message(fixture, other)->stop->text,
                        "for the member");
    link_close(&other);
}

TEST(garbage_closes_the_connection_and_logs_one_line) {
    struct control_message incoming;
    struct link *unknown_peer = link_fixture_client(fixture->wire);
    link_fixture_capture_log(fixture->wire);
    for (int i = 0; i < 5; i++)
        link_fixture_send(unknown_peer, 0, "\377garbage", NULL);
    assert_false(read_message(fixture, &incoming, 100 * TIME_MS));
    write_message(fixture->wire->client, RUN, WORKER, 1, 0);
    expect_message(fixture, 1);
    const char *said = link_fixture_captured_log(fixture->wire);
    assert_contains(said, "not read any more");
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
    link_close(&unknown_peer);
}

TEST(sent_messages_are_stamped_and_kept_until_acknowledged) {
    send_stop(fixture, "one");
    assert_false(
        control_server_is_drained(fixture->control_server, fixture->slot));
    const Capstan__Control *control =
        receive_message(fixture, fixture->wire->client);
    assert_int_equal(control->run, RUN);
    assert_int_equal(control->incarnation, CHIEF);
    assert_int_equal(control->seq, 1);
    control_server_step(fixture->control_server, time_now() + 3 * TIME_S,
                        100 * TIME_S);
    control = receive_message(fixture, fixture->wire->client);
    assert_int_equal(control->seq, 1); /* again */
    write_message(fixture->wire->client, RUN, WORKER, 1, 1);
    expect_message(fixture, 1);
    assert_true(
        control_server_is_drained(fixture->control_server, fixture->slot));
}

TEST(after_a_reconnect_all_messages_are_resent_in_order) {
    struct control_message incoming;
    link_close(&fixture->wire->client);
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    char byte = 0;
    while (link_commit(fixture->wire->server_link, fixture->peer, &byte, 1,
                       NULL) &&
           time_now() < deadline)
        zmq_poll(NULL, 0, 5); /* until the server knows that it is gone */
    send_stop(fixture, "one");
    send_stop(fixture, "two");
    send_stop(fixture, "three");
    struct link *again = link_fixture_client(fixture->wire);
    zmq_pollitem_t item = {link_socket(again), 0, ZMQ_POLLOUT, 0};
    assert_int_equal(zmq_poll(&item, 1, 60000), 1);
    write_join_as(again, 0);
    assert_true(read_message(fixture, &incoming, LINK_FIXTURE_DEADLINE));
    control_server_step(fixture->control_server, time_now(), 100 * TIME_S);
    uint64_t expected = 1;
    while (expected <= 3) {
        const Capstan__Control *control = receive_message(fixture, again);
        if (control->body_case == CAPSTAN__CONTROL__BODY_STOP)
            assert_int_equal(control->seq, expected++);
    }
    link_close(&again);
}

TEST(heartbeats_carry_the_acknowledgement) {
    write_message(fixture->wire->client, RUN, WORKER, 1, 0);
    expect_message(fixture, 1);
    control_server_step(fixture->control_server, time_now(), TIME_S);
    const Capstan__Control *control =
        receive_message(fixture, fixture->wire->client);
    assert_int_equal(control->body_case, CAPSTAN__CONTROL__BODY_HEARTBEAT);
    assert_int_equal(control->ack, 1);
    assert_int_equal(control->seq, 0);
}

TEST(only_slot_members_receive_messages) {
    roster_remove(fixture->slot);
    send_stop(fixture, "unheard");
    control_server_step(fixture->control_server, time_now(), 0);
    assert_true(
        control_server_is_drained(fixture->control_server, fixture->slot));
    link_fixture_expect_nothing(fixture->wire->client);
}

TEST(a_new_member_starts_at_sequence_one) {
    send_stop(fixture, "for the first");
    write_message(fixture->wire->client, RUN, WORKER, 1, 0);
    expect_message(fixture, 1);
    roster_remove(fixture->slot);
    struct roster_claim claim = {WORKER + 1, 1, 2, "h", "h:2", 0};
    roster_claim(fixture->slot, &claim, time_now());
    control_server_bind_peer(fixture->control_server, fixture->slot,
                             fixture->peer);
    assert_true(
        control_server_is_drained(fixture->control_server, fixture->slot));
    write_message(fixture->wire->client, RUN, WORKER + 1, 1, 0);
    expect_message(fixture, 1);
    send_stop(fixture, "for the second");
    receive_message(fixture, fixture->wire->client);
    assert_string_equal(
        receive_message(fixture, fixture->wire->client)->stop->text,
        "for the second");
    assert_int_equal(fixture->received->seq, 1);
}

TEST(a_message_to_a_role_reaches_all_its_members) {
    struct roster_claim claim = {77, 1, 2, "h", "h:2", 0};
    struct roster_slot *ps = roster_ps(&fixture->roster, 0);
    roster_claim(ps, &claim, time_now());
    control_server_bind_peer(fixture->control_server, ps, fixture->peer);
    Capstan__Stop stop = CAPSTAN__STOP__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.body_case = CAPSTAN__CONTROL__BODY_STOP;
    control.stop = &stop;
    control_server_broadcast(fixture->control_server, CLUSTER_PS, &control);
    assert_false(control_server_is_drained(fixture->control_server, ps));
    assert_true(
        control_server_is_drained(fixture->control_server, fixture->slot));
    control_server_broadcast(fixture->control_server, CLUSTER_WORKER, &control);
    assert_false(
        control_server_is_drained(fixture->control_server, fixture->slot));
    control_server_broadcast(fixture->control_server, CLUSTER_ROLES, &control);
    static const uint64_t seqs[] = {1, 1, 2, 2};
    for (int i = 0; i < 4; i++)
        assert_int_equal(receive_message(fixture, fixture->wire->client)->seq,
                         seqs[i]);
}
