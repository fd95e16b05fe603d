/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/service_fixture.h"

#include "proto/base/time.h"
#include "proto/tensor/encoding.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void take_snapshot(void *context, uint32_t b, uint64_t version) {
    struct service_fixture *fixture = context;
    if (fixture->snapshot)
        fixture->snapshot(fixture, b, version);
}

static void take_sums(void *context, uint64_t round, const double *sums) {
    struct service_fixture *fixture = context;
    fixture->summed_round = round;
    memcpy(fixture->sums, sums, fixture->num_mine * sizeof *sums);
}

static void build_layout(struct service_fixture *fixture) {
    static const uint32_t dims[SERVICE_BLOCKS] = {3, 16, 7, 5};
    struct parameter parameters[SERVICE_BLOCKS] = {0};
    struct failure why;
    for (int p = 0; p < SERVICE_BLOCKS; p++) {
        snprintf(parameters[p].name, LAYOUT_MAX_NAME, "p%d", p);
        parameters[p].num_dims = 1;
        parameters[p].dims[0] = dims[p];
    }
    if (layout_build(&fixture->layout, parameters, SERVICE_BLOCKS, &why))
        fail_msg("%s", why.text);
    for (int b = 0; b < SERVICE_BLOCKS; b++)
        fixture->elements[b] = fixture->layout->blocks[b].elements;
}

int service_fixture_setup(void **state) {
    struct service_fixture *fixture = calloc(1, sizeof *fixture);
    void *wire;
    wire_fixture_setup(&wire);
    fixture->wire = wire;
    build_layout(fixture);
    fixture->ids[0] = 0;
    fixture->ids[1] = 1;
    fixture->ids[2] = 3;
    fixture->num_mine = SERVICE_MINE;
    fixture->job.schedule.lr = 1;
    fixture->rounds = (struct rounds){
        .total = 1000, .accumulation = 1, .epoch_batches = 1000000};
    *state = fixture;
    return 0;
}

int service_fixture_setup_bf16(void **state) {
    service_fixture_setup(state);
    struct service_fixture *fixture = *state;
    fixture->job.wire = JOB_BF16;
    return 0;
}

int service_fixture_setup_threads(void **state) {
    int status = service_fixture_setup(state);
    ((struct service_fixture *)*state)->threads = 3;
    return status;
}

void service_fixture_open(struct service_fixture *fixture, uint32_t ranks) {
    struct failure why;
    struct service_settings settings = {.link = fixture->wire->server,
                                        .log = &fixture->wire->log,
                                        .run = SERVICE_RUN,
                                        .incarnation = SERVICE_PS,
                                        .chief = SERVICE_CHIEF,
                                        .job = &fixture->job,
                                        .layout = fixture->layout,
                                        .ids = fixture->ids,
                                        .num_blocks = fixture->num_mine,
                                        .num_ranks = ranks,
                                        .replicas = fixture->replicas,
                                        .threads = fixture->threads,
                                        .rounds = fixture->rounds,
                                        .snapshot = take_snapshot,
                                        .summed = take_sums,
                                        .context = fixture};
    if (service_open(&fixture->service, &settings, &why))
        fail_msg("%s", why.text);
    shard_initialise(service_shard(fixture->service), 1);
    fixture->ranks = ranks;
    for (uint32_t r = 0; r < ranks; r++) {
        fixture->slots[r] = (struct gate_slot){SERVICE_TRAINER + r, 1, true};
        fixture->trainers[r] = wire_fixture_client(fixture->wire);
    }
    exchange_view(service_exchange(fixture->service), 1, fixture->slots);
    assert_int_equal(service_settle(fixture->service, &why), STATUS_OK);
}

int service_fixture_teardown(void **state) {
    struct service_fixture *fixture = *state;
    void *wire = fixture->wire;
    for (uint32_t r = 0; r < fixture->ranks; r++)
        link_close(&fixture->trainers[r]);
    service_close(&fixture->service);
    layout_free(&fixture->layout);
    wire_fixture_teardown(&wire);
    free(fixture);
    return 0;
}

Capstan__DataHeader service_fixture_header(struct service_fixture *fixture,
                                           Capstan__DataHeader__Kind kind,
                                           uint32_t rank, uint64_t clock,
                                           uint32_t *ids, size_t count) {
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    header.kind = kind;
    header.run = SERVICE_RUN;
    header.incarnation = SERVICE_TRAINER + rank;
    header.rank = rank;
    header.seq = ++fixture->seq;
    header.clock = clock;
    header.n_blocks = count;
    header.blocks = ids;
    header.encoding = encoding_name(fixture->job.wire);
    return header;
}

void service_fixture_send(struct service_fixture *fixture, struct link *link,
                          Capstan__DataHeader *header, const void *payload,
                          size_t bytes) {
    static unsigned char space[MESSAGE_MAX_HEADER];
    struct link_payload message;
    zmq_pollitem_t item = {link_socket(link), 0, ZMQ_POLLOUT, 0};
    (void)fixture;
    assert_int_equal(zmq_poll(&item, 1, (int)(WIRE_FIXTURE_LIMIT / TIME_MS)),
                     1);
    assert_true(link_reserve(link, 0, &message, bytes));
    if (bytes)
        memcpy(link_reserved(&message), payload, bytes);
    size_t size = message_write_data(header, space);
    assert_true(link_commit(link, 0, space, size, &message));
}

