/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/link_probe.h"

#include "proto/base/time.h"
#include "tests/lib/wire_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { RUN = 7, BYTES = 64 << 10 };

static int setup(void **state) {
    struct wire_fixture *fixture;
    struct link_settings link = {.max_frame = MESSAGE_MAX_PAYLOAD};
    struct failure why;
    if (wire_fixture_setup(state))
        return -1;
    fixture = *state;
    link_close(&fixture->server); /* its frames are too short */
    if (link_open(&fixture->server, fixture->zmq, LINK_SERVER, &link, &why) ||
        link_bind(fixture->server, 0, &why))
        return -1;
    snprintf(fixture->address, sizeof fixture->address, "127.0.0.1:%u",
             link_port(fixture->server));
    return 0;
}

static struct link_probe *open_probe(struct wire_fixture *fixture,
                                     const char *address, int64_t now) {
    struct link_probe_settings settings = {
        .zmq = fixture->zmq, .run = RUN, .incarnation = 1, .address = address};
    struct link_probe *probe;
    struct failure why;
    if (link_probe_open(&probe, &settings, now, &why))
        fail_msg("%s", why.text);
    return probe;
}

/* What has come goes back, said to be of RUN. */
static unsigned echo(struct wire_fixture *fixture, uint64_t run) {
    static struct message_arena arena;
    static unsigned char space[MESSAGE_MAX_HEADER];
    struct link_frame frame;
    unsigned count = 0;
    for (; link_view(fixture->server, &frame); count++) {
        Capstan__DataHeader *header;
        struct link_payload payload;
        struct failure why;
        assert_int_equal(message_read_data(&header, &arena, frame.header.data,
                                           frame.header.size, &why),
                         0);
        assert_int_equal(header->kind, CAPSTAN__DATA_HEADER__KIND__PROBE);
        assert_int_equal(frame.payload.size, BYTES);
        header->kind = CAPSTAN__DATA_HEADER__KIND__PROBED;
        header->run = run;
        assert_true(link_reserve(fixture->server, frame.peer, &payload, BYTES));
        memset(link_reserved(&payload), 0, BYTES);
        size_t bytes = message_write_data(header, space);
        link_commit(fixture->server, frame.peer, space, bytes, &payload);
        link_release(&frame);
    }
    return count;
}

static void a_ps_on_this_host_is_not_measured(void **state) {
    struct wire_fixture *fixture = *state;
    int64_t start = time_now();
    struct link_probe *probe = open_probe(fixture, fixture->address, start);
    while (!link_probe_step(probe, start) &&
           time_now() - start < WIRE_FIXTURE_LIMIT)
        echo(fixture, RUN);
    assert_true(link_probe_step(probe, start));
    assert_true(link_probe_rate(probe) == 0);
    link_probe_close(&probe);
}

static void who_does_not_answer_is_left_at_the_limit(void **state) {
    struct wire_fixture *fixture = *state;
    int64_t now = time_now();
    struct link_probe *probe = open_probe(fixture, fixture->address, now);
    assert_false(link_probe_step(probe, now));
    assert_false(link_probe_step(probe, now + 599 * TIME_MS));
    assert_true(link_probe_step(probe, now + 600 * TIME_MS));
    assert_true(link_probe_rate(probe) == 0);
    link_probe_close(&probe);
}

static void an_answer_of_another_run_does_not_count(void **state) {
    struct wire_fixture *fixture = *state;
    int64_t start = time_now();
    unsigned seen = 0;
    struct link_probe *probe = open_probe(fixture, fixture->address, start);
    while (seen < 4 && time_now() - start < WIRE_FIXTURE_LIMIT) {
        assert_false(link_probe_step(probe, start));
        seen += echo(fixture, RUN + 1);
    }
    assert_int_equal(seen, 4); /* the first burst, and no second one */
    assert_true(link_probe_step(probe, start + TIME_S));
    assert_true(link_probe_rate(probe) == 0);
    link_probe_close(&probe);
}

static void a_name_that_nobody_has_ends_it(void **state) {
    struct wire_fixture *fixture = *state;
    int64_t start = time_now();
    struct link_probe *probe = open_probe(fixture, "nobody.invalid:1", start);
    while (!link_probe_step(probe, time_now()))
        assert_true(time_now() - start < WIRE_FIXTURE_LIMIT);
    assert_true(link_probe_rate(probe) == 0);
    link_probe_close(&probe);
}

static void an_address_without_a_port_is_an_error(void **state) {
    struct wire_fixture *fixture = *state;
    struct link_probe_settings settings = {.zmq = fixture->zmq,
                                           .address = "host"};
    struct link_probe *probe;
    struct failure why;
    assert_int_equal(link_probe_open(&probe, &settings, 0, &why), STATUS_RETRY);
    assert_null(probe);
}

#define PROBE_TEST(f)                                                          \
    cmocka_unit_test_setup_teardown(f, setup, wire_fixture_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        PROBE_TEST(a_ps_on_this_host_is_not_measured),
        PROBE_TEST(who_does_not_answer_is_left_at_the_limit),
        PROBE_TEST(an_answer_of_another_run_does_not_count),
        PROBE_TEST(a_name_that_nobody_has_ends_it),
        PROBE_TEST(an_address_without_a_port_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
