/* SPDX-License-Identifier: Apache-2.0 */
/* What a client writes in its requests, and what it makes of the answers: those
 * that are not sound are left. */
#define STATE struct client_fixture *fixture

#include "worker/exchange/client/client.h"

#include "core/base/time.h"
#include "proto/plan/encoding.h"
#include "tests/lib/client_fixture.h"
#include "tests/lib/test.h"

FIXTURE(client_fixture_setup, client_fixture_teardown);

TEST(gradients_announced_together_share_a_message) {
    float *gradients = buffer_data(fixture->gradients);
    struct link_frame frame;
    server_fixture_open(fixture->server, 1);
    client_fixture_open(fixture, 0);
    for (int i = 0; i < 64; i++)
        gradients[i] = (float)i;
    fixture->exchange->announce(fixture->exchange, 1, 2, 1, CONTRIBUTION_FULL);
    Capstan__DataHeader *header = client_fixture_view_request(fixture, &frame);
    assert_int_equal(header->n_blocks, 2);
    const struct layout *layout = fixture->server->layout;
    uint64_t upper = layout->parameters[2].elements;
    uint64_t lower = layout->parameters[1].elements;
    assert_int_equal(frame.payload.size, (upper + lower) * sizeof(float));
    const float *floats = frame.payload.data;
    assert_memory_equal(floats, gradients + fixture->offsets[2],
                        upper * sizeof(float));
    assert_memory_equal(floats + upper, gradients + fixture->offsets[1],
                        lower * sizeof(float));
    link_release(&frame);
}

/* Memory that the ps cannot map, or another encoding: they are copied once, to
 * where the ps reads them. */
TEST(gradients_are_read_in_place_over_shared_memory) {
    float *gradients = buffer_data(fixture->gradients);
    enum job_wire wire = fixture->server->job.wire;
    struct link_fixture *link = fixture->server->wire;
    struct link_settings settings = {.max_frame = MESSAGE_MAX_PAYLOAD};
    fixture->place.shm_key = message_random();
    link_close(&link->server_link);
    assert_ok(link_open(&link->server_link, link->zmq, LINK_SERVER, &settings,
                        &failure));
    assert_ok(
        link_listen_shm(link->server_link, fixture->place.shm_key, &failure));
    server_fixture_open(fixture->server, 1);
    client_fixture_open(fixture, 0);
    for (int i = 0; i < 64; i++)
        gradients[i] = (float)i;
    fixture->exchange->announce(fixture->exchange, 1, 2, 1, CONTRIBUTION_FULL);
    struct link_frame frame;
    client_fixture_view_request(fixture, &frame);
    assert_non_null(frame.shm_segment);
    float received[32];
    const char *bytes = frame.payload.data;
    for (uint32_t p = 2; p > 0; p--) {
        size_t count = fixture->server->layout->parameters[p].elements;
        encoding_read(NULL, wire, bytes, count, received);
        assert_memory_equal(received, gradients + fixture->offsets[p],
                            count * sizeof(float));
        bytes += encoding_bytes(wire, count);
    }
    assert_int_equal(frame.payload.size,
                     bytes - (const char *)frame.payload.data);
    link_release(&frame);
}

CLIENT_BF16(gradients_are_read_in_place_over_shared_memory);

/* The ps's side of a link whose client waits for weights; returns the peer. */
static uint32_t await_request(struct client_fixture *fixture) {
    struct link_frame frame;
    client_fixture_view_request(fixture, &frame);
    uint32_t peer = frame.peer;
    link_release(&frame);
    return peer;
}

/* BYTES of weights are all FILL, a byte. */
static void reply(struct client_fixture *fixture, uint32_t peer,
                  Capstan__DataHeader *header, size_t bytes, int fill) {
    static unsigned char space[MESSAGE_MAX_HEADER];
    struct link_payload payload;
    assert_true(link_reserve(fixture->server->wire->server_link, peer, &payload,
                             bytes));
    if (bytes)
        memset(link_reserved(&payload), fill, bytes);
    size_t size = message_write_data(header, space);
    assert_true(link_commit(fixture->server->wire->server_link, peer, space,
                            size, &payload));
}