void service_fixture_push(struct service_fixture *fixture, uint32_t rank,
                          uint64_t clock, uint32_t *ids, size_t count,
                          float value) {
    float floats[SERVICE_MAX_FLOATS];
    char payload[sizeof floats];
    size_t used = 0;
    for (size_t i = 0; i < count; i++)
        for (uint32_t e = 0; e < fixture->elements[ids[i]]; e++)
            floats[used++] = value + (float)ids[i];
    Capstan__DataHeader header = service_fixture_header(
        fixture, CAPSTAN__DATA_HEADER__KIND__PUSH, rank, clock, ids, count);
    encoding_write(NULL, fixture->job.wire, floats, used, payload);
    service_fixture_send(fixture, fixture->trainers[rank], &header, payload,
                         encoding_bytes(fixture->job.wire, used));
}

void service_fixture_serve(struct service_fixture *fixture, int count) {
    struct link_frame frame;
    Capstan__DataHeader *header;
    struct failure why;
    for (int i = 0; i < count; i++) {
        wire_fixture_view(fixture->wire->server, &frame);
        if (message_read_data(&header, &fixture->arena, frame.header.data,
                              frame.header.size, &why) ||
            service_handle(fixture->service, &frame, header, &why) ||
            service_finish(fixture->service, &why))
            fail_msg("%s", why.text);
    }
}

Capstan__DataHeader *service_fixture_answer(struct service_fixture *fixture,
                                            struct link *link,
                                            struct link_frame *frame) {
    Capstan__DataHeader *header;
    struct failure why;
    wire_fixture_view(link, frame);
    if (message_read_data(&header, &fixture->arena, frame->header.data,
                          frame->header.size, &why))
        fail_msg("%s", why.text);
    bool named = header->kind != CAPSTAN__DATA_HEADER__KIND__REFUSED;
    assert_int_equal(header->run, named ? SERVICE_RUN : 0);
    assert_int_equal(header->incarnation, named ? SERVICE_PS : 0);
    return header;
}

float service_fixture_weight(const struct service_fixture *fixture, uint32_t id,
                             uint32_t i) {
    for (uint32_t b = 0; b < fixture->num_mine; b++)
        if (fixture->ids[b] == id)
            return ((float *)buffer_data(
                shard_tensor(service_shard(fixture->service), b, 0)))[i];
    return 0;
}

void service_fixture_handle(struct service_fixture *fixture) {
    struct link_frame frame;
    Capstan__DataHeader *header;
    struct failure why;
    wire_fixture_view(fixture->wire->server, &frame);
    assert_int_equal(message_read_data(&header, &fixture->arena,
                                       frame.header.data, frame.header.size,
                                       &why),
                     STATUS_OK);
    assert_int_equal(service_handle(fixture->service, &frame, header, &why),
                     STATUS_OK);
}

void service_fixture_expect(struct service_fixture *fixture, struct link *link,
                            Capstan__DataHeader__Kind kind, const char *text) {
    struct link_frame frame;
    Capstan__DataHeader *header = service_fixture_answer(fixture, link, &frame);
    assert_int_equal(header->kind, kind);
    if (text && !strstr(header->text, text))
        fail_msg("'%s' is not in: %s", text, header->text);
    link_release(&frame);
}

size_t service_fixture_place(const Capstan__DataHeader *header, size_t i) {
    size_t place = 0;
    for (size_t k = 0; k < header->n_blocks; k++)
        place += header->blocks[k] < header->blocks[i];
    return place;
}

/* ELEMENTS weights at *BYTES, behind which it is left, are all VALUE. */
static void expect_all(const char **bytes, enum job_wire wire,
                       uint32_t elements, float value) {
    for (uint32_t e = 0; e < elements; e++) {
        float weight;
        encoding_read(NULL, wire, *bytes, 1, &weight);
        *bytes += encoding_bytes(wire, 1);
        assert_true(weight == value);
    }
}

void service_fixture_expect_weights(struct service_fixture *fixture,
                                    uint32_t rank, uint64_t clock,
                                    const float *values, size_t count) {
    struct link_frame frame;
    Capstan__DataHeader *header =
        service_fixture_answer(fixture, fixture->trainers[rank], &frame);
    assert_int_equal(header->kind, CAPSTAN__DATA_HEADER__KIND__WEIGHTS);
    assert_int_equal(header->clock, clock);
    assert_int_equal(header->rank, rank);
    assert_int_equal(header->n_blocks, count);
    enum job_wire wire = fixture->job.wire;
    assert_int_equal(header->encoding, encoding_name(wire));
    const char *bytes = frame.payload.data;
    for (size_t i = 0; i < count; i++)
        expect_all(&bytes, wire, fixture->elements[header->blocks[i]],
                   values[service_fixture_place(header, i)]);
    assert_int_equal(bytes - (char *)frame.payload.data, frame.payload.size);
    link_release(&frame);
}
