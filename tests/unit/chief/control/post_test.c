/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/control/post.h"

#include "proto/base/time.h"
#include "tests/lib/wire_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

enum { RUN = 4711, CHIEF = 99, WORKER = 5 };

/* Worker 0 holds its slot and writes from the fixture's client. */
struct fixture {
    struct wire_fixture *wire;
    struct roster roster;
    struct roster_slot *slot;
    struct post *post;
    uint32_t peer;
    Capstan__Control *heard; /* by the worker */
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    void *wire;
    wire_fixture_setup(&wire);
    fixture->wire = wire;
    fixture->peer = wire_fixture_connect(wire);
    assert_true(roster_open(&fixture->roster, false, 1, 1, TIME_S));
    fixture->post = post_open(fixture->wire->server, &fixture->roster,
                              &fixture->wire->log, RUN, CHIEF);
    assert_non_null(fixture->post);
    fixture->slot = roster_find(&fixture->roster, CLUSTER_WORKER, 0);
    struct roster_claim claim = {WORKER, 1, 2, "h", "h:2", 0};
    roster_claim(fixture->slot, &claim, time_now());
    post_meet(fixture->post, fixture->slot, fixture->peer);
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    void *wire = fixture->wire;
    message_free_control(&fixture->heard);
    post_close(&fixture->post);
    roster_close(&fixture->roster);
    wire_fixture_teardown(&wire);
    free(fixture);
    return 0;
}

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
static void write_letter(struct link *link, uint64_t run, uint64_t incarnation,
                         uint64_t seq, uint64_t ack) {
    Capstan__Ready ready = CAPSTAN__READY__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.seq = seq;
    control.ack = ack;
    control.body_case = CAPSTAN__CONTROL__BODY_READY;
    control.ready = &ready;
    write_control(link, &control, run, incarnation);
}

/* The worker joins again, as by a new connection. */
static void write_join(struct link *link) {
    Capstan__Join join = CAPSTAN__JOIN__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    join.role = CLUSTER_WORKER;
    control.body_case = CAPSTAN__CONTROL__BODY_JOIN;
    control.join = &join;
    write_control(link, &control, RUN, WORKER);
}

/* The next letter within LIMIT; false when none comes. */
static bool read_letter(struct fixture *fixture, struct post_letter *letter,
                        int64_t limit) {
    int64_t deadline = time_now() + limit;
    zmq_pollitem_t item = {link_socket(fixture->wire->server), 0, ZMQ_POLLIN,
                           0};
    while (!post_receive(fixture->post, time_now(), letter)) {
        if (time_now() >= deadline)
            return false;
        zmq_poll(&item, 1, time_poll_ms(time_now(), deadline));
    }
    return true;
}

static void expect_letter(struct fixture *fixture, uint64_t seq) {
    struct post_letter letter;
    assert_true(read_letter(fixture, &letter, WIRE_FIXTURE_LIMIT));
    assert_ptr_equal(letter.slot, fixture->slot);
    assert_int_equal(letter.control->seq, seq);
}

/* What the worker hears next. */
static const Capstan__Control *hear(struct fixture *fixture,
                                    struct link *link) {
    struct link_frame frame;
    struct failure why;
    message_free_control(&fixture->heard);
    wire_fixture_view(link, &frame);
    if (message_read_control(&fixture->heard, frame.header.data,
                             frame.header.size, &why))
        fail_msg("%s", why.text);
    link_release(&frame);
    return fixture->heard;
}

static void tell_stop(struct fixture *fixture, const char *text) {
    Capstan__Stop stop = CAPSTAN__STOP__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    stop.text = (char *)text;
    control.body_case = CAPSTAN__CONTROL__BODY_STOP;
    control.stop = &stop;
    post_tell(fixture->post, fixture->slot, &control);
}

static void letters_come_in_order_once(void **state) {
    struct fixture *fixture = *state;
    struct link *worker = fixture->wire->client;
    struct post_letter letter;
    write_letter(worker, RUN, WORKER, 2, 0); /* too early */
    write_letter(worker, RUN, WORKER, 1, 0);
    write_letter(worker, RUN, WORKER, 1, 0); /* twice */
    write_letter(worker, RUN + 1, WORKER, 2, 0);
    write_letter(worker, RUN, WORKER, 2, 0);
    write_letter(worker, RUN, WORKER, 0, 0); /* unnumbered */
    expect_letter(fixture, 1);
    expect_letter(fixture, 2);
    expect_letter(fixture, 0);
    assert_false(read_letter(fixture, &letter, 50 * TIME_MS));
}

