/* SPDX-License-Identifier: Apache-2.0 */
/* A member of a run with the test for its chief: messages and time are the
 * test's. */
#define STATE struct link_fixture *fixture

#include "proto/messages/control_client.h"

#include "core/base/time.h"
#include "proto/messages/launch_record.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/link_fixture.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RUN = 4711, CHIEF = 99 };

static struct process process; /* the member's */
static double restart_within;
static int record;               /* launch_record.h; 0: none */
static struct member_past *past; /* of a ps; NULL: the member is a worker */

static enum cluster_role role(void) {
    return past ? CLUSTER_PS : CLUSTER_WORKER;
}

/* CHIEF's is the first of COUNT ports. */
static struct control_client *open_at(struct link_fixture *fixture,
                                      const struct cluster_task *chief,
                                      uint16_t count) {
    static struct cluster_task self = {.host = "me"};
    static struct member member;
    process = (struct process){.zmq = fixture->zmq, .log = &fixture->log};
    member = (struct member){.role = role(),
                             .past = past,
                             .index = 3,
                             .self = &self,
                             .chief = chief,
                             .chief_ports = count,
                             .join_timeout = 30,
                             .restart_within = &restart_within,
                             .record = record};
    struct control_client_settings settings = {
        .process = &process, .member = &member, .port = 1234};
    struct control_client *client;
    assert_ok(control_client_open(&client, &settings, &failure));
    return client;
}

/* The fixture's server is the chief. */
static struct control_client *open_client(struct link_fixture *fixture,
                                          bool known) {
    static struct cluster_task chief = {.host = "127.0.0.1"};
    chief.port = fixture->port;
    return open_at(fixture, known ? &chief : NULL, 0);
}

static enum status step(struct control_client *client,
                        const Capstan__Control **order, struct failure *why) {
    enum status status = control_client_step(client, time_now(), why);
    *order = NULL;
    return status ? status
                  : control_client_receive(client, time_now(), order, why);
}

/* The next control message that the chief gets; the member steps meanwhile. The
 * caller frees it. */
static Capstan__Control *receive_next(struct link_fixture *fixture,
                                      struct control_client *client,
                                      uint32_t *peer) {
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    const Capstan__Control *order;
    Capstan__Control *control;
    struct link_frame frame;
    assert_ok(step(client, &order, &failure));
    while (!link_view(fixture->server_link, &frame)) {
        zmq_pollitem_t item = {link_socket(fixture->server_link), 0, ZMQ_POLLIN,
                               0};
        assert_true(time_now() < deadline);
        zmq_poll(&item, 1, 20);
        assert_ok(step(client, &order, &failure));
    }
    assert_ok(message_read_control(&control, frame.header.data,
                                   frame.header.size, &failure));
    *peer = frame.peer;
    link_release(&frame);
    return control;
}

/* The same of kind BODY. */
static Capstan__Control *receive_message(struct link_fixture *fixture,
                                         struct control_client *client,
                                         Capstan__Control__BodyCase body,
                                         uint32_t *peer) {
    Capstan__Control *control = receive_next(fixture, client, peer);
    for (; control->body_case != body;
         control = receive_next(fixture, client, peer))
        message_free_control(&control);
    return control;
}

static void send_order(struct link_fixture *fixture, uint32_t peer,
                       Capstan__Control *control) {
    uint8_t bytes[4096];
    if (!control->version)
        control->version = MESSAGE_VERSION;
    if (!control->incarnation)
        control->incarnation = CHIEF;
    size_t size = capstan__control__pack(control, bytes);
    assert_true(link_commit(fixture->server_link, peer, bytes, size, NULL));
}

/* The next order; fails when none comes. */
static const Capstan__Control *await_order(struct control_client *client) {
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    const Capstan__Control *order = NULL;
    while (!order) {
        assert_true(time_now() < deadline);
        assert_ok(step(client, &order, &failure));
        zmq_pollitem_t item = {control_client_socket(client), 0, ZMQ_POLLIN, 0};
        if (!order)
            zmq_poll(&item, 1, 20);
    }
    return order;
}

