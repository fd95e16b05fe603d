/* SPDX-License-Identifier: Apache-2.0 */
/* What all clients of ps rely on: how a ps is found, who may answer. */
#define STATE struct link_fixture *fixture

#include "proto/messages/ps_links.h"

#include "core/base/time.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/link_fixture.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

enum { RUN = 7, ME = 8, RANK = 3, PS = 9 };
static const int64_t LOOKUP_INTERVAL = 5 * TIME_S;

static struct ps_links *open_links(struct link_fixture *fixture,
                                   struct ps_links_peer *ps,
                                   const char *address) {
    static struct process process;
    process = (struct process){.zmq = fixture->zmq,
                               .log = &fixture->log,
                               .run = RUN,
                               .incarnation = ME};
    struct ps_links_settings settings = {
        .process = &process, .rank = RANK, .num_ps = 1, .ps = ps};
    struct ps_links *links;
    *ps = (struct ps_links_peer){.incarnation = PS};
    snprintf(ps->address, sizeof ps->address, "%s", address);
    assert_ok(ps_links_open(&links, &settings, &failure));
    return links;
}

/* Sends a request, at NOW and HEARD, until it comes to the ps; returns who the
 * ps takes its sender for. */
static uint32_t request(struct link_fixture *fixture, struct ps_links *links,
                        int64_t now, int64_t heard) {
    static struct message_arena arena;
    int64_t end = time_now() + LINK_FIXTURE_DEADLINE;
    struct link_frame frame;
    Capstan__DataHeader *read, header = CAPSTAN__DATA_HEADER__INIT;
    header.kind = CAPSTAN__DATA_HEADER__KIND__PULL;
    for (bool sent = false; !link_view(fixture->server_link, &frame);) {
        struct link_payload payload;
        assert_true(time_now() < end);
        assert_ok(ps_links_connect(links, 0, now, heard, &failure));
        link_no_payload(&payload);
        sent = sent || ps_links_send(links, 0, &header, &payload);
    }
    assert_ok(message_read_data(&read, &arena, frame.header.data,
                                frame.header.size, &failure));
    assert_int_equal(read->run, RUN);
    assert_int_equal(read->incarnation, ME);
    assert_int_equal(read->rank, RANK);
    link_release(&frame);
    return frame.peer;
}

static void answer(struct link_fixture *fixture, uint32_t peer,
                   Capstan__DataHeader__Kind kind, uint64_t run,
                   uint64_t incarnation, uint64_t seq) {
    static unsigned char space[MESSAGE_MAX_HEADER];
    struct link_payload payload;
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    header.kind = kind;
    header.run = run;
    header.incarnation = incarnation;
    header.seq = seq;
    link_no_payload(&payload);
    size_t bytes = message_write_data(&header, space);
    assert_true(
        link_commit(fixture->server_link, peer, space, bytes, &payload));
}

static void expect_answer(struct ps_links *links, uint64_t seq) {
    int64_t end = time_now() + LINK_FIXTURE_DEADLINE;
    Capstan__DataHeader *header;
    struct link_frame frame;
    while (!ps_links_receive(links, 0, &header, &frame))
        assert_true(time_now() < end);
    assert_int_equal(header->seq, seq);
    link_release(&frame);
}

FIXTURE(link_fixture_setup, link_fixture_teardown);

TEST(only_answers_of_its_ps_and_run_are_passed_on) {
    struct ps_links_peer ps;
    struct ps_links *links = open_links(fixture, &ps, fixture->address);
    int64_t now = time_now();
    uint32_t peer = request(fixture, links, now, now);
    answer(fixture, peer, CAPSTAN__DATA_HEADER__KIND__ACK, RUN + 1, PS, 1);
    answer(fixture, peer, CAPSTAN__DATA_HEADER__KIND__ACK, RUN, PS + 1, 2);
    answer(fixture, peer, CAPSTAN__DATA_HEADER__KIND__ACK, RUN, PS, 3);
    answer(fixture, peer, CAPSTAN__DATA_HEADER__KIND__REFUSED, 0, 0, 4);
    expect_answer(links, 3);
    expect_answer(links, 4);
    ps_links_close(&links);
    assert_null(links);
}

TEST(a_malformed_answer_is_logged_and_dropped) {
    struct ps_links_peer ps;
    struct ps_links *links = open_links(fixture, &ps, fixture->address);
    int64_t now = time_now();
    uint32_t peer = request(fixture, links, now, now);
    link_fixture_capture_log(fixture);
    link_fixture_send(fixture->server_link, peer, "no header", NULL);
    answer(fixture, peer, CAPSTAN__DATA_HEADER__KIND__ACK, RUN, PS, 1);
    expect_answer(links, 1);
    assert_contains(link_fixture_captured_log(fixture), "from ps 0: ");
    ps_links_close(&links);
}

