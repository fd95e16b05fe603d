/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/server_fixture.h"

#include "core/base/time.h"
#include "proto/plan/encoding.h"
#include "tests/lib/test.h"

static void take_snapshot(void *context, uint32_t b, uint64_t version) {
    struct server_fixture *fixture = context;
    if (fixture->snapshot)
        fixture->snapshot(fixture, b, version);
}

static void take_sums(void *context, uint64_t round, const double *sums) {
    struct server_fixture *fixture = context;
    fixture->summed_round = round;
    memcpy(fixture->sums, sums, fixture->num_mine * sizeof *sums);
}

static void build_layout(struct server_fixture *fixture) {
    static const uint32_t dims[SERVER_FIXTURE_BLOCKS] = {3, 16, 7, 5};
    struct parameter parameters[SERVER_FIXTURE_BLOCKS] = {0};
    for (int p = 0; p < SERVER_FIXTURE_BLOCKS; p++) {
        snprintf(parameters[p].name, LAYOUT_MAX_NAME, "p%d", p);
        parameters[p].num_dims = 1;
        parameters[p].dims[0] = dims[p];
    }
    assert_ok(layout_build(&fixture->layout, parameters, SERVER_FIXTURE_BLOCKS,
                           &failure));
    for (int b = 0; b < SERVER_FIXTURE_BLOCKS; b++)
        fixture->elements[b] = fixture->layout->blocks[b].elements;
}

int server_fixture_setup(void **state) {
    struct server_fixture *fixture = calloc(1, sizeof *fixture);
    void *wire;
    link_fixture_setup(&wire);
    fixture->wire = wire;
    fixture->process = (struct process){.log = &fixture->wire->log,
                                        .run = SERVER_FIXTURE_RUN,
                                        .incarnation = SERVER_FIXTURE_PS};
    build_layout(fixture);
    fixture->ids[0] = 0;
    fixture->ids[1] = 1;
    fixture->ids[2] = 3;
    fixture->num_mine = SERVER_FIXTURE_OWN_BLOCKS;
    fixture->job.schedule.lr = 1;
    fixture->run_schedule = (struct run_schedule){
        .total = 1000, .accumulation = 1, .epoch_batches = 1000000};
    *state = fixture;
    return 0;
}

int server_fixture_setup_bf16(void **state) {
    server_fixture_setup(state);
    struct server_fixture *fixture = *state;
    fixture->job.wire = JOB_WIRE_BF16;
    return 0;
}

int server_fixture_setup_threads(void **state) {
    int status = server_fixture_setup(state);
    ((struct server_fixture *)*state)->threads = 3;
    return status;
}

void server_fixture_open(struct server_fixture *fixture, uint32_t ranks) {
    struct server_settings settings = {.link = fixture->wire->server_link,
                                       .process = &fixture->process,
                                       .chief = SERVER_FIXTURE_CHIEF,
                                       .job = &fixture->job,
                                       .layout = fixture->layout,
                                       .ids = fixture->ids,
                                       .num_blocks = fixture->num_mine,
                                       .num_ranks = ranks,
                                       .parties = fixture->parties,
                                       .replicas = fixture->replicas,
                                       .threads = fixture->threads,
                                       .awaits_values = fixture->awaits_values,
                                       .run_schedule = fixture->run_schedule,
                                       .snapshot = take_snapshot,
                                       .on_square_sums = take_sums,
                                       .context = fixture};
    assert_ok(server_open(&fixture->server, &settings, &failure));
    shard_initialise(server_shard(fixture->server), 1);
    fixture->ranks = ranks;
    for (uint32_t r = 0; r < ranks; r++) {
        fixture->slots[r] =
            (struct gate_slot){SERVER_FIXTURE_TRAINER + r, 1, true};
        fixture->trainers[r] = link_fixture_client(fixture->wire);
    }
    update_core_set_view(server_update_core(fixture->server), 1,
                         fixture->slots);
    assert_ok(server_run_actions(fixture->server, &failure));
}

int server_fixture_teardown(void **state) {
    struct server_fixture *fixture = *state;
    void *wire = fixture->wire;
    for (uint32_t r = 0; r < fixture->ranks; r++)
        link_close(&fixture->trainers[r]);
    server_close(&fixture->server);
    layout_free(&fixture->layout);
    link_fixture_teardown(&wire);
    free(fixture);
    return 0;
}

Capstan__DataHeader server_fixture_header(struct server_fixture *fixture,
                                          Capstan__DataHeader__Kind kind,
                                          uint32_t rank, uint64_t clock,
                                          uint32_t *ids, size_t count) {
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    header.kind = kind;
    header.run = SERVER_FIXTURE_RUN;
    header.incarnation = SERVER_FIXTURE_TRAINER + rank;
    header.rank = rank;
    header.seq = ++fixture->seq;
    header.clock = clock;
    header.n_blocks = count;
    header.blocks = ids;
    header.encoding = encoding_name(fixture->job.wire);
    return header;
}