static void welcome(struct link_fixture *fixture, uint32_t peer) {
    Capstan__Welcome message = CAPSTAN__WELCOME__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.run = RUN;
    control.seq = 1;
    message.trainers = 4;
    message.chief_within = 60;
    message.may_adopt = past != NULL;
    control.body_case = CAPSTAN__CONTROL__BODY_WELCOME;
    control.welcome = &message;
    send_order(fixture, peer, &control);
}

static uint32_t join(struct link_fixture *fixture,
                     struct control_client *client) {
    uint32_t peer;
    Capstan__Control *control =
        receive_message(fixture, client, CAPSTAN__CONTROL__BODY_JOIN, &peer);
    assert_int_equal(control->join->role, role());
    assert_int_equal(control->join->index, 3);
    assert_int_equal(control->join->port, 1234);
    assert_string_equal(control->join->address, "me");
    assert_int_equal(control->incarnation, process.incarnation);
    assert_int_equal(control->run, 0);
    message_free_control(&control);
    welcome(fixture, peer);
    return peer;
}

static void order_stop(struct link_fixture *fixture, uint32_t peer,
                       uint64_t run, uint64_t seq) {
    Capstan__Stop stop = CAPSTAN__STOP__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.run = run;
    control.seq = seq;
    control.body_case = CAPSTAN__CONTROL__BODY_STOP;
    control.stop = &stop;
    send_order(fixture, peer, &control);
}

FIXTURE(link_fixture_setup, link_fixture_teardown);

TEST(a_client_joins_and_receives_the_welcome_first) {
    struct control_client *client = open_client(fixture, true);
    assert_false(control_client_is_joined(client));
    join(fixture, client);
    const Capstan__Control *order = await_order(client);
    assert_int_equal(order->body_case, CAPSTAN__CONTROL__BODY_WELCOME);
    assert_true(control_client_is_joined(client));
    assert_int_equal(process.run, RUN);
    control_client_close(&client);
    assert_null(client);
}

/* It is two ports above the first one. */
TEST(the_chief_is_found_at_one_of_the_ports) {
    struct cluster_task chief = {.host = "127.0.0.1",
                                 .port = fixture->port - 2};
    struct control_client *client = open_at(fixture, &chief, 4);
    uint32_t peer = join(fixture, client);
    assert_int_equal(await_order(client)->body_case,
                     CAPSTAN__CONTROL__BODY_WELCOME);
    order_stop(fixture, peer, RUN, 2); /* to the one link that is left */
    assert_int_equal(await_order(client)->seq, 2);
    control_client_close(&client);
}

TEST(the_number_of_ports_is_bounded) {
    struct cluster_task chief = {.host = "127.0.0.1", .port = 2000};
    struct control_client *client = open_at(fixture, &chief, 999);
    assert_fails(
        control_client_step(client, time_now() + 31 * TIME_S, &failure),
        &failure, FAILURE_NO_CHIEF);
    assert_non_null(strstr(failure.text, "one of the ports 2000 to 2015"));
    control_client_close(&client);
}

TEST(commands_arrive_once_in_order_and_from_this_run) {
    struct control_client *client = open_client(fixture, true);
    uint32_t peer = join(fixture, client);
    assert_int_equal(await_order(client)->body_case,
                     CAPSTAN__CONTROL__BODY_WELCOME);
    order_stop(fixture, peer, RUN, 1);     /* came before */
    order_stop(fixture, peer, RUN, 3);     /* too early */
    order_stop(fixture, peer, RUN + 1, 2); /* another run's */
    welcome(fixture, peer);
    order_stop(fixture, peer, RUN, 2);
    order_stop(fixture, peer, RUN, 2);
    order_stop(fixture, peer, RUN, 3);
    assert_int_equal(await_order(client)->seq, 2);
    assert_int_equal(await_order(client)->seq, 3);
    const Capstan__Control *order;
    assert_ok(step(client, &order, &failure));
    assert_null(order);
    control_client_close(&client);
}

