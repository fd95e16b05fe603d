/* SPDX-License-Identifier: Apache-2.0 */
/* A member of a run with the test for its chief: messages and time are the
 * test's. */
#include "proto/net/messages/member.h"

#include "proto/base/time.h"
#include "tests/lib/wire_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { RUN = 4711, CHIEF = 99 };

/* The fixture's server is the chief. */
static struct member *open_member(struct wire_fixture *fixture, bool known) {
    struct cluster_task chief = {.port = fixture->port};
    strcpy(chief.host, "127.0.0.1");
    struct member_settings settings = {.zmq = fixture->zmq,
                                       .log = &fixture->log,
                                       .role = CLUSTER_WORKER,
                                       .index = 3,
                                       .port = 1234,
                                       .host = "me",
                                       .device = "cpu",
                                       .chief = known ? &chief : NULL,
                                       .join_timeout = 30};
    struct member *member;
    struct failure why;
    if (member_open(&member, &settings, &why))
        fail_msg("%s", why.text);
    return member;
}

static enum status step(struct member *member, const Capstan__Control **order,
                        struct failure *why) {
    enum status status = member_step(member, time_now(), why);
    *order = NULL;
    return status ? status : member_receive(member, time_now(), order, why);
}

/* The next control message that the chief gets of kind BODY; the member steps
 * meanwhile. The caller frees it. */
static Capstan__Control *hear(struct wire_fixture *fixture,
                              struct member *member,
                              Capstan__Control__BodyCase body, uint32_t *peer) {
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
    const Capstan__Control *order;
    struct link_frame frame;
    struct failure why;
    for (;;) {
        assert_true(time_now() < deadline);
        assert_int_equal(step(member, &order, &why), STATUS_OK);
        while (link_view(fixture->server, &frame)) {
            Capstan__Control *control;
            assert_int_equal(message_read_control(&control, frame.header.data,
                                                  frame.header.size, &why),
                             STATUS_OK);
            *peer = frame.peer;
            link_release(&frame);
            if (control->body_case == body)
                return control;
            message_free_control(&control);
        }
        zmq_pollitem_t item = {link_socket(fixture->server), 0, ZMQ_POLLIN, 0};
        zmq_poll(&item, 1, 20);
    }
}

static void tell(struct wire_fixture *fixture, uint32_t peer,
                 Capstan__Control *control) {
    uint8_t bytes[4096];
    control->version = MESSAGE_VERSION;
    control->incarnation = CHIEF;
    size_t size = capstan__control__pack(control, bytes);
    assert_true(link_commit(fixture->server, peer, bytes, size, NULL));
}

/* The next order; fails when none comes. */
static const Capstan__Control *await_order(struct member *member) {
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
    const Capstan__Control *order = NULL;
    struct failure why;
    while (!order) {
        assert_true(time_now() < deadline);
        if (step(member, &order, &why))
            fail_msg("%s", why.text);
        zmq_pollitem_t item = {member_socket(member), 0, ZMQ_POLLIN, 0};
        if (!order)
            zmq_poll(&item, 1, 20);
    }
    return order;
}

static void welcome(struct wire_fixture *fixture, uint32_t peer) {
    Capstan__Welcome message = CAPSTAN__WELCOME__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.run = RUN;
    control.seq = 1;
    message.trainers = 4;
    control.body_case = CAPSTAN__CONTROL__BODY_WELCOME;
    control.welcome = &message;
    tell(fixture, peer, &control);
}

static uint32_t join(struct wire_fixture *fixture, struct member *member) {
    uint32_t peer;
    Capstan__Control *control =
        hear(fixture, member, CAPSTAN__CONTROL__BODY_JOIN, &peer);
    assert_int_equal(control->join->role, CLUSTER_WORKER);
    assert_int_equal(control->join->index, 3);
    assert_int_equal(control->join->port, 1234);
    assert_string_equal(control->join->address, "me");
    assert_int_equal(control->incarnation, member_incarnation(member));
    assert_int_equal(control->run, 0);
    message_free_control(&control);
    welcome(fixture, peer);
    return peer;
}

static void order_stop(struct wire_fixture *fixture, uint32_t peer,
                       uint64_t run, uint64_t seq) {
    Capstan__Stop stop = CAPSTAN__STOP__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.run = run;
    control.seq = seq;
    control.body_case = CAPSTAN__CONTROL__BODY_STOP;
    control.stop = &stop;
    tell(fixture, peer, &control);
}

static void it_joins_and_the_first_order_is_the_welcome(void **state) {
    struct wire_fixture *fixture = *state;
    struct member *member = open_member(fixture, true);
    assert_false(member_joined(member));
    join(fixture, member);
    const Capstan__Control *order = await_order(member);
    assert_int_equal(order->body_case, CAPSTAN__CONTROL__BODY_WELCOME);
    assert_true(member_joined(member));
    assert_int_equal(member_run(member), RUN);
    member_close(&member);
    assert_null(member);
}

