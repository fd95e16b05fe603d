/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct link_fixture *fixture

#include "worker/bandwidth_meter.h"

#include "core/base/time.h"
#include "tests/lib/link_fixture.h"
#include "tests/lib/test.h"

enum { RUN = 7, BYTES = 64 << 10 };

static int setup(void **state) {
    struct link_fixture *fixture;
    struct link_settings link = {.max_frame = MESSAGE_MAX_PAYLOAD};
    if (link_fixture_setup(state))
        return -1;
    fixture = *state;
    link_close(&fixture->server_link); /* its frames are too short */
    if (link_open(&fixture->server_link, fixture->zmq, LINK_SERVER, &link,
                  &failure) ||
        link_bind(fixture->server_link, 0, &failure))
        return -1;
    snprintf(fixture->address, sizeof fixture->address, "127.0.0.1:%u",
             link_port(fixture->server_link));
    return 0;
}

FIXTURE(setup, link_fixture_teardown);

static struct bandwidth_meter *open_probe(struct link_fixture *fixture,
                                          const char *address, int64_t now) {
    static struct process process;
    process =
        (struct process){.zmq = fixture->zmq, .run = RUN, .incarnation = 1};
    struct bandwidth_meter_settings settings = {.process = &process,
                                                .address = address};
    struct bandwidth_meter *probe;
    assert_ok(bandwidth_meter_open(&probe, &settings, now, &failure));
    return probe;
}

/* What has come goes back, said to be of RUN; greetings are answered first.
 * Returns how many have a payload. */
static unsigned echo(struct link_fixture *fixture, uint64_t run) {
    static struct message_arena arena;
    static unsigned char space[MESSAGE_MAX_HEADER];
    struct link_frame frame;
    unsigned count = 0;
    while (link_view(fixture->server_link, &frame)) {
        Capstan__DataHeader *header;
        struct link_payload payload;
        assert_ok(message_read_data(&header, &arena, frame.header.data,
                                    frame.header.size, &failure));
        assert_int_equal(header->kind, CAPSTAN__DATA_HEADER__KIND__PROBE);
        bool greets = !frame.payload.size;
        link_no_payload(&payload);
        header->kind = CAPSTAN__DATA_HEADER__KIND__PROBE_REPLY;
        header->run = greets ? RUN : run;
        if (!greets) {
            assert_int_equal(frame.payload.size, BYTES);
            assert_true(link_reserve(fixture->server_link, frame.peer, &payload,
                                     BYTES));
            memset(link_reserved(&payload), 0, BYTES);
        }
        count += !greets;
        size_t bytes = message_write_data(header, space);
        link_commit(fixture->server_link, frame.peer, space, bytes, &payload);
        link_release(&frame);
    }
    return count;
}

TEST(a_ps_on_this_host_is_not_measured) {
    int64_t start = time_now();
    struct bandwidth_meter *probe =
        open_probe(fixture, fixture->address, start);
    while (!bandwidth_meter_step(probe, start) &&
           time_now() - start < LINK_FIXTURE_DEADLINE)
        echo(fixture, RUN);
    assert_true(bandwidth_meter_step(probe, start));
    assert_true(bandwidth_meter_rate(probe) == 0);
    bandwidth_meter_close(&probe);
}

TEST(a_peer_that_does_not_answer_is_skipped_at_the_deadline) {
    int64_t now = time_now();
    struct bandwidth_meter *probe = open_probe(fixture, fixture->address, now);
    assert_false(bandwidth_meter_step(probe, now));
    assert_false(bandwidth_meter_step(probe, now + 599 * TIME_MS));
    assert_true(bandwidth_meter_step(probe, now + 600 * TIME_MS));
    assert_true(bandwidth_meter_rate(probe) == 0);
    bandwidth_meter_close(&probe);
}

TEST(an_answer_of_another_run_does_not_count) {
    int64_t start = time_now();
    unsigned seen = 0;
    struct bandwidth_meter *probe =
        open_probe(fixture, fixture->address, start);
    while (seen < 4 && time_now() - start < LINK_FIXTURE_DEADLINE) {
        assert_false(bandwidth_meter_step(probe, start));
        seen += echo(fixture, RUN + 1);
    }
    assert_int_equal(seen, 4); /* the first burst, and no second one */
    assert_true(bandwidth_meter_step(probe, start + TIME_S));
    assert_true(bandwidth_meter_rate(probe) == 0);
    bandwidth_meter_close(&probe);
}

TEST(an_unresolvable_name_ends_the_probe) {
    int64_t start = time_now();
    struct bandwidth_meter *probe =
        open_probe(fixture, "nobody.invalid:1", start);
    while (!bandwidth_meter_step(probe, time_now()))
        assert_true(time_now() - start < LINK_FIXTURE_DEADLINE);
    assert_true(bandwidth_meter_rate(probe) == 0);
    bandwidth_meter_close(&probe);
}

TEST(an_address_without_a_port_is_an_error) {
    struct process process = {.zmq = fixture->zmq};
    struct bandwidth_meter_settings settings = {.process = &process,
                                                .address = "host"};
    struct bandwidth_meter *probe;
    assert_error(bandwidth_meter_open(&probe, &settings, 0, &failure),
                 FAILURE_ADDRESS_UNRESOLVED);
    assert_null(probe);
}