static void send_heartbeat(struct link_fixture *fixture, uint32_t peer,
                           uint64_t ack) {
    Capstan__Heartbeat heartbeat = CAPSTAN__HEARTBEAT__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.run = RUN;
    control.ack = ack;
    control.body_case = CAPSTAN__CONTROL__BODY_HEARTBEAT;
    control.heartbeat = &heartbeat;
    send_order(fixture, peer, &control);
}

static void send_ready(struct control_client *client) {
    Capstan__Ready ready = CAPSTAN__READY__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.body_case = CAPSTAN__CONTROL__BODY_READY;
    control.ready = &ready;
    control_client_send_reliable(client, &control);
}

TEST(messages_are_resent_until_acknowledged) {
    struct control_client *client = open_client(fixture, true);
    uint32_t peer = join(fixture, client);
    await_order(client);
    send_ready(client);
    for (int time = 0; time < 2; time++) {
        Capstan__Control *received = receive_message(
            fixture, client, CAPSTAN__CONTROL__BODY_READY, &peer);
        assert_int_equal(received->seq, 1);
        assert_int_equal(received->run, RUN);
        message_free_control(&received);
        assert_false(control_client_is_drained(client));
    }
    send_heartbeat(fixture, peer, 1);
    Capstan__Control *received = receive_message(
        fixture, client, CAPSTAN__CONTROL__BODY_HEARTBEAT, &peer);
    message_free_control(&received);
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    const Capstan__Control *order;
    while (!control_client_is_drained(client) && time_now() < deadline)
        assert_ok(step(client, &order, &failure));
    assert_true(control_client_is_drained(client));
    control_client_close(&client);
}

/* What waits for an acknowledgement may be long, and the chief ends connections
 * that send much before it knows their sender. */
TEST(a_new_connection_resends_once_the_chief_has_answered) {
    struct control_client *client = open_client(fixture, true);
    uint32_t peer = join(fixture, client);
    await_order(client);
    send_ready(client);
    Capstan__Control *received =
        receive_message(fixture, client, CAPSTAN__CONTROL__BODY_READY, &peer);
    message_free_control(&received);
    link_close(&fixture->server_link);
    fixture->server_link = link_fixture_server(fixture, fixture->port);
    received =
        receive_message(fixture, client, CAPSTAN__CONTROL__BODY_JOIN, &peer);
    message_free_control(&received);
    for (int next = 0; next < 3; next++) {
        received = receive_next(fixture, client, &peer);
        assert_int_not_equal(received->body_case, CAPSTAN__CONTROL__BODY_READY);
        message_free_control(&received);
    }
    send_heartbeat(fixture, peer, 0);
    received =
        receive_message(fixture, client, CAPSTAN__CONTROL__BODY_READY, &peer);
    message_free_control(&received);
    control_client_close(&client);
}

TEST(a_heartbeat_carries_the_roles_figures) {
    struct control_client *client = open_client(fixture, true);
    uint32_t peer = join(fixture, client);
    await_order(client);
    control_client_heartbeat(client)->clock = 17;
    control_client_send_heartbeat(client);
    Capstan__Control *received = receive_message(
        fixture, client, CAPSTAN__CONTROL__BODY_HEARTBEAT, &peer);
    assert_int_equal(received->heartbeat->clock, 17);
    assert_int_equal(received->ack, 1);
    message_free_control(&received);
    control_client_close(&client);
}

static void send_plan(struct link_fixture *fixture, uint32_t peer,
                      uint64_t seq) {
    Capstan__Plan plan = CAPSTAN__PLAN__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    plan.lineage = RUN;
    control.run = RUN;
    control.seq = seq;
    control.body_case = CAPSTAN__CONTROL__BODY_PLAN;
    control.plan = &plan;
    send_order(fixture, peer, &control);
}