TEST(malformed_replies_are_ignored) {
    enum { SOUND = 0x40, WRONG = 0x11 };
    uint32_t first = 0, beyond[] = {0, 99}, twice[] = {0, 0};
    server_fixture_open(fixture->server, 1);
    client_fixture_open(fixture, 0);
    fixture->exchange->pull(fixture->exchange, 0, 0);
    uint32_t peer = await_request(fixture);
    enum job_wire wire = fixture->server->job.wire;
    enum job_wire other =
        wire == JOB_WIRE_BF16 ? JOB_WIRE_FLOAT32 : JOB_WIRE_BF16;
    size_t floats = fixture->server->elements[0];
    size_t bytes = encoding_bytes(wire, floats);
    Capstan__DataHeader sound = CAPSTAN__DATA_HEADER__INIT, wrong;
    sound.kind = CAPSTAN__DATA_HEADER__KIND__WEIGHTS;
    sound.run = SERVER_FIXTURE_RUN;
    sound.incarnation = SERVER_FIXTURE_PS;
    sound.n_blocks = 1;
    sound.blocks = &first;
    sound.encoding = encoding_name(wire);
    wrong = sound;
    wrong.encoding = encoding_name(other);
    reply(fixture, peer, &wrong, bytes, WRONG);
    reply(fixture, peer, &wrong, encoding_bytes(other, floats), WRONG);
    wrong = sound;
    wrong.run++;
    reply(fixture, peer, &wrong, bytes, WRONG);
    wrong = sound;
    wrong.incarnation++;
    reply(fixture, peer, &wrong, bytes, WRONG);
    reply(fixture, peer, &sound, bytes - 1, WRONG);
    reply(fixture, peer, &sound, 0, WRONG);
    wrong = sound;
    wrong.blocks = beyond;
    wrong.n_blocks = 2;
    reply(fixture, peer, &wrong, bytes, WRONG);
    wrong = sound;
    wrong.clock = 5;
    reply(fixture, peer, &wrong, bytes, WRONG);
    wrong = sound;
    wrong.snapshot = 5;
    reply(fixture, peer, &wrong, bytes, WRONG);
    wrong = sound;
    wrong.kind = CAPSTAN__DATA_HEADER__KIND__CHIEF_AT;
    reply(fixture, peer, &wrong, 0, WRONG);
    wrong.kind = CAPSTAN__DATA_HEADER__KIND__REFUSED;
    wrong.text = "refused for a test";
    link_fixture_capture_log(fixture->server->wire);
    reply(fixture, peer, &wrong, 0, WRONG);
    reply(fixture, peer, &wrong, 0, WRONG);
    assert_true(
        link_commit(fixture->server->wire->server_link, peer, "\377", 1, NULL));
    sound.step = 41;
    sound.blocks = twice;
    sound.n_blocks = 2;
    reply(fixture, peer, &sound, 2 * bytes, SOUND);
    int64_t step_limit = time_now() + LINK_FIXTURE_DEADLINE;
    while (fixture->exchange->global_step(fixture->exchange) != 41) {
        assert_true(time_now() < step_limit);
        const float *weights = buffer_data(fixture->weights);
        for (int i = 0; i < 64; i++)
            assert_true(weights[i] == 0);
        assert_ok(client_step(fixture->client, fixture->now, &failure));
        client_fixture_poll(fixture);
    }
    static const float zero;
    float expected;
    char same[sizeof expected];
    memset(same, SOUND, sizeof same);
    encoding_read(NULL, wire, same, 1, &expected);
    const float *weights = buffer_data(fixture->weights);
    for (uint32_t i = 0; i < 64; i++) {
        bool mine = i >= fixture->offsets[3] &&
                    i < fixture->offsets[3] + fixture->server->elements[0];
        assert_memory_equal(&weights[i], mine ? &expected : &zero, sizeof zero);
    }
    const char *said = link_fixture_captured_log(fixture->server->wire);
    const char *refused = strstr(said, "refused for a test");
    assert_non_null(refused);
    assert_null(strstr(refused + 1, "refused for a test")); /* said once */
}

CLIENT_BF16(malformed_replies_are_ignored);