static void orders_come_once_in_sequence_and_of_this_run(void **state) {
    struct wire_fixture *fixture = *state;
    struct member *member = open_member(fixture, true);
    uint32_t peer = join(fixture, member);
    assert_int_equal(await_order(member)->body_case,
                     CAPSTAN__CONTROL__BODY_WELCOME);
    order_stop(fixture, peer, RUN, 1);     /* came before */
    order_stop(fixture, peer, RUN, 3);     /* too early */
    order_stop(fixture, peer, RUN + 1, 2); /* another run's */
    welcome(fixture, peer);
    order_stop(fixture, peer, RUN, 2);
    order_stop(fixture, peer, RUN, 2);
    order_stop(fixture, peer, RUN, 3);
    assert_int_equal(await_order(member)->seq, 2);
    assert_int_equal(await_order(member)->seq, 3);
    const Capstan__Control *order;
    struct failure why;
    assert_int_equal(step(member, &order, &why), STATUS_OK);
    assert_null(order);
    member_close(&member);
}

static void what_it_tells_is_repeated_until_acknowledged(void **state) {
    struct wire_fixture *fixture = *state;
    struct member *member = open_member(fixture, true);
    uint32_t peer = join(fixture, member);
    await_order(member);
    Capstan__Ready ready = CAPSTAN__READY__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.body_case = CAPSTAN__CONTROL__BODY_READY;
    control.ready = &ready;
    member_tell(member, &control);
    for (int time = 0; time < 2; time++) {
        Capstan__Control *told =
            hear(fixture, member, CAPSTAN__CONTROL__BODY_READY, &peer);
        assert_int_equal(told->seq, 1);
        assert_int_equal(told->run, RUN);
        message_free_control(&told);
        assert_false(member_settled(member));
    }
    Capstan__Beat beat = CAPSTAN__BEAT__INIT;
    Capstan__Control answer = CAPSTAN__CONTROL__INIT;
    answer.run = RUN;
    answer.ack = 1;
    answer.body_case = CAPSTAN__CONTROL__BODY_BEAT;
    answer.beat = &beat;
    tell(fixture, peer, &answer);
    Capstan__Control *told =
        hear(fixture, member, CAPSTAN__CONTROL__BODY_BEAT, &peer);
    message_free_control(&told);
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
    const Capstan__Control *order;
    struct failure why;
    while (!member_settled(member) && time_now() < deadline)
        assert_int_equal(step(member, &order, &why), STATUS_OK);
    assert_true(member_settled(member));
    member_close(&member);
}

static void a_beat_carries_the_roles_numbers(void **state) {
    struct wire_fixture *fixture = *state;
    struct member *member = open_member(fixture, true);
    uint32_t peer = join(fixture, member);
    await_order(member);
    member_beat(member)->clock = 17;
    member_beat_now(member);
    Capstan__Control *told =
        hear(fixture, member, CAPSTAN__CONTROL__BODY_BEAT, &peer);
    assert_int_equal(told->beat->clock, 17);
    assert_int_equal(told->ack, 1);
    message_free_control(&told);
    member_close(&member);
}

static void what_is_free_is_told_until_there_is_a_plan(void **state) {
    struct wire_fixture *fixture = *state;
    struct member *member = open_member(fixture, true);
    uint32_t peer = join(fixture, member);
    await_order(member);
    Capstan__Control *told =
        hear(fixture, member, CAPSTAN__CONTROL__BODY_BEAT, &peer);
    assert_true(told->beat->n_memory > 0);
    assert_true(told->beat->memory[0]->free > 0);
    assert_true(told->beat->memory[0]->most >= told->beat->memory[0]->free);
    message_free_control(&told);
    Capstan__Plan plan = CAPSTAN__PLAN__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.run = RUN;
    control.seq = 2;
    control.body_case = CAPSTAN__CONTROL__BODY_PLAN;
    control.plan = &plan;
    tell(fixture, peer, &control);
    await_order(member);
    do { /* one may be under way */
        message_free_control(&told);
        told = hear(fixture, member, CAPSTAN__CONTROL__BODY_BEAT, &peer);
    } while (told->ack < 2);
    assert_int_equal(told->beat->n_memory, 0);
    message_free_control(&told);
    member_close(&member);
}