TEST(free_memory_is_reported_until_there_is_a_plan) {
    struct control_client *client = open_client(fixture, true);
    uint32_t peer = join(fixture, client);
    await_order(client);
    Capstan__Control *received = receive_message(
        fixture, client, CAPSTAN__CONTROL__BODY_HEARTBEAT, &peer);
    assert_true(received->heartbeat->n_memory > 0);
    assert_true(received->heartbeat->memory[0]->free > 0);
    assert_true(received->heartbeat->memory[0]->most >=
                received->heartbeat->memory[0]->free);
    message_free_control(&received);
    send_plan(fixture, peer, 2);
    await_order(client);
    do { /* one may be under way */
        message_free_control(&received);
        received = receive_message(fixture, client,
                                   CAPSTAN__CONTROL__BODY_HEARTBEAT, &peer);
    } while (received->ack < 2);
    assert_int_equal(received->heartbeat->n_memory, 0);
    message_free_control(&received);
    control_client_close(&client);
}

TEST(a_refusal_ends_the_client_with_its_code_and_text) {
    struct control_client *client = open_client(fixture, true);
    uint32_t peer;
    Capstan__Control *received =
        receive_message(fixture, client, CAPSTAN__CONTROL__BODY_JOIN, &peer);
    message_free_control(&received);
    Capstan__Refusal refusal = CAPSTAN__REFUSAL__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    refusal.code = FAILURE_SLOT_TAKEN;
    refusal.text = "worker 3 is already here";
    control.run = RUN;
    control.body_case = CAPSTAN__CONTROL__BODY_REFUSAL;
    control.refusal = &refusal;
    send_order(fixture, peer, &control);
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    const Capstan__Control *order;
    enum status status = STATUS_OK;
    while (!status && time_now() < deadline)
        status = step(client, &order, &failure);
    assert_error(status, FAILURE_SLOT_TAKEN);
    assert_string_equal(failure.text, "worker 3 is already here");
    assert_null(order);
    control_client_close(&client);
}

static void send_view(struct link_fixture *fixture, uint32_t peer,
                      uint64_t number) {
    Capstan__View view = CAPSTAN__VIEW__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    view.number = number;
    control.run = RUN;
    control.seq = 2 + number; /* after welcome and plan */
    control.body_case = CAPSTAN__CONTROL__BODY_VIEW;
    control.view = &view;
    send_order(fixture, peer, &control);
}

/* By a chief that has the place of CHIEF. */
static void send_unknown(struct link_fixture *fixture, uint32_t peer) {
    Capstan__Refusal refusal = CAPSTAN__REFUSAL__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    refusal.code = FAILURE_RUN_ENDED;
    control.run = RUN;
    control.incarnation = CHIEF + 1;
    control.body_case = CAPSTAN__CONTROL__BODY_REFUSAL;
    control.refusal = &refusal;
    send_order(fixture, peer, &control);
}

/* With so many BYTES of scores. */
static void send_evaluated(struct control_client *client, size_t bytes) {
    Capstan__Evaluated evaluated = CAPSTAN__EVALUATED__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    evaluated.scores = (ProtobufCBinaryData){bytes, calloc(bytes + 1, 1)};
    assert_non_null(evaluated.scores.data);
    control.body_case = CAPSTAN__CONTROL__BODY_EVALUATED;
    control.evaluated = &evaluated;
    control_client_send_reliable(client, &control);
    free(evaluated.scores.data);
}

/* The first view comes again after the second, by a chief that has not read the
 * evaluation of step 7. */
TEST(the_next_chief_gets_the_newest_view_and_what_the_last_one_has_read) {
    struct member_past of_ps = {0};
    past = &of_ps;
    struct control_client *client = open_client(fixture, true);
    uint32_t peer = join(fixture, client);
    send_plan(fixture, peer, 2);
    send_view(fixture, peer, 1);
    send_view(fixture, peer, 2);
    control_client_heartbeat(client)->clock = 7;
    for (uint64_t seq = 1; seq <= 4; seq++)
        assert_int_equal(await_order(client)->seq, seq);
    send_evaluated(client, 0);
    control_client_heartbeat(client)->clock = 9;
    send_view(fixture, peer, 1);
    send_unknown(fixture, peer);
    Capstan__Control *received;
    while (!(received = receive_message(fixture, client,
                                        CAPSTAN__CONTROL__BODY_JOIN, &peer))
                ->join->rejoin)
        message_free_control(&received);
    assert_int_equal(received->join->rejoin->view->number, 2);
    assert_int_equal(received->join->rejoin->heard, 7);
    message_free_control(&received);
    control_client_close(&client);
    past = NULL;
}