static void the_unknown_are_handed_on_without_a_slot(void **state) {
    struct fixture *fixture = *state;
    struct post_letter letter;
    write_letter(fixture->wire->client, RUN, WORKER + 1, 9, 0);
    assert_true(read_letter(fixture, &letter, WIRE_FIXTURE_LIMIT));
    assert_null(letter.slot);
    assert_int_equal(letter.peer, fixture->peer);
    Capstan__Refusal refusal = CAPSTAN__REFUSAL__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    refusal.text = "who?";
    control.body_case = CAPSTAN__CONTROL__BODY_REFUSAL;
    control.refusal = &refusal;
    post_answer(fixture->post, letter.peer, &control);
    const Capstan__Control *heard = hear(fixture, fixture->wire->client);
    assert_string_equal(heard->refusal->text, "who?");
    assert_int_equal(heard->run, 0);
    assert_int_equal(heard->incarnation, 0);
}

/* Who has picked up the numbers of a member is not it: it neither speaks in its
 * name nor hears what it is told. */
static void only_a_join_moves_a_mailbox(void **state) {
    struct fixture *fixture = *state;
    struct post_letter letter;
    struct link *other = wire_fixture_client(fixture->wire);
    zmq_pollitem_t item = {link_socket(other), 0, ZMQ_POLLOUT, 0};
    assert_int_equal(zmq_poll(&item, 1, 20000), 1);
    write_letter(other, RUN, WORKER, 1, 0);
    assert_false(read_letter(fixture, &letter, 100 * TIME_MS));
    tell_stop(fixture, "for the member");
    assert_string_equal(hear(fixture, fixture->wire->client)->stop->text,
                        "for the member");
    write_join(other);
    assert_true(read_letter(fixture, &letter, WIRE_FIXTURE_LIMIT));
    write_letter(fixture->wire->client, RUN, WORKER, 1, 0);
    assert_false(read_letter(fixture, &letter, 100 * TIME_MS));
    write_letter(other, RUN, WORKER, 1, 0);
    expect_letter(fixture, 1);
    post_step(fixture->post, time_now(), 100 * TIME_S);
    assert_string_equal(hear(fixture, other)->stop->text, "for the member");
    link_close(&other);
}

static void garbage_costs_the_connection_and_one_line(void **state) {
    struct fixture *fixture = *state;
    struct post_letter letter;
    struct link *stranger = wire_fixture_client(fixture->wire);
    wire_fixture_listen(fixture->wire);
    for (int i = 0; i < 5; i++)
        wire_fixture_send(stranger, 0, "\377garbage", NULL);
    assert_false(read_letter(fixture, &letter, 100 * TIME_MS));
    write_letter(fixture->wire->client, RUN, WORKER, 1, 0);
    expect_letter(fixture, 1);
    const char *said = wire_fixture_said(fixture->wire);
    assert_non_null(strstr(said, "not read any more"));
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
    link_close(&stranger);
}

static void what_is_told_is_stamped_and_kept_until_acknowledged(void **state) {
    struct fixture *fixture = *state;
    tell_stop(fixture, "one");
    assert_false(post_settled(fixture->post, fixture->slot));
    const Capstan__Control *control = hear(fixture, fixture->wire->client);
    assert_int_equal(control->run, RUN);
    assert_int_equal(control->incarnation, CHIEF);
    assert_int_equal(control->seq, 1);
    post_step(fixture->post, time_now() + 3 * TIME_S, 100 * TIME_S);
    control = hear(fixture, fixture->wire->client);
    assert_int_equal(control->seq, 1); /* again */
    write_letter(fixture->wire->client, RUN, WORKER, 1, 1);
    expect_letter(fixture, 1);
    assert_true(post_settled(fixture->post, fixture->slot));
}