/* Drops what is still under way to the ps. */
static void drain(struct link_fixture *fixture) {
    zmq_pollitem_t item = {link_socket(fixture->server_link), 0, ZMQ_POLLIN, 0};
    struct link_frame frame;
    while (zmq_poll(&item, 1, 100) > 0)
        while (link_view(fixture->server_link, &frame))
            link_release(&frame);
}

/* It has moved: its link still goes to the place before. */
TEST(only_a_silent_ps_is_looked_up_again) {
    struct ps_links_peer ps;
    struct ps_links *links = open_links(fixture, &ps, fixture->address);
    struct link *link = ps_links_all(links)[0];
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    struct link_payload payload;
    int64_t now = time_now(), later = now + LOOKUP_INTERVAL;
    request(fixture, links, now, now);
    assert_ok(link_connect(link, "127.0.0.1:1", &failure));
    drain(fixture);
    assert_ok(ps_links_connect(links, 0, later, now + 1, &failure));
    link_fixture_expect_nothing(fixture->server_link);
    assert_ok(ps_links_connect(links, 0, later, now + 1, &failure));
    link_no_payload(&payload);
    assert_false(ps_links_send(links, 0, &header, &payload));
    request(fixture, links, later, now);
    ps_links_close(&links);
}

TEST(a_name_that_is_not_found_is_looked_up_later) {
    struct ps_links_peer ps;
    struct ps_links *links = open_links(fixture, &ps, "nobody.invalid:1");
    int64_t now = time_now(), end = now + LINK_FIXTURE_DEADLINE;
    for (int time = 0; time < 2; time++, now += LOOKUP_INTERVAL) {
        while (!ps_links_connect(links, 0, now, now, &failure))
            assert_true(time_now() < end);
        assert_int_equal(failure.code, FAILURE_ADDRESS_UNRESOLVED);
        assert_contains(failure.text, "host nobody.invalid of ps 0: ");
        assert_ok(ps_links_connect(links, 0, now + 1, 0, &failure));
        link_fixture_expect_nothing(fixture->server_link);
        assert_ok(ps_links_connect(links, 0, now + 1, 0, &failure));
    }
    ps_links_close(&links);
}

TEST(an_address_without_a_port_is_an_error) {
    struct ps_links_peer ps = {.address = "host"};
    struct process process = {.zmq = fixture->zmq};
    struct ps_links_settings settings = {
        .process = &process, .num_ps = 1, .ps = &ps};
    struct ps_links *links;
    assert_error(ps_links_open(&links, &settings, &failure),
                 FAILURE_ADDRESS_UNRESOLVED);
    assert_null(links);
    assert_contains(failure.text, "cannot look up host");
}

/* The next message's header while LINKS try to send a PULL. */
static Capstan__DataHeader next_sent(struct link_fixture *fixture,
                                     struct ps_links *links, uint32_t *peer) {
    static struct message_arena arena;
    int64_t end = time_now() + LINK_FIXTURE_DEADLINE;
    Capstan__DataHeader *read, *reply, header = CAPSTAN__DATA_HEADER__INIT;
    struct link_frame frame, replied;
    header.kind = CAPSTAN__DATA_HEADER__KIND__PULL;
    while (!link_view(fixture->server_link, &frame)) {
        assert_true(time_now() < end);
        assert_ok(ps_links_connect(links, 0, time_now(), 0, &failure));
        if (ps_links_receive(links, 0, &reply, &replied))
            link_release(&replied);
        ps_links_send(links, 0, &header, NULL);
    }
    assert_ok(message_read_data(&read, &arena, frame.header.data,
                                frame.header.size, &failure));
    Capstan__DataHeader found = *read;
    *peer = frame.peer;
    link_release(&frame);
    return found;
}

TEST(a_request_waits_until_its_greeting_is_answered) {
    struct ps_links_peer ps;
    struct ps_links *links = open_links(fixture, &ps, fixture->address);
    static const Capstan__DataHeader__Kind
        probe = CAPSTAN__DATA_HEADER__KIND__PROBE,
        reply = CAPSTAN__DATA_HEADER__KIND__PROBE_REPLY;
    uint32_t peer;
    Capstan__DataHeader sent = next_sent(fixture, links, &peer);
    assert_int_equal(sent.kind, probe);
    answer(fixture, peer, CAPSTAN__DATA_HEADER__KIND__REFUSED, RUN, PS,
           sent.seq);
    assert_int_equal(next_sent(fixture, links, &peer).kind, probe);
    answer(fixture, peer, reply, RUN, PS, sent.seq - 1);
    assert_int_equal(next_sent(fixture, links, &peer).kind, probe);
    while (sent.kind == probe) { /* some may have been under way */
        answer(fixture, peer, reply, RUN, PS, sent.seq);
        sent = next_sent(fixture, links, &peer);
    }
    assert_int_equal(sent.kind, CAPSTAN__DATA_HEADER__KIND__PULL);
    ps_links_close(&links);
}