/* The answer of a block that is not the plan's first tells nothing. */
TEST(an_overflowed_push_carries_its_scale_and_its_reply_the_next) {
    struct link_frame frame;
    client_fixture_open(fixture, 0);
    fixture->exchange->announce(fixture->exchange, 0, SERVER_FIXTURE_BLOCKS, 1,
                                CONTRIBUTION_OVERFLOWED);
    Capstan__DataHeader *header = client_fixture_view_request(fixture, &frame);
    assert_int_equal(header->kind, CAPSTAN__DATA_HEADER__KIND__PUSH);
    assert_int_equal(header->encoding,
                     CAPSTAN__DATA_HEADER__ENCODING__OVERFLOW);
    assert_int_equal(header->n_blocks, SERVER_FIXTURE_BLOCKS);
    assert_true(header->loss_scale == 4096);
    assert_int_equal(frame.payload.size, 0);
    uint32_t peer = frame.peer;
    link_release(&frame);
    for (uint32_t b = 2; b-- > 0;) {
        Capstan__DataHeader weights = CAPSTAN__DATA_HEADER__INIT;
        weights.kind = CAPSTAN__DATA_HEADER__KIND__WEIGHTS;
        weights.run = SERVER_FIXTURE_RUN;
        weights.incarnation = SERVER_FIXTURE_PS;
        weights.clock = 1;
        weights.step = 2 - b;
        weights.n_blocks = 1;
        weights.blocks = &b;
        weights.loss_scale = 1024 + b;
        weights.skipped = 7 + b;
        reply(fixture, peer, &weights,
              fixture->server->elements[b] * sizeof(float), 0);
        int64_t step_limit = time_now() + LINK_FIXTURE_DEADLINE;
        while (fixture->exchange->global_step(fixture->exchange) != 2 - b) {
            assert_true(time_now() < step_limit);
            assert_ok(client_step(fixture->client, time_now(), &failure));
        }
        struct loss_scaler scaler =
            fixture->exchange->scaler(fixture->exchange);
        assert_true(scaler.scale == (b ? 4096 : 1024));
        assert_int_equal(scaler.skipped, b ? 0 : 7);
    }
}

/* Turns as a loop takes them, to UNTIL or the first failure. */
static enum status step_until(struct client *client, int64_t now, int64_t until,
                              struct failure *why) {
    enum status status = STATUS_OK;
    for (; !status && now <= until; now += TIME_S / 2)
        status = client_step(client, now, why);
    return status;
}

TEST(a_silent_ps_is_named_at_the_step_timeout) {
    server_fixture_open(fixture->server, 1);
    client_fixture_open(fixture, 0);
    fixture->exchange->pull(fixture->exchange, 0, 0);
    await_request(fixture);
    struct deadline deadline = client_silent(fixture->client);
    int64_t since = deadline.since;
    assert_non_null(strstr(deadline.peer, "ps 0 at 127.0.0.1:"));
    assert_true(deadline.until == since + CLIENT_STEP_TIMEOUT * TIME_S);
    int64_t last = since + (CLIENT_STEP_TIMEOUT - 1) * TIME_S;
    assert_ok(step_until(fixture->client, since, last, &failure));
    assert_error(step_until(fixture->client, last, last + TIME_S, &failure),
                 FAILURE_PEER_SILENT);
    assert_non_null(strstr(failure.text, "ps 0 at 127.0.0.1"));
    assert_non_null(strstr(failure.text, "timeouts.step"));
    assert_non_null(strstr(failure.text, "set it to 120"));
}

TEST(an_unreachable_ps_is_named) {
    strcpy(fixture->place.address, "127.0.0.1:1");
    server_fixture_open(fixture->server, 1);
    client_fixture_open(fixture, 0);
    fixture->exchange->announce(fixture->exchange, 0, 1, 1, CONTRIBUTION_FULL);
    assert_ok(client_step(fixture->client, fixture->now, &failure));
    assert_true(client_deadline(fixture->client) < time_now() + TIME_S);
    assert_string_equal(client_silent(fixture->client).limit, "timeouts.peer");
    Capstan__Heartbeat heartbeat = CAPSTAN__HEARTBEAT__INIT;
    client_report_lost(fixture->client, time_now() + TIME_S, &heartbeat);
    assert_int_equal(heartbeat.n_lost, 1);
    assert_int_equal(heartbeat.lost[0]->ps, 0);
    assert_true(heartbeat.lost[0]->seconds >= 1);
    int64_t last = fixture->now + CLIENT_STEP_TIMEOUT * TIME_S;
    assert_error(step_until(fixture->client, fixture->now, last, &failure),
                 FAILURE_PEER_SILENT);
    assert_non_null(strstr(failure.text, "ps 0 at 127.0.0.1:1"));
}