void server_fixture_send(struct server_fixture *fixture, struct link *link,
                         Capstan__DataHeader *header, const void *payload,
                         size_t bytes) {
    static unsigned char space[MESSAGE_MAX_HEADER];
    struct link_payload message;
    zmq_pollitem_t item = {link_socket(link), 0, ZMQ_POLLOUT, 0};
    (void)fixture;
    assert_int_equal(zmq_poll(&item, 1, (int)(LINK_FIXTURE_DEADLINE / TIME_MS)),
                     1);
    assert_true(link_reserve(link, 0, &message, bytes));
    if (bytes)
        memcpy(link_reserved(&message), payload, bytes);
    size_t size = message_write_data(header, space);
    assert_true(link_commit(link, 0, space, size, &message));
}

void server_fixture_push(struct server_fixture *fixture, uint32_t rank,
                         uint64_t clock, uint32_t *ids, size_t count,
                         float value) {
    float floats[SERVER_FIXTURE_MAX_FLOATS];
    char payload[sizeof floats];
    size_t used = 0;
    for (size_t i = 0; i < count; i++)
        for (uint32_t e = 0; e < fixture->elements[ids[i]]; e++)
            floats[used++] = value + (float)ids[i];
    Capstan__DataHeader header = server_fixture_header(
        fixture, CAPSTAN__DATA_HEADER__KIND__PUSH, rank, clock, ids, count);
    encoding_write(NULL, fixture->job.wire, floats, used, payload);
    server_fixture_send(fixture, fixture->trainers[rank], &header, payload,
                        encoding_bytes(fixture->job.wire, used));
}

void server_fixture_push_empty(struct server_fixture *fixture, uint32_t rank,
                               uint64_t clock, uint32_t *ids, size_t count) {
    Capstan__DataHeader header = server_fixture_header(
        fixture, CAPSTAN__DATA_HEADER__KIND__PUSH, rank, clock, ids, count);
    header.encoding = CAPSTAN__DATA_HEADER__ENCODING__EMPTY;
    server_fixture_send(fixture, fixture->trainers[rank], &header, NULL, 0);
}

void server_fixture_handle_messages(struct server_fixture *fixture, int count) {
    struct link_frame frame;
    Capstan__DataHeader *header;
    for (int i = 0; i < count; i++) {
        link_fixture_receive(fixture->wire->server_link, &frame);
        if (message_read_data(&header, &fixture->arena, frame.header.data,
                              frame.header.size, &failure) ||
            server_handle(fixture->server, &frame, header, &failure) ||
            server_drain(fixture->server, &failure))
            fail_msg("%s", failure.text);
    }
}

Capstan__DataHeader *server_fixture_receive_reply(
    struct server_fixture *fixture, struct link *link,
    struct link_frame *frame) {
    Capstan__DataHeader *header;
    link_fixture_receive(link, frame);
    assert_ok(message_read_data(&header, &fixture->arena, frame->header.data,
                                frame->header.size, &failure));
    bool named = header->kind != CAPSTAN__DATA_HEADER__KIND__REFUSED;
    assert_int_equal(header->run, named ? SERVER_FIXTURE_RUN : 0);
    assert_int_equal(header->incarnation, named ? SERVER_FIXTURE_PS : 0);
    return header;
}

float server_fixture_weight(const struct server_fixture *fixture, uint32_t id,
                            uint32_t i) {
    for (uint32_t b = 0; b < fixture->num_mine; b++)
        if (fixture->ids[b] == id)
            return ((float *)buffer_data(
                shard_tensor(server_shard(fixture->server), b, 0)))[i];
    return 0;
}

void server_fixture_handle_one(struct server_fixture *fixture) {
    struct link_frame frame;
    Capstan__DataHeader *header;
    link_fixture_receive(fixture->wire->server_link, &frame);
    assert_ok(message_read_data(&header, &fixture->arena, frame.header.data,
                                frame.header.size, &failure));
    assert_ok(server_handle(fixture->server, &frame, header, &failure));
}

void server_fixture_expect(struct server_fixture *fixture, struct link *link,
                           Capstan__DataHeader__Kind kind, const char *text) {
    struct link_frame frame;
    Capstan__DataHeader *header =
        server_fixture_receive_reply(fixture, link, &frame);
    assert_int_equal(header->kind, kind);
    if (text && !strstr(header->text, text))
        fail_msg("'%s' is not in: %s", text, header->text);
    link_release(&frame);
}

size_t server_fixture_block_order(const Capstan__DataHeader *header, size_t i) {
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

void server_fixture_expect_weights(struct server_fixture *fixture,
                                   uint32_t rank, uint64_t clock,
                                   const float *values, size_t count) {
    struct link_frame frame;
    Capstan__DataHeader *header =
        server_fixture_receive_reply(fixture, fixture->trainers[rank], &frame);
    assert_int_equal(header->kind, CAPSTAN__DATA_HEADER__KIND__WEIGHTS);
    assert_int_equal(header->clock, clock);
    assert_int_equal(header->rank, rank);
    assert_int_equal(header->n_blocks, count);
    enum job_wire wire = fixture->job.wire;
    assert_int_equal(header->encoding, encoding_name(wire));
    const char *bytes = frame.payload.data;
    for (size_t i = 0; i < count; i++)
        expect_all(&bytes, wire, fixture->elements[header->blocks[i]],
                   values[server_fixture_block_order(header, i)]);
    assert_int_equal(bytes - (char *)frame.payload.data, frame.payload.size);
    link_release(&frame);
}
