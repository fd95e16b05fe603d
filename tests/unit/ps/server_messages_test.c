/* SPDX-License-Identifier: Apache-2.0 */
/* What a ps answers to each message: receipts, words of refusal, what it lacks,
 * weights in the encoding that the job asks for, and to whom they go. */
#define STATE struct server_fixture *fixture

#include "ps/server.h"

#include "core/tensor/row_keys.h"
#include "proto/plan/encoding.h"
#include "tests/lib/server_fixture.h"
#include "tests/lib/shard_snapshot.h"
#include "tests/lib/test.h"

#define PUSH CAPSTAN__DATA_HEADER__KIND__PUSH
#define PULL CAPSTAN__DATA_HEADER__KIND__PULL
#define QUERY CAPSTAN__DATA_HEADER__KIND__QUERY

static uint32_t all[] = {0, 1, 3};

/* A push of rank RANK's CLOCK to ALL that asks for a receipt. */
static void push_with_ack(struct server_fixture *fixture, uint32_t rank,
                          uint64_t clock) {
    float floats[SERVER_FIXTURE_MAX_FLOATS];
    size_t count = 0;
    for (int i = 0; i < 3; i++)
        for (uint32_t e = 0; e < fixture->elements[all[i]]; e++)
            floats[count++] = 1;
    Capstan__DataHeader header =
        server_fixture_header(fixture, PUSH, rank, clock, all, 3);
    header.ack_only = true;
    server_fixture_send(fixture, fixture->trainers[rank], &header, floats,
                        count * sizeof(float));
}

/* The next answer is a receipt of COUNT blocks, the last of them of CLOCK. */
static Capstan__DataHeader *receive_ack(struct server_fixture *fixture,
                                        uint32_t rank, uint64_t clock,
                                        size_t count) {
    struct link_frame frame;
    Capstan__DataHeader *header =
        server_fixture_receive_reply(fixture, fixture->trainers[rank], &frame);
    assert_int_equal(header->kind, CAPSTAN__DATA_HEADER__KIND__ACK);
    assert_int_equal(header->clock, clock);
    assert_int_equal(header->rank, rank);
    assert_int_equal(header->n_blocks, count);
    assert_int_equal(frame.payload.size, 0);
    link_release(&frame);
    return header;
}