static void a_refusal_ends_with_its_status_and_text(void **state) {
    struct wire_fixture *fixture = *state;
    struct member *member = open_member(fixture, true);
    uint32_t peer;
    Capstan__Control *told =
        hear(fixture, member, CAPSTAN__CONTROL__BODY_JOIN, &peer);
    message_free_control(&told);
    Capstan__Refusal refusal = CAPSTAN__REFUSAL__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    refusal.status = STATUS_CONFIG;
    refusal.text = "worker 3 is already here";
    control.run = RUN;
    control.body_case = CAPSTAN__CONTROL__BODY_REFUSAL;
    control.refusal = &refusal;
    tell(fixture, peer, &control);
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
    const Capstan__Control *order;
    struct failure why;
    enum status status = STATUS_OK;
    while (!status && time_now() < deadline)
        status = step(member, &order, &why);
    assert_int_equal(status, STATUS_CONFIG);
    assert_string_equal(why.text, "worker 3 is already here");
    assert_null(order);
    member_close(&member);
}

/* A chief of another job answers; then mine does. */
static void a_strangers_refusal_is_not_the_end(void **state) {
    struct wire_fixture *fixture = *state;
    wire_fixture_listen(fixture);
    struct member *member = open_member(fixture, true);
    uint32_t peer;
    Capstan__Control *told =
        hear(fixture, member, CAPSTAN__CONTROL__BODY_JOIN, &peer);
    message_free_control(&told);
    Capstan__Refusal refusal = CAPSTAN__REFUSAL__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    refusal.status = STATUS_RETRY;
    refusal.stranger = true;
    control.run = RUN;
    control.body_case = CAPSTAN__CONTROL__BODY_REFUSAL;
    control.refusal = &refusal;
    tell(fixture, peer, &control);
    welcome(fixture, peer);
    assert_int_equal(await_order(member)->body_case,
                     CAPSTAN__CONTROL__BODY_WELCOME);
    assert_non_null(strstr(wire_fixture_said(fixture), "another job's chief"));
    member_close(&member);
}

static void garbage_from_the_chief_is_logged_and_left(void **state) {
    struct wire_fixture *fixture = *state;
    wire_fixture_listen(fixture);
    struct member *member = open_member(fixture, true);
    uint32_t peer = join(fixture, member);
    assert_true(link_commit(fixture->server, peer, "\377\377", 2, NULL));
    welcome(fixture, peer);
    assert_int_equal(await_order(member)->body_case,
                     CAPSTAN__CONTROL__BODY_WELCOME);
    order_stop(fixture, peer, RUN, 2);
    assert_int_equal(await_order(member)->seq, 2);
    assert_non_null(strstr(wire_fixture_said(fixture), "no control message"));
    member_close(&member);
}

/* Turns as a loop takes them, to UNTIL or the first failure. */
static enum status step_until(struct member *member, int64_t now, int64_t until,
                              struct failure *why) {
    enum status status = STATUS_OK;
    for (; !status && now <= until; now += TIME_S / 2)
        status = member_step(member, now, why);
    return status;
}

/* Time is an argument: nobody waits for it here. */
static void deadlines_name_the_chief_and_their_key(void **state) {
    struct wire_fixture *fixture = *state;
    struct member *member = open_member(fixture, true);
    struct failure why;
    char name[64];
    snprintf(name, sizeof name, "the chief at 127.0.0.1:%u", fixture->port);
    assert_int_equal(member_step(member, time_now() + 29 * TIME_S, &why), 0);
    assert_int_equal(member_step(member, time_now() + 31 * TIME_S, &why),
                     STATUS_RETRY);
    assert_non_null(strstr(why.text, name));
    assert_non_null(strstr(why.text, "timeouts.join"));
    member_close(&member);
    member = open_member(fixture, true);
    join(fixture, member);
    await_order(member);
    member_timeout(member, 10);
    int64_t now = time_now();
    assert_int_equal(step_until(member, now, now + 9 * TIME_S, &why), 0);
    assert_int_equal(
        step_until(member, now + 9 * TIME_S, now + 11 * TIME_S, &why),
        STATUS_RETRY);
    assert_non_null(strstr(why.text, name));
    assert_non_null(strstr(why.text, "timeouts.peer"));
    member_close(&member);
}

/* A stopped process finds its clock far on, and blames nobody else: its chief
 * has as long as before, and where it then says nothing, that may be why. */
static void who_stood_still_itself_says_so(void **state) {
    struct wire_fixture *fixture = *state;
    wire_fixture_listen(fixture);
    struct member *member = open_member(fixture, true);
    struct failure why;
    join(fixture, member);
    await_order(member);
    member_timeout(member, 10);
    int64_t now = time_now(), later = now + 23 * TIME_S;
    assert_int_equal(step_until(member, now, now + 3 * TIME_S, &why), 0);
    assert_int_equal(step_until(member, later, later + 6 * TIME_S, &why), 0);
    assert_non_null(strstr(wire_fixture_said(fixture),
                           "this process itself stood still for 20 s"));
    assert_int_equal(
        step_until(member, later + 6 * TIME_S, later + 8 * TIME_S, &why),
        STATUS_RETRY);
    assert_non_null(strstr(why.text, "since this process itself stood still "
                                     "for 20 s"));
    assert_null(strstr(why.text, "it is gone"));
    member_close(&member);
}