/* Of a chief that is silent for long, or whose place another one has. */
TEST(what_waits_for_a_chief_that_is_away_is_bounded) {
    struct member_past of_ps = {0};
    past = &of_ps;
    link_fixture_capture_log(fixture);
    struct control_client *client = open_client(fixture, true);
    uint32_t peer = join(fixture, client);
    send_plan(fixture, peer, 2);
    send_view(fixture, peer, 1);
    for (uint64_t seq = 1; seq <= 3; seq++)
        assert_int_equal(await_order(client)->seq, seq);
    send_unknown(fixture, peer);
    const Capstan__Control *order = NULL;
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    while (!control_client_is_orphaned(client)) {
        assert_true(time_now() < deadline);
        assert_ok(step(client, &order, &failure));
    }
    send_evaluated(client, 1 << 20);
    assert_ok(step(client, &order, &failure));
    assert_null(order);
    send_evaluated(client, 256 << 20);
    order = await_order(client);
    assert_int_equal(order->body_case, CAPSTAN__CONTROL__BODY_STOP);
    assert_contains(order->stop->text, "what waits for it takes 256 MiB");
    control_client_close(&client);
    past = NULL;
}

/* A chief of another job answers; then mine does. */
TEST(a_refusal_from_another_run_is_ignored) {
    link_fixture_capture_log(fixture);
    struct control_client *client = open_client(fixture, true);
    uint32_t peer;
    Capstan__Control *received =
        receive_message(fixture, client, CAPSTAN__CONTROL__BODY_JOIN, &peer);
    message_free_control(&received);
    Capstan__Refusal refusal = CAPSTAN__REFUSAL__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    refusal.code = FAILURE_WRONG_CHIEF;
    refusal.other_job = true;
    control.run = RUN;
    control.body_case = CAPSTAN__CONTROL__BODY_REFUSAL;
    control.refusal = &refusal;
    send_order(fixture, peer, &control);
    welcome(fixture, peer);
    assert_int_equal(await_order(client)->body_case,
                     CAPSTAN__CONTROL__BODY_WELCOME);
    assert_contains(link_fixture_captured_log(fixture), "another job's chief");
    control_client_close(&client);
}

/* It may be replaced by one of this release. */
TEST(a_chief_of_another_release_is_named_and_waited_past) {
    link_fixture_capture_log(fixture);
    struct control_client *client = open_client(fixture, true);
    const Capstan__Control *order;
    uint32_t peer;
    Capstan__Control *received =
        receive_message(fixture, client, CAPSTAN__CONTROL__BODY_JOIN, &peer);
    message_free_control(&received);
    Capstan__Refusal refusal = CAPSTAN__REFUSAL__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.version = MESSAGE_VERSION + 1;
    control.body_case = CAPSTAN__CONTROL__BODY_REFUSAL;
    control.refusal = &refusal;
    send_order(fixture, peer, &control);
    received =
        receive_message(fixture, client, CAPSTAN__CONTROL__BODY_JOIN, &peer);
    message_free_control(&received);
    enum status status =
        control_client_step(client, time_now() + 31 * TIME_S, &failure);
    assert_error(status, FAILURE_NO_CHIEF);
    assert_contains(failure.text, " answers as another release: it sent a "
                                  "message of protocol version ");
    welcome(fixture, peer);
    order = await_order(client);
    assert_int_equal(order->body_case, CAPSTAN__CONTROL__BODY_WELCOME);
    assert_contains(link_fixture_captured_log(fixture), "warning: 127.0.0.1:");
    control_client_close(&client);
}