static void after_a_reconnect_all_leave_in_order(void **state) {
    struct fixture *fixture = *state;
    struct post_letter letter;
    link_close(&fixture->wire->client);
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
    char byte = 0;
    while (link_commit(fixture->wire->server, fixture->peer, &byte, 1, NULL) &&
           time_now() < deadline)
        zmq_poll(NULL, 0, 5); /* until the server knows that it is gone */
    tell_stop(fixture, "one");
    tell_stop(fixture, "two");
    tell_stop(fixture, "three");
    struct link *again = wire_fixture_client(fixture->wire);
    zmq_pollitem_t item = {link_socket(again), 0, ZMQ_POLLOUT, 0};
    assert_int_equal(zmq_poll(&item, 1, 20000), 1);
    write_join(again);
    assert_true(read_letter(fixture, &letter, WIRE_FIXTURE_LIMIT));
    post_step(fixture->post, time_now(), 100 * TIME_S);
    uint64_t expected = 1;
    while (expected <= 3) {
        const Capstan__Control *control = hear(fixture, again);
        if (control->body_case == CAPSTAN__CONTROL__BODY_STOP)
            assert_int_equal(control->seq, expected++);
    }
    link_close(&again);
}

static void beats_carry_the_acknowledgement(void **state) {
    struct fixture *fixture = *state;
    write_letter(fixture->wire->client, RUN, WORKER, 1, 0);
    expect_letter(fixture, 1);
    post_step(fixture->post, time_now(), TIME_S);
    const Capstan__Control *control = hear(fixture, fixture->wire->client);
    assert_int_equal(control->body_case, CAPSTAN__CONTROL__BODY_BEAT);
    assert_int_equal(control->ack, 1);
    assert_int_equal(control->seq, 0);
}

static void nobody_is_told_who_does_not_hold_a_slot(void **state) {
    struct fixture *fixture = *state;
    roster_remove(fixture->slot);
    tell_stop(fixture, "unheard");
    post_step(fixture->post, time_now(), 0);
    assert_true(post_settled(fixture->post, fixture->slot));
    wire_fixture_silent(fixture->wire->client);
}

static void a_new_holder_begins_at_one(void **state) {
    struct fixture *fixture = *state;
    tell_stop(fixture, "for the first");
    write_letter(fixture->wire->client, RUN, WORKER, 1, 0);
    expect_letter(fixture, 1);
    roster_remove(fixture->slot);
    struct roster_claim claim = {WORKER + 1, 1, 2, "h", "h:2", 0};
    roster_claim(fixture->slot, &claim, time_now());
    post_meet(fixture->post, fixture->slot, fixture->peer);
    assert_true(post_settled(fixture->post, fixture->slot));
    write_letter(fixture->wire->client, RUN, WORKER + 1, 1, 0);
    expect_letter(fixture, 1);
    tell_stop(fixture, "for the second");
    hear(fixture, fixture->wire->client);
    assert_string_equal(hear(fixture, fixture->wire->client)->stop->text,
                        "for the second");
    assert_int_equal(fixture->heard->seq, 1);
}

static void roles_are_told_together(void **state) {
    struct fixture *fixture = *state;
    struct roster_claim claim = {77, 1, 2, "h", "h:2", 0};
    struct roster_slot *ps = roster_ps(&fixture->roster, 0);
    roster_claim(ps, &claim, time_now());
    post_meet(fixture->post, ps, fixture->peer);
    Capstan__Stop stop = CAPSTAN__STOP__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.body_case = CAPSTAN__CONTROL__BODY_STOP;
    control.stop = &stop;
    post_tell_all(fixture->post, CLUSTER_PS, &control);
    assert_false(post_settled(fixture->post, ps));
    assert_true(post_settled(fixture->post, fixture->slot));
    post_tell_all(fixture->post, CLUSTER_WORKER, &control);
    assert_false(post_settled(fixture->post, fixture->slot));
    post_tell_all(fixture->post, CLUSTER_ROLES, &control);
    static const uint64_t seqs[] = {1, 1, 2, 2};
    for (int i = 0; i < 4; i++)
        assert_int_equal(hear(fixture, fixture->wire->client)->seq, seqs[i]);
}

#define POST_TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        POST_TEST(letters_come_in_order_once),
        POST_TEST(the_unknown_are_handed_on_without_a_slot),
        POST_TEST(only_a_join_moves_a_mailbox),
        POST_TEST(garbage_costs_the_connection_and_one_line),
        POST_TEST(what_is_told_is_stamped_and_kept_until_acknowledged),
        POST_TEST(after_a_reconnect_all_leave_in_order),
        POST_TEST(beats_carry_the_acknowledgement),
        POST_TEST(nobody_is_told_who_does_not_hold_a_slot),
        POST_TEST(a_new_holder_begins_at_one),
        POST_TEST(roles_are_told_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