static void it_never_asks_to_be_stepped_in_the_past(void **state) {
    struct wire_fixture *fixture = *state;
    for (int known = 0; known < 2; known++) {
        struct member *member = open_member(fixture, known);
        struct failure why;
        if (known) /* a name server that takes long */
            member_meet(member, "name.that.is.looked.up.invalid", 1);
        for (int64_t now = time_now(), i = 0; i < 100; i++) {
            assert_int_equal(member_step(member, now, &why), STATUS_OK);
            assert_true(member_deadline(member) > now);
            now += 30 * TIME_MS;
        }
        member_close(&member);
    }
}

static void the_end_is_heard_with_its_status_or_with_another_run(void **state) {
    struct wire_fixture *fixture = *state;
    struct member *member = open_member(fixture, true);
    uint32_t peer = join(fixture, member);
    struct failure why = {0};
    double again = 0;
    Capstan__Stop stop = CAPSTAN__STOP__INIT;
    stop.text = "enough";
    assert_int_equal(member_stop(member, &stop, &again, &why), STATUS_OK);
    Capstan__Control *told =
        hear(fixture, member, CAPSTAN__CONTROL__BODY_BYE, &peer);
    message_free_control(&told);
    stop.status = STATUS_FAILED;
    assert_int_equal(member_stop(member, &stop, &again, &why), STATUS_FAILED);
    assert_string_equal(why.text, "the chief ended the run: enough");
    assert_true(why.heard && again == 0);
    stop.again = 7;
    assert_int_equal(member_stop(member, &stop, NULL, &why), STATUS_OK);
    assert_int_equal(member_stop(member, &stop, &again, &why), STATUS_OK);
    assert_true(again == 7);
    member_close(&member);
}

static void a_call_tells_an_unknowing_member_its_chief(void **state) {
    struct wire_fixture *fixture = *state;
    struct member *member = open_member(fixture, false);
    char text[300];
    static const char *const wrong[] = {"",        "host",      ":1",
                                        "host:",   "host:0",    "host:65536",
                                        "host:-1", "host:words"};
    assert_false(member_chief_address(member, text, sizeof text));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        member_called(member, wrong[i]);
    assert_false(member_chief_address(member, text, sizeof text));
    member_called(member, "[::1]:5");
    assert_true(member_chief_address(member, text, sizeof text));
    assert_string_equal(text, "[::1]:5");
    member_called(member, fixture->address);
    assert_true(member_chief_address(member, text, sizeof text));
    assert_string_equal(text, fixture->address);
    join(fixture, member);
    await_order(member);
    member_called(member, "10.0.0.1:5"); /* no more: it has joined */
    assert_true(member_chief_address(member, text, sizeof text));
    assert_string_equal(text, fixture->address);
    member_close(&member);
}

static void a_host_of_any_length_does_no_harm(void **state) {
    struct wire_fixture *fixture = *state;
    struct member *member = open_member(fixture, false);
    char address[400];
    memset(address, 'h', sizeof address);
    for (size_t size = 250; size < 300; size++) {
        strcpy(address + size, ":80");
        member_called(member, address);
        address[size] = 'h';
    }
    member_close(&member);
}

#define MEMBER_TEST(f)                                                         \
    cmocka_unit_test_setup_teardown(f, wire_fixture_setup,                     \
                                    wire_fixture_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        MEMBER_TEST(it_joins_and_the_first_order_is_the_welcome),
        MEMBER_TEST(orders_come_once_in_sequence_and_of_this_run),
        MEMBER_TEST(what_it_tells_is_repeated_until_acknowledged),
        MEMBER_TEST(a_beat_carries_the_roles_numbers),
        MEMBER_TEST(what_is_free_is_told_until_there_is_a_plan),
        MEMBER_TEST(a_refusal_ends_with_its_status_and_text),
        MEMBER_TEST(a_strangers_refusal_is_not_the_end),
        MEMBER_TEST(garbage_from_the_chief_is_logged_and_left),
        MEMBER_TEST(deadlines_name_the_chief_and_their_key),
        MEMBER_TEST(who_stood_still_itself_says_so),
        MEMBER_TEST(it_never_asks_to_be_stepped_in_the_past),
        MEMBER_TEST(the_end_is_heard_with_its_status_or_with_another_run),
        MEMBER_TEST(a_call_tells_an_unknowing_member_its_chief),
        MEMBER_TEST(a_host_of_any_length_does_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