/* As a ps does that gets a join. */
TEST(a_link_that_does_not_answer_a_join_is_named) {
    struct control_client *client = open_client(fixture, true);
    uint32_t peer;
    link_fixture_capture_log(fixture);
    Capstan__Control *received =
        receive_message(fixture, client, CAPSTAN__CONTROL__BODY_JOIN, &peer);
    message_free_control(&received);
    assert_ok(control_client_step(client, time_now() + 4 * TIME_S, &failure));
    assert_null(strstr(link_fixture_captured_log(fixture), "has not answered"));
    link_fixture_capture_log(fixture);
    for (int seconds = 8; seconds <= 12; seconds += 4)
        assert_ok(control_client_step(client, time_now() + seconds * TIME_S,
                                      &failure));
    const char *said = link_fixture_captured_log(fixture);
    const char *found = strstr(said, " has not answered a join for 5 s: a ps,");
    assert_non_null(found);
    if (strstr(found + 2, "has not answered"))
        fail_msg("said twice: %s", said);
    control_client_close(&client);
}

TEST(garbage_from_the_chief_is_logged_and_ignored) {
    link_fixture_capture_log(fixture);
    struct control_client *client = open_client(fixture, true);
    uint32_t peer = join(fixture, client);
    assert_true(link_commit(fixture->server_link, peer, "\377\377", 2, NULL));
    welcome(fixture, peer);
    assert_int_equal(await_order(client)->body_case,
                     CAPSTAN__CONTROL__BODY_WELCOME);
    order_stop(fixture, peer, RUN, 2);
    assert_int_equal(await_order(client)->seq, 2);
    assert_contains(link_fixture_captured_log(fixture),
                    "not a control message");
    control_client_close(&client);
}

/* Turns as a loop takes them, to UNTIL or the first failure. */
static enum status step_until(struct control_client *client, int64_t now,
                              int64_t until, struct failure *why) {
    enum status status = STATUS_OK;
    for (; !status && now <= until; now += TIME_S / 2)
        status = control_client_step(client, now, why);
    return status;
}

/* Time is an argument: nobody waits for it here. */
TEST(deadlines_name_the_chief_and_their_key) {
    struct control_client *client = open_client(fixture, true);
    const char *name = textf("the chief at 127.0.0.1:%u", fixture->port);
    assert_ok(control_client_step(client, time_now() + 29 * TIME_S, &failure));
    assert_error(
        control_client_step(client, time_now() + 31 * TIME_S, &failure),
        FAILURE_NO_CHIEF);
    assert_contains(failure.text, name);
    assert_contains(failure.text, "timeouts.join");
    control_client_close(&client);
    client = open_client(fixture, true);
    join(fixture, client);
    await_order(client);
    control_client_set_timeout(client, 10);
    int64_t now = time_now();
    assert_ok(step_until(client, now, now + 9 * TIME_S, &failure));
    assert_error(
        step_until(client, now + 9 * TIME_S, now + 11 * TIME_S, &failure),
        FAILURE_PEER_SILENT);
    assert_contains(failure.text, name);
    assert_contains(failure.text, "timeouts.peer");
    control_client_close(&client);
}

/* A stopped process finds its clock far on, and blames nobody else: its chief
 * has as long as before, and where it then says nothing, that may be why. */
TEST(a_suspended_member_reports_its_suspension) {
    link_fixture_capture_log(fixture);
    struct control_client *client = open_client(fixture, true);
    join(fixture, client);
    await_order(client);
    control_client_set_timeout(client, 10);
    int64_t now = time_now(), later = now + 23 * TIME_S;
    assert_ok(step_until(client, now, now + 3 * TIME_S, &failure));
    assert_ok(step_until(client, later, later + 6 * TIME_S, &failure));
    assert_contains(link_fixture_captured_log(fixture),
                    "this process itself stood still for 20 s");
    assert_error(
        step_until(client, later + 6 * TIME_S, later + 8 * TIME_S, &failure),
        FAILURE_PEER_SILENT);
    assert_contains(failure.text, "since this process itself stood still "
                                  "for 20 s");
    assert_null(strstr(failure.text, "it is gone"));
    control_client_close(&client);
}