static void expect_ack(struct server_fixture *fixture, uint32_t rank,
                       uint64_t clock) {
    Capstan__DataHeader *header = receive_ack(fixture, rank, clock, 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(header->blocks[i],
                         all[server_fixture_block_order(header, i)]);
}

FIXTURE(server_fixture_setup, server_fixture_teardown);

TEST(a_push_that_requests_an_ack_gets_no_weights) {
    fixture->job.staleness = JOB_STALENESS_INF;
    server_fixture_open(fixture, 1);
    push_with_ack(fixture, 0, 1);
    push_with_ack(fixture, 0, 1); /* a copy is not applied again */
    server_fixture_push(fixture, 0, 2, all, 3, 0);
    server_fixture_handle_messages(fixture, 3);
    expect_ack(fixture, 0, 1);
    expect_ack(fixture, 0, 1);
    const float weights[] = {-1, -2, -4};
    server_fixture_expect_weights(fixture, 0, 2, weights, 3);
}

SERVER_THREADS(a_push_that_requests_an_ack_gets_no_weights);

TEST(acks_of_several_requests_share_a_message) {
    fixture->job.staleness = JOB_STALENESS_INF;
    server_fixture_open(fixture, 1);
    push_with_ack(fixture, 0, 1);
    push_with_ack(fixture, 0, 2);
    server_fixture_handle_one(fixture);
    server_fixture_handle_one(fixture);
    link_fixture_expect_nothing(fixture->trainers[0]);
    server_flush(fixture->server);
    Capstan__DataHeader *header = receive_ack(fixture, 0, 2, 6);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(header->blocks[i], all[i % 3]);
}

TEST(acks_do_not_wait_behind_weights) {
    fixture->job.staleness = JOB_STALENESS_INF;
    server_fixture_open(fixture, 1);
    push_with_ack(fixture, 0, 1);
    server_fixture_push(fixture, 0, 2, all, 3, 0);
    server_fixture_handle_one(fixture);
    server_fixture_handle_one(fixture);
    expect_ack(fixture, 0, 1);
    const float weights[] = {-1, -2, -4};
    server_fixture_expect_weights(fixture, 0, 2, weights, 3);
}

/* Asks for ROW of a table of width 1, or pushes or assigns 1 to it. */
static void send_row(struct server_fixture *fixture,
                     Capstan__DataHeader__Kind kind, uint64_t clock,
                     uint64_t row) {
    uint16_t table = 0;
    uint32_t floats = kind != CAPSTAN__DATA_HEADER__KIND__LOOKUP;
    struct row_keys keys = {.count = 1, .ids = &row, .tables = &table};
    unsigned char bytes[64];
    const float gradient = 1;
    size_t list = row_keys_write(fixture->layout, &keys, bytes);
    memcpy(bytes + list, &gradient, floats * sizeof gradient);
    uint32_t partition = fixture->layout->num_blocks,
             size = (uint32_t)(list + floats * sizeof gradient);
    Capstan__DataHeader header =
        server_fixture_header(fixture, kind, 0, clock, &partition, 1);
    header.n_sizes = 1;
    header.sizes = &size;
    header.early = !floats;
    server_fixture_send(fixture, fixture->trainers[0], &header, bytes, size);
}

static void open_with_table(struct server_fixture *fixture, bool assigned) {
    const struct table table = {.name = "rows", .dim = 1, .assigned = assigned};
    assert_ok(layout_add_tables(fixture->layout, &table, 1, 1, &failure));
    fixture->ids[fixture->num_mine++] = fixture->layout->num_blocks;
    fixture->job.staleness = JOB_STALENESS_INF;
    server_fixture_open(fixture, 1);
}

static void open_with_rows(struct server_fixture *fixture) {
    open_with_table(fixture, false);
}

TEST(acks_do_not_wait_behind_rows) {
    open_with_rows(fixture);
    send_row(fixture, CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS, 1, 7);
    send_row(fixture, CAPSTAN__DATA_HEADER__KIND__LOOKUP, 2, 7);
    server_fixture_handle_one(fixture);
    server_fixture_handle_one(fixture);
    server_fixture_expect(fixture, fixture->trainers[0],
                          CAPSTAN__DATA_HEADER__KIND__ACK, NULL);
    server_fixture_expect(fixture, fixture->trainers[0],
                          CAPSTAN__DATA_HEADER__KIND__ROWS, NULL);
}

static void look_up_row(struct server_fixture *fixture, uint64_t clock,
                        uint64_t row) {
    send_row(fixture, CAPSTAN__DATA_HEADER__KIND__LOOKUP, clock, row);
    server_fixture_handle_one(fixture);
}

static void expect_row(struct server_fixture *fixture, float weight) {
    struct link_frame frame;
    float found;
    Capstan__DataHeader *header =
        server_fixture_receive_reply(fixture, fixture->trainers[0], &frame);
    assert_int_equal(header->kind, CAPSTAN__DATA_HEADER__KIND__ROWS);
    assert_int_equal(frame.payload.size, sizeof found);
    memcpy(&found, frame.payload.data, sizeof found);
    assert_true(found == weight);
    link_release(&frame);
}

/* The lists of these pushes are as long as each other, and those of the lookups
 * before them. */
TEST(a_push_changes_the_rows_that_it_lists) {
    static const uint64_t pushed[] = {8, 7, 7, 9};
    float weights[10] = {0};
    open_with_rows(fixture);
    look_up_row(fixture, 1, 7);
    expect_row(fixture, 0);
    for (uint64_t i = 0; i < 4; i++) {
        send_row(fixture, CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS, i + 1,
                 pushed[i]);
        server_fixture_handle_one(fixture);
        weights[pushed[i]] -= 1;
        for (uint64_t row = 7; row <= 9; row++) {
            look_up_row(fixture, i + 2, row);
            if (row == 7)
                server_fixture_expect(fixture, fixture->trainers[0],
                                      CAPSTAN__DATA_HEADER__KIND__ACK, NULL);
            expect_row(fixture, weights[row]);
        }
    }
}

TEST(a_late_lookup_does_not_take_a_newer_ones_answer) {
    open_with_rows(fixture);
    look_up_row(fixture, 3, 7);
    look_up_row(fixture, 2, 8);
    for (uint64_t clock = 1; clock <= 2; clock++) {
        send_row(fixture, CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS, clock, 7);
        server_fixture_handle_one(fixture);
    }
    for (int i = 0; i < 2; i++)
        server_fixture_expect(fixture, fixture->trainers[0],
                              CAPSTAN__DATA_HEADER__KIND__ACK, NULL);
    expect_row(fixture, -2);
    link_fixture_expect_nothing(fixture->trainers[0]);
}

/* Nor is a push taken. A copy of the message is answered, and sets nothing. */
TEST(rows_are_not_read_before_those_of_rank_0_are_there) {
    fixture->awaits_values = true;
    open_with_table(fixture, true);
    look_up_row(fixture, 0, 7);
    send_row(fixture, CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS, 1, 7);
    server_fixture_handle_one(fixture);
    server_flush(fixture->server);
    link_fixture_expect_nothing(fixture->trainers[0]);
    for (int i = 0; i < 2; i++) {
        send_row(fixture, CAPSTAN__DATA_HEADER__KIND__ASSIGN_ROWS, 0, 7);
        server_fixture_handle_one(fixture);
    }
    server_fixture_expect(fixture, fixture->trainers[0],
                          CAPSTAN__DATA_HEADER__KIND__ACK, NULL);
    expect_row(fixture, 1);
    server_flush(fixture->server);
    server_fixture_expect(fixture, fixture->trainers[0],
                          CAPSTAN__DATA_HEADER__KIND__ACK, NULL);
    send_row(fixture, CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS, 1, 7);
    send_row(fixture, CAPSTAN__DATA_HEADER__KIND__ASSIGN_ROWS, 2, 7);
    for (int i = 0; i < 2; i++)
        server_fixture_handle_one(fixture);
    server_fixture_expect(fixture, fixture->trainers[0],
                          CAPSTAN__DATA_HEADER__KIND__REFUSED,
                          "after the first push");
    look_up_row(fixture, 1, 7);
    server_fixture_expect(fixture, fixture->trainers[0],
                          CAPSTAN__DATA_HEADER__KIND__ACK, NULL);
    expect_row(fixture, 0);
}

/* A push that sets a row to 5 and has a gradient of 1 for it. PARTS of it are
 * as they should be, or one of them is cut short by a byte. */
enum { GRADIENTS, ASSIGNED, WHOLE };

static void send_write(struct server_fixture *fixture, uint64_t clock,
                       int part) {
    uint64_t row = 7;
    uint16_t table = 0;
    struct row_keys keys = {.count = 1, .ids = &row, .tables = &table};
    unsigned char bytes[128];
    const float floats[] = {1, 5};
    uint32_t partition = fixture->layout->num_blocks, sizes[2], at = 0;
    for (int i = 0; i < 2; i++) {
        size_t list = row_keys_write(fixture->layout, &keys, bytes + at);
        memcpy(bytes + at + list, &floats[i], sizeof *floats);
        sizes[i] = (uint32_t)(list + sizeof *floats) - (part == i);
        at += sizes[i];
    }
    Capstan__DataHeader header =
        server_fixture_header(fixture, CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS, 0,
                              clock, &partition, 1);
    header.n_sizes = header.n_assigned = 1;
    header.sizes = &sizes[GRADIENTS];
    header.assigned = &sizes[ASSIGNED];
    server_fixture_send(fixture, fixture->trainers[0], &header, bytes, at);
    server_fixture_handle_one(fixture);
    server_flush(fixture->server);
}

TEST(a_push_sets_rows_once_before_its_gradients) {
    open_with_rows(fixture);
    for (int part = GRADIENTS; part <= ASSIGNED; part++) {
        send_write(fixture, 1, part);
        server_fixture_expect(fixture, fixture->trainers[0],
                              CAPSTAN__DATA_HEADER__KIND__REFUSED, "damaged");
    }
    for (int i = 0; i < 2; i++) {
        send_write(fixture, 1, WHOLE);
        server_fixture_expect(fixture, fixture->trainers[0],
                              CAPSTAN__DATA_HEADER__KIND__ACK, NULL);
    }
    look_up_row(fixture, 1, 7);
    expect_row(fixture, 4);
}

/* There is one row: at place 0. */
TEST(rows_are_listed_by_their_places) {
    open_with_rows(fixture);
    send_row(fixture, CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS, 1, 7);
    server_fixture_handle_one(fixture);
    server_flush(fixture->server);
    server_fixture_expect(fixture, fixture->trainers[0],
                          CAPSTAN__DATA_HEADER__KIND__ACK, NULL);
    uint64_t places[] = {0, 1};
    uint16_t tables[] = {0, 0};
    struct row_keys keys = {.count = 2, .ids = places, .tables = tables};
    unsigned char bytes[64];
    struct row rows[2];
    struct link_frame frame;
    uint32_t partition = fixture->layout->num_blocks;
    uint32_t size = (uint32_t)row_keys_write(fixture->layout, &keys, bytes);
    Capstan__DataHeader header = server_fixture_header(
        fixture, CAPSTAN__DATA_HEADER__KIND__LOOKUP, 0, 1, &partition, 1);
    header.n_sizes = 1;
    header.sizes = &size;
    header.places = true;
    server_fixture_send(fixture, fixture->trainers[0], &header, bytes, size);
    server_fixture_handle_one(fixture);
    Capstan__DataHeader *reply =
        server_fixture_receive_reply(fixture, fixture->trainers[0], &frame);
    assert_int_equal(reply->kind, CAPSTAN__DATA_HEADER__KIND__ROWS);
    assert_int_equal(frame.payload.size, sizeof rows);
    memcpy(rows, frame.payload.data, sizeof rows);
    link_release(&frame);
    assert_int_equal(rows[0].id, 7);
    assert_int_equal(rows[0].table, 0);
    assert_int_equal(rows[1].table, ROW_NO_TABLE);
}

TEST(an_ack_is_sent_when_the_round_closes) {
    server_fixture_open(fixture, 2);
    push_with_ack(fixture, 0, 1);
    server_fixture_handle_messages(fixture, 1);
    link_fixture_expect_nothing(fixture->trainers[0]);
    server_fixture_push(fixture, 1, 1, all, 3, 1);
    server_fixture_handle_messages(fixture, 1);
    expect_ack(fixture, 0, 1);
    const float weights[] = {-1, -1.5f, -2.5f};
    server_fixture_expect_weights(fixture, 1, 1, weights, 3);
}

SERVER_THREADS(an_ack_is_sent_when_the_round_closes);

TEST(a_query_may_request_an_ack) {
    server_fixture_open(fixture, 1);
    push_with_ack(fixture, 0, 1);
    server_fixture_handle_messages(fixture, 1);
    expect_ack(fixture, 0, 1);
    Capstan__DataHeader header =
        server_fixture_header(fixture, QUERY, 0, 1, all, 3);
    header.ack_only = true;
    server_fixture_send(fixture, fixture->trainers[0], &header, NULL, 0);
    server_fixture_handle_messages(fixture, 1);
    server_fixture_expect(fixture, fixture->trainers[0],
                          CAPSTAN__DATA_HEADER__KIND__MISSING, NULL);
    expect_ack(fixture, 0, 1);
}

SERVER_THREADS(a_query_may_request_an_ack);

TEST(a_new_incarnation_that_restarts_its_clock_gets_its_weights) {
    fixture->job.staleness = JOB_STALENESS_INF;
    server_fixture_open(fixture, 1);
    push_with_ack(fixture, 0, 1);
    server_fixture_handle_messages(fixture, 1);
    expect_ack(fixture, 0, 1);
    fixture->slots[0].incarnation = SERVER_FIXTURE_TRAINER + 1;
    update_core_set_view(server_update_core(fixture->server), 2,
                         fixture->slots);
    assert_ok(server_run_actions(fixture->server, &failure));
    assert_ok(server_drain(fixture->server, &failure));
    Capstan__DataHeader header =
        server_fixture_header(fixture, PULL, 0, 0, all, 3);
    header.incarnation = SERVER_FIXTURE_TRAINER + 1;
    header.seq = 1;
    server_fixture_send(fixture, fixture->trainers[0], &header, NULL, 0);
    server_fixture_handle_messages(fixture, 1);
    const float weights[] = {-1, -1, -1};
    server_fixture_expect_weights(fixture, 0, 0, weights, 3);
}

SERVER_THREADS(a_new_incarnation_that_restarts_its_clock_gets_its_weights);

/* A header's length moves the payload behind it in libzmq's buffer. */
TEST(a_push_is_applied_at_any_alignment) {
    char text[65] = {0};
    fixture->job.staleness = JOB_STALENESS_INF;
    server_fixture_open(fixture, 1);
    for (uint64_t clock = 1; clock <= 64; clock++) {
        float ones[16];
        char payload[sizeof ones];
        uint32_t id = 1;
        for (uint32_t i = 0; i < fixture->elements[id]; i++)
            ones[i] = 1;
        text[clock - 1] = 'x';
        Capstan__DataHeader header =
            server_fixture_header(fixture, PUSH, 0, clock, &id, 1);
        header.text = text;
        size_t count = fixture->elements[id];
        encoding_write(NULL, fixture->job.wire, ones, count, payload);
        server_fixture_send(fixture, fixture->trainers[0], &header, payload,
                            encoding_bytes(fixture->job.wire, count));
        server_fixture_handle_messages(fixture, 1);
        const float expected = -(float)clock;
        server_fixture_expect_weights(fixture, 0, clock, &expected, 1);
    }
}

SERVER_BF16(a_push_is_applied_at_any_alignment);
SERVER_THREADS(a_push_is_applied_at_any_alignment);

TEST(an_invalid_push_is_refused_and_not_applied) {
    server_fixture_open(fixture, 1);
    static uint32_t unknown[] = {0, 4}, others[] = {2}, twice[] = {1, 1},
                    back[] = {3, 0};
    float floats[SERVER_FIXTURE_MAX_FLOATS] = {0};
    const struct {
        uint32_t *ids;
        size_t count, bytes;
        Capstan__DataHeader__Kind kind;
        uint64_t run, incarnation, rank, clock, snapshot;
        const char *text;
    } cases[] = {
        {all, 3, 95, PUSH, 0, 0, 0, 1, 0, "size of its blocks"},
        {all, 3, 0, PUSH, 0, 0, 0, 1, 0, "size of its blocks"},
        {all, 3, 4 * 64, PUSH, 0, 0, 0, 1, 0, "size of its blocks"},
        {all, 3, 4, PULL, 0, 0, 0, 1, 0, "size of its blocks"},
        {unknown, 2, 0, PULL, 0, 0, 0, 1, 0, "not on this ps"},
        {others, 1, 0, PULL, 0, 0, 0, 1, 0, "not on this ps"},
        {twice, 2, 0, QUERY, 0, 0, 0, 1, 0, "order"},
        {back, 2, 0, PULL, 0, 0, 0, 1, 0, "order"},
        {all, 3, 0, PULL, 1, 0, 0, 1, 0, "another run"},
        {all, 3, 0, PULL, 0, 1, 0, 1, 0, "not in this ps's view"},
        {all, 3, 0, PULL, 0, 0, 1, 1, 0, "not in this ps's view"},
        {all, 3, 0, PULL, 0, 0, UINT32_MAX, 1, 0, "not in this ps's view"},
        {all, 3, 0, PULL, 0, 0, 0, 1, 77, "not held"},
        {all, 0, 0, CAPSTAN__DATA_HEADER__KIND__LOOKUP, 0, 0, 0, 1, 0,
         "rows without"},
        {all, 0, 0, CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS, 0, 0, 0, 1, 0,
         "rows without"},
        {all, 3, 0, CAPSTAN__DATA_HEADER__KIND__WEIGHTS, 0, 0, 0, 1, 0,
         "message kind"},
        {all, 3, 0, CAPSTAN__DATA_HEADER__KIND__REFUSED, 0, 0, 0, 1, 0,
         "message kind"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Capstan__DataHeader header =
            server_fixture_header(fixture, cases[i].kind, 0, cases[i].clock,
                                  cases[i].ids, cases[i].count);
        header.run += cases[i].run;
        header.incarnation += cases[i].incarnation;
        header.rank = (uint32_t)cases[i].rank;
        header.snapshot = cases[i].snapshot;
        server_fixture_send(fixture, fixture->trainers[0], &header, floats,
                            cases[i].bytes);
        server_fixture_handle_messages(fixture, 1);
        server_fixture_expect(fixture, fixture->trainers[0],
                              CAPSTAN__DATA_HEADER__KIND__REFUSED,
                              cases[i].text);
    }
    server_fixture_push(fixture, 0, 7, all, 3, 1);
    server_fixture_handle_messages(fixture, 1);
    server_fixture_expect(fixture, fixture->trainers[0],
                          CAPSTAN__DATA_HEADER__KIND__REFUSED,
                          "clock is out of order");
    for (uint32_t b = 0; b < SERVER_FIXTURE_OWN_BLOCKS; b++)
        assert_int_equal(
            update_core_version(server_update_core(fixture->server), b), 0);
}

SERVER_THREADS(an_invalid_push_is_refused_and_not_applied);

/* MESSAGE, else in order, comes with ENCODING and is refused. */
static void expect_refused(struct server_fixture *fixture,
                           Capstan__DataHeader message,
                           Capstan__DataHeader__Encoding encoding,
                           size_t bytes) {
    static const char payload[SERVER_FIXTURE_MAX_FLOATS * sizeof(float)];
    message.encoding = encoding;
    server_fixture_send(fixture, fixture->trainers[0], &message, payload,
                        bytes);
    server_fixture_handle_messages(fixture, 1);
    server_fixture_expect(fixture, fixture->trainers[0],
                          CAPSTAN__DATA_HEADER__KIND__REFUSED, "encoding");
}

TEST(another_encoding_is_refused) {
    enum job_wire mine = fixture->job.wire;
    enum job_wire other =
        mine == JOB_WIRE_BF16 ? JOB_WIRE_FLOAT32 : JOB_WIRE_BF16;
    const Capstan__DataHeader__Kind kinds[] = {PUSH, PULL, QUERY};
    server_fixture_open(fixture, 1);
    for (int i = 0; i < 3; i++) {
        Capstan__DataHeader message =
            server_fixture_header(fixture, kinds[i], 0, 1, all, 1);
        size_t floats = kinds[i] == PUSH ? fixture->elements[0] : 0;
        expect_refused(fixture, message, encoding_name(other),
                       encoding_bytes(other, floats));
        expect_refused(fixture, message, encoding_name(other),
                       encoding_bytes(mine, floats));
        if (kinds[i] != PUSH)
            expect_refused(fixture, message,
                           CAPSTAN__DATA_HEADER__ENCODING__EMPTY, 0);
    }
    Capstan__DataHeader snapshot =
        server_fixture_header(fixture, PULL, 0, 1, all, 1);
    snapshot.snapshot = 1;
    expect_refused(fixture, snapshot, CAPSTAN__DATA_HEADER__ENCODING__BF16, 0);
    assert_int_equal(
        update_core_version(server_update_core(fixture->server), 0), 0);
}

SERVER_BF16(another_encoding_is_refused);
SERVER_THREADS(another_encoding_is_refused);

TEST(a_snapshot_is_read_in_float32) {
    fixture->job.staleness = JOB_STALENESS_INF;
    server_fixture_open(fixture, 1);
    struct shard *shard = server_shard(fixture->server);
    const float exact[] = {1 + 0x1p-20f, 2, 3, 4, 5};
    uint32_t id = 0;
    assert_int_equal(shard_block_bytes(shard, 0), sizeof exact);
    shard_assign(shard, 0, exact);
    struct snapshots *snapshots =
        shard_snapshot_open(shard, fixture->layout, fixture->ids);
    server_set_snapshots(fixture->server, snapshots);
    shard_snapshot_take(snapshots, 5, shard);
    Capstan__DataHeader header =
        server_fixture_header(fixture, PULL, 0, 0, &id, 1);
    header.snapshot = 5;
    header.encoding = CAPSTAN__DATA_HEADER__ENCODING__FLOAT32;
    server_fixture_send(fixture, fixture->trainers[0], &header, NULL, 0);
    server_fixture_handle_messages(fixture, 1);
    struct link_frame frame;
    Capstan__DataHeader *reply =
        server_fixture_receive_reply(fixture, fixture->trainers[0], &frame);
    assert_int_equal(reply->encoding, CAPSTAN__DATA_HEADER__ENCODING__FLOAT32);
    assert_int_equal(frame.payload.size, sizeof exact);
    assert_memory_equal(frame.payload.data, exact, sizeof exact);
    link_release(&frame);
    server_set_snapshots(fixture->server, NULL);
    snapshots_close(&snapshots);
}

SERVER_BF16(a_snapshot_is_read_in_float32);
SERVER_THREADS(a_snapshot_is_read_in_float32);

/* A read of the state leaves nothing at the ps, so a query for it, after its
 * answer was lost, has it sent again. */
TEST(the_state_is_read_in_float32) {
    fixture->job.optimizer.momentum = 0.5;
    server_fixture_open(fixture, 1);
    server_fixture_push(fixture, 0, 1, all, 1, 1);
    server_fixture_push(fixture, 0, 2, all, 1, 2 + 0x1p-6f);
    server_fixture_handle_messages(fixture, 2);
    const float weights[] = {-1, -3.5f - 0x1p-6f};
    server_fixture_expect_weights(fixture, 0, 1, weights, 1);
    server_fixture_expect_weights(fixture, 0, 2, weights + 1, 1);
    Capstan__DataHeader header =
        server_fixture_header(fixture, PULL, 0, 2, all, 1);
    header.encoding = CAPSTAN__DATA_HEADER__ENCODING__FLOAT32;
    header.tensor = 1;
    server_fixture_send(fixture, fixture->trainers[0], &header, NULL, 0);
    server_fixture_handle_messages(fixture, 1);
    struct link_frame frame;
    Capstan__DataHeader *reply =
        server_fixture_receive_reply(fixture, fixture->trainers[0], &frame);
    assert_int_equal(reply->tensor, 1);
    assert_int_equal(frame.payload.size, fixture->elements[0] * sizeof(float));
    assert_float_equal(*(const float *)frame.payload.data, 2.5 + 0x1p-6, 0);
    link_release(&frame);
    header.kind = QUERY;
    server_fixture_send(fixture, fixture->trainers[0], &header, NULL, 0);
    server_fixture_handle_messages(fixture, 1);
    reply = server_fixture_receive_reply(fixture, fixture->trainers[0], &frame);
    assert_int_equal(reply->kind, CAPSTAN__DATA_HEADER__KIND__MISSING);
    assert_int_equal(reply->n_blocks, 1);
    link_release(&frame);
    header.kind = PULL;
    header.tensor = 2;
    server_fixture_send(fixture, fixture->trainers[0], &header, NULL, 0);
    server_fixture_handle_messages(fixture, 1);
    server_fixture_expect(fixture, fixture->trainers[0],
                          CAPSTAN__DATA_HEADER__KIND__REFUSED, "does not have");
}

SERVER_BF16(the_state_is_read_in_float32);
SERVER_THREADS(the_state_is_read_in_float32);

TEST(a_message_without_blocks_changes_nothing) {
    server_fixture_open(fixture, 1);
    Capstan__DataHeader header =
        server_fixture_header(fixture, PUSH, 0, 1, NULL, 0);
    server_fixture_send(fixture, fixture->trainers[0], &header, NULL, 0);
    server_fixture_handle_messages(fixture, 1);
    link_fixture_expect_nothing(fixture->trainers[0]);
}

SERVER_THREADS(a_message_without_blocks_changes_nothing);

TEST(a_query_is_answered_with_the_missing_blocks) {
    uint32_t first[] = {1};
    server_fixture_open(fixture, 2);
    server_fixture_push(fixture, 0, 1, first, 1, 5);
    Capstan__DataHeader header =
        server_fixture_header(fixture, QUERY, 0, 1, all, 3);
    server_fixture_send(fixture, fixture->trainers[0], &header, NULL, 0);
    server_fixture_handle_messages(fixture, 2);
    struct link_frame frame;
    Capstan__DataHeader *reply =
        server_fixture_receive_reply(fixture, fixture->trainers[0], &frame);
    assert_int_equal(reply->kind, CAPSTAN__DATA_HEADER__KIND__MISSING);
    assert_int_equal(reply->seq, header.seq);
    assert_int_equal(reply->n_blocks, 2);
    assert_int_equal(reply->blocks[0], 0);
    assert_int_equal(reply->blocks[1], 3);
    link_release(&frame);
}

SERVER_THREADS(a_query_is_answered_with_the_missing_blocks);

TEST(a_reply_goes_to_the_newest_connection) {
    uint32_t id = 0;
    server_fixture_open(fixture, 2);
    server_fixture_push(fixture, 0, 1, &id, 1, 1);
    server_fixture_handle_messages(fixture, 1);
    link_close(&fixture->trainers[0]);
    fixture->trainers[0] = link_fixture_client(fixture->wire);
    Capstan__DataHeader header =
        server_fixture_header(fixture, QUERY, 0, 1, &id, 1);
    server_fixture_send(fixture, fixture->trainers[0], &header, NULL, 0);
    server_fixture_handle_messages(fixture, 1);
    struct link_frame frame;
    Capstan__DataHeader *word =
        server_fixture_receive_reply(fixture, fixture->trainers[0], &frame);
    assert_int_equal(word->kind, CAPSTAN__DATA_HEADER__KIND__MISSING);
    assert_int_equal(word->n_blocks, 0); /* it is here, and waits */
    link_release(&frame);
    server_fixture_push(fixture, 1, 1, &id, 1, 1);
    server_fixture_handle_messages(fixture, 1);
    const float weight = -1;
    server_fixture_expect_weights(fixture, 0, 1, &weight, 1);
}

SERVER_BF16(a_reply_goes_to_the_newest_connection);
SERVER_THREADS(a_reply_goes_to_the_newest_connection);