TEST(the_next_deadline_is_never_in_the_past) {
    for (int known = 0; known < 2; known++) {
        struct control_client *client = open_client(fixture, known);
        if (known) /* a name server that takes long */
            control_client_set_chief(client, "name.that.is.looked.up.invalid",
                                     1);
        for (int64_t now = time_now(), i = 0; i < 100; i++) {
            assert_ok(control_client_step(client, now, &failure));
            assert_true(control_client_deadline(client) > now);
            now += 30 * TIME_MS;
        }
        control_client_close(&client);
    }
}

TEST(a_stop_gives_its_code_or_announces_another_run) {
    struct control_client *client = open_client(fixture, true);
    uint32_t peer = join(fixture, client);
    struct failure why = {0};
    restart_within = 0;
    Capstan__Stop stop = CAPSTAN__STOP__INIT;
    stop.text = "enough";
    assert_int_equal(control_client_handle_stop(client, &stop, &why),
                     STATUS_OK);
    Capstan__Control *received =
        receive_message(fixture, client, CAPSTAN__CONTROL__BODY_GOODBYE, &peer);
    message_free_control(&received);
    stop.code = FAILURE_LOSS_NOT_FINITE;
    assert_fails(control_client_handle_stop(client, &stop, &why), &why,
                 FAILURE_LOSS_NOT_FINITE);
    assert_int_equal(why.code, FAILURE_LOSS_NOT_FINITE);
    assert_string_equal(why.text, "the chief ended the run: enough");
    assert_true(why.reported && restart_within == 0);
    stop.restart_within = 7;
    assert_int_equal(control_client_handle_stop(client, &stop, &why),
                     STATUS_OK);
    assert_true(restart_within == 7);
    control_client_close(&client);
}

/* Its launcher starts a process again that dies between two runs, and there is
 * no member to report. */
TEST(a_process_between_two_runs_has_not_left) {
    record = launch_record_open(1);
    struct control_client *client = open_client(fixture, true);
    struct launch_record read;
    struct failure why = {0};
    Capstan__Stop stop = CAPSTAN__STOP__INIT;
    stop.text = "enough";
    stop.restart_within = 7;
    join(fixture, client);
    await_order(client); /* the welcome */
    assert_true(launch_record_read(record, &read));
    assert_ok(control_client_handle_stop(client, &stop, &why));
    assert_true(launch_record_in_run(record));
    assert_false(launch_record_read(record, &read));
    stop.restart_within = 0;
    assert_ok(control_client_handle_stop(client, &stop, &why));
    assert_false(launch_record_in_run(record));
    control_client_close(&client);
    close(record);
    record = 0;
}

TEST(an_announcement_gives_a_member_its_chief) {
    struct control_client *client = open_client(fixture, false);
    char text[300];
    static const char *const wrong[] = {"",        "host",      ":1",
                                        "host:",   "host:0",    "host:65536",
                                        "host:-1", "host:words"};
    assert_false(control_client_chief_address(client, text, sizeof text));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        control_client_set_chief_address(client, wrong[i]);
    assert_false(control_client_chief_address(client, text, sizeof text));
    control_client_set_chief_address(client, "[::1]:5");
    assert_true(control_client_chief_address(client, text, sizeof text));
    assert_string_equal(text, "[::1]:5");
    control_client_set_chief_address(client, fixture->address);
    assert_true(control_client_chief_address(client, text, sizeof text));
    assert_string_equal(text, fixture->address);
    join(fixture, client);
    await_order(client);
    control_client_set_chief_address(client,
                                     "10.0.0.1:5"); /* no more: it has joined */
    assert_true(control_client_chief_address(client, text, sizeof text));
    assert_string_equal(text, fixture->address);
    control_client_close(&client);
}

TEST(a_host_of_any_length_does_no_harm) {
    struct control_client *client = open_client(fixture, false);
    char address[400];
    memset(address, 'h', sizeof address);
    for (size_t size = 250; size < 300; size++) {
        strcpy(address + size, ":80");
        control_client_set_chief_address(client, address);
        address[size] = 'h';
    }
    control_client_close(&client);
}
