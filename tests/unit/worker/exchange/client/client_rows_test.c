/* SPDX-License-Identifier: Apache-2.0 */
/* A client that reads and pushes rows of a table, and a ps of the test: what is
 * asked, what is sent again, and which answers count. */
#define STATE struct rows_fixture *fixture

#include "worker/exchange/client/client.h"

#include "core/base/time.h"
#include "tests/lib/client_fixture.h"
#include "tests/lib/test.h"

#include <pthread.h>
#include <stdatomic.h>

enum { PARTITIONS = 2, DIM = 2, IDS = 16 };

struct rows_fixture {
    struct client_fixture *client;
    uint16_t unit_ps[SERVER_FIXTURE_BLOCKS + PARTITIONS];
    struct row_batch_index *index;
    struct row_batch rows;
    atomic_int third; /* see push_third */
};

static int setup(void **state) {
    struct rows_fixture *fixture = calloc(1, sizeof *fixture);
    struct table table = {.name = "t", .dim = DIM};
    uint64_t ids[IDS];
    void *client;
    client_fixture_setup(&client);
    fixture->client = client;
    struct layout *layout = fixture->client->server->layout;
    assert_ok(layout_add_tables(layout, &table, 1, PARTITIONS, &failure));
    fixture->client->plan.block_ps = fixture->unit_ps;
    for (uint64_t i = 0; i < IDS; i++)
        ids[i] = i;
    assert_ok(row_batch_index_open(&fixture->index, layout, &failure));
    assert_ok(row_batch_open(&fixture->rows, fixture->index, &failure));
    row_batch_begin(&fixture->rows);
    assert_ok(row_batch_add(&fixture->rows, 0, ids, IDS, &failure));
    assert_ok(row_batch_finish(&fixture->rows, &failure));
    assert_true(fixture->rows.parts[0].bytes && fixture->rows.parts[1].bytes);
    memset(fixture->rows.weights, 0, IDS * DIM * sizeof(float));
    for (int f = 0; f < IDS * DIM; f++)
        fixture->rows.gradients[f] = (float)f;
    client_fixture_open(fixture->client, 0);
    *state = fixture;
    return 0;
}

TEARDOWN(teardown) {
    void *client = fixture->client;
    /* The client and its links look at the layout until they are closed. */
    client_close(&fixture->client->client);
    row_batch_close(&fixture->rows);
    row_batch_index_close(&fixture->index);
    client_fixture_teardown(&client);
    free(fixture);
}

FIXTURE(setup, teardown);

/* The client's next message, of KIND with CLOCK; the caller releases FRAME. */
static Capstan__DataHeader *receive(struct rows_fixture *fixture,
                                    struct link_frame *frame,
                                    Capstan__DataHeader__Kind kind,
                                    uint64_t clock) {
    Capstan__DataHeader *header =
        client_fixture_view_request(fixture->client, frame);
    assert_int_equal(header->kind, kind);
    assert_int_equal(header->clock, clock);
    return header;
}

/* Both partitions, whose sizes SIZES are PAYLOAD bytes. */
static void check_parts(const struct rows_fixture *fixture,
                        const Capstan__DataHeader *header, size_t payload) {
    size_t bytes = 0;
    assert_int_equal(header->n_blocks, PARTITIONS);
    assert_int_equal(header->n_sizes, PARTITIONS);
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        assert_int_equal(header->blocks[p], SERVER_FIXTURE_BLOCKS + p);
        bytes += header->sizes[p];
    }
    assert_int_equal(bytes, payload);
    (void)fixture;
}

/* A LOOKUP of CLOCK with the lists of all rows; its SEQ, and its sender. */
static uint64_t receive_lookup(struct rows_fixture *fixture, uint64_t clock,
                               uint32_t *peer) {
    struct link_frame frame;
    Capstan__DataHeader *header =
        receive(fixture, &frame, CAPSTAN__DATA_HEADER__KIND__LOOKUP, clock);
    const char *at = frame.payload.data;
    check_parts(fixture, header, frame.payload.size);
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        const struct row_batch_part *part = &fixture->rows.parts[p];
        assert_int_equal(header->sizes[p], part->bytes);
        assert_memory_equal(at, fixture->rows.bytes + part->first_byte,
                            part->bytes);
        at += part->bytes;
    }
    *peer = frame.peer;
    uint64_t seq = header->seq;
    link_release(&frame);
    return seq;
}

static void send_reply(struct rows_fixture *fixture, uint32_t peer,
                       Capstan__DataHeader *header, const void *payload,
                       size_t bytes) {
    static unsigned char space[MESSAGE_MAX_HEADER];
    struct link *link = fixture->client->server->wire->server_link;
    struct link_payload message;
    header->run = SERVER_FIXTURE_RUN;
    header->incarnation = SERVER_FIXTURE_PS;
    assert_true(link_reserve(link, peer, &message, bytes));
    if (bytes)
        memcpy(link_reserved(&message), payload, bytes);
    size_t size = message_write_data(header, space);
    assert_true(link_commit(link, peer, space, size, &message));
}

/* An answer as a ps gives it to the lookup with SEQ: all floats are VALUE. */
struct answer {
    uint64_t seq, clock, snapshot;
    float value;
    int more;       /* bytes that the second partition has too many */
    uint32_t first; /* partition in the place of the first */
};

static void send_rows(struct rows_fixture *fixture, uint32_t peer,
                      struct answer answer) {
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    uint32_t blocks[] = {SERVER_FIXTURE_BLOCKS + answer.first,
                         SERVER_FIXTURE_BLOCKS + 1};
    uint32_t sizes[PARTITIONS];
    float floats[IDS * DIM + 1];
    size_t bytes = 0;
    for (int f = 0; f <= IDS * DIM; f++)
        floats[f] = answer.value;
    for (uint32_t p = 0; p < PARTITIONS; p++)
        sizes[p] = fixture->rows.parts[p].floats * (uint32_t)sizeof(float);
    sizes[1] += (uint32_t)answer.more;
    for (uint32_t p = 0; p < PARTITIONS; p++)
        bytes += sizes[p];
    header.kind = CAPSTAN__DATA_HEADER__KIND__ROWS;
    header.seq = answer.seq;
    header.clock = answer.clock;
    header.snapshot = answer.snapshot;
    header.n_blocks = header.n_sizes = PARTITIONS;
    header.blocks = blocks;
    header.sizes = sizes;
    send_reply(fixture, peer, &header, floats, bytes);
}

/* The client takes what comes until its rows are here; none is there in the
 * meantime that is not VALUE. */
static void await_rows(struct rows_fixture *fixture, float before,
                       float value) {
    struct client_fixture *client = fixture->client;
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    while (!client->exchange->wait_rows(client->exchange, time_now())) {
        assert_true(time_now() < deadline);
        for (int f = 0; f < IDS * DIM; f++)
            assert_true(fixture->rows.weights[f] == before ||
                        fixture->rows.weights[f] == value);
        assert_ok(client_step(client->client, client->now, &failure));
        client_fixture_poll(client);
    }
    for (int f = 0; f < IDS * DIM; f++)
        assert_true(fixture->rows.weights[f] == value);
}

TEST(a_lookup_is_answered_by_the_rows_it_lists) {
    uint32_t peer;
    fixture->client->exchange->lookup(fixture->client->exchange, 3, false, 0,
                                      &fixture->rows);
    uint64_t seq = receive_lookup(fixture, 3, &peer);
    assert_false(fixture->client->exchange->wait_rows(fixture->client->exchange,
                                                      time_now()));
    send_rows(fixture, peer,
              (struct answer){.seq = seq, .clock = 3, .value = 5});
    await_rows(fixture, 0, 5);
}

TEST(rows_of_other_sizes_clocks_or_snapshots_are_left) {
    uint32_t peer;
    fixture->client->exchange->lookup(fixture->client->exchange, 3, false, 9,
                                      &fixture->rows);
    uint64_t seq = receive_lookup(fixture, 3, &peer);
    struct answer sound = {.seq = seq, .clock = 3, .snapshot = 9, .value = 5};
    struct answer wrong = sound;
    wrong.value = 99;
    wrong.more = 4;
    send_rows(fixture, peer, wrong);
    wrong.more = -4;
    send_rows(fixture, peer, wrong);
    wrong.more = 0;
    wrong.clock = 2;
    send_rows(fixture, peer, wrong);
    wrong.clock = 3;
    wrong.snapshot = 0;
    send_rows(fixture, peer, wrong);
    wrong.snapshot = 9;
    wrong.first = 77;
    send_rows(fixture, peer, wrong);
    send_rows(fixture, peer, sound);
    await_rows(fixture, 0, 5);
}

TEST(a_lookup_is_sent_again_after_a_second_of_silence) {
    uint32_t peer;
    fixture->client->exchange->lookup(fixture->client->exchange, 3, false, 0,
                                      &fixture->rows);
    uint64_t first = receive_lookup(fixture, 3, &peer);
    fixture->client->now += TIME_S + TIME_MS;
    uint64_t second = receive_lookup(fixture, 3, &peer);
    assert_true(second > first);
    send_rows(fixture, peer,
              (struct answer){.seq = first, .clock = 3, .value = 5});
    await_rows(fixture, 0, 5);
}

/* An evaluation reads batch after batch with one clock and one snapshot. The
 * ps has answered the first batch's lookup twice, as it was sent twice. */
TEST(an_answer_to_an_earlier_lookup_is_not_stored) {
    struct answer answer = {.clock = 3, .snapshot = 9, .value = 5};
    uint32_t peer;
    fixture->client->exchange->lookup(fixture->client->exchange, 3, false, 9,
                                      &fixture->rows);
    answer.seq = receive_lookup(fixture, 3, &peer);
    fixture->client->now += TIME_S + TIME_MS;
    uint64_t again = receive_lookup(fixture, 3, &peer);
    send_rows(fixture, peer, answer);
    await_rows(fixture, 0, 5);
    fixture->client->exchange->lookup(fixture->client->exchange, 3, false, 9,
                                      &fixture->rows);
    uint64_t next = receive_lookup(fixture, 3, &peer);
    answer.seq = again;
    answer.value = 99;
    send_rows(fixture, peer, answer);
    answer.seq = next;
    answer.value = 6;
    send_rows(fixture, peer, answer);
    await_rows(fixture, 5, 6);
}

/* The caller's wait had a limit. */
TEST(a_lookup_leaves_when_the_one_before_is_answered) {
    struct client_fixture *client = fixture->client;
    struct exchange *exchange = client->exchange;
    uint32_t peer;
    exchange->lookup(exchange, 3, false, 0, &fixture->rows);
    uint64_t seq = receive_lookup(fixture, 3, &peer);
    assert_false(exchange->wait_rows(exchange, time_now()));
    exchange->lookup(exchange, 4, false, 0, &fixture->rows);
    assert_ok(client_step(client->client, client->now, &failure));
    send_rows(fixture, peer,
              (struct answer){.seq = seq, .clock = 3, .value = 5});
    seq = receive_lookup(fixture, 4, &peer);
    assert_false(exchange->wait_rows(exchange, time_now()));
    send_rows(fixture, peer,
              (struct answer){.seq = seq, .clock = 4, .value = 6});
    await_rows(fixture, 5, 6);
    client->now += CLIENT_STEP_TIMEOUT * TIME_S + TIME_S;
    assert_int_equal(client_silent(client->client).until, TIME_NEVER);
}

/* The batch is the caller's again once its rows are here: it may be freed. */
TEST(rows_that_come_again_are_left) {
    struct exchange *exchange = fixture->client->exchange;
    uint32_t peer;
    exchange->lookup(exchange, 3, false, 0, &fixture->rows);
    struct answer answer = {
        .seq = receive_lookup(fixture, 3, &peer), .clock = 3, .value = 5};
    send_rows(fixture, peer, answer);
    await_rows(fixture, 0, 5);
    struct row_batch kept = fixture->rows;
    send_rows(fixture, peer, answer);
    memset(&fixture->rows, 0, sizeof fixture->rows);
    for (int turn = 0; turn < 10; turn++) {
        client_fixture_poll(fixture->client);
        assert_ok(client_step(fixture->client->client, fixture->client->now,
                              &failure));
    }
    fixture->rows = kept;
    assert_true(exchange->wait_rows(exchange, time_now()));
}

/* FRAME has, of SIZES, the lists and gradients of all rows. */
static void check_rows(struct rows_fixture *fixture,
                       const struct link_frame *frame, const uint32_t *sizes) {
    const char *at = frame->payload.data;
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        const struct row_batch_part *part = &fixture->rows.parts[p];
        size_t bytes = part->floats * sizeof(float);
        assert_int_equal(sizes[p], part->bytes + bytes);
        assert_memory_equal(at, fixture->rows.bytes + part->first_byte,
                            part->bytes);
        assert_memory_equal(at + part->bytes,
                            fixture->rows.gradients + part->first_float, bytes);
        at += sizes[p];
    }
    assert_ptr_equal(at,
                     (const char *)frame->payload.data + frame->payload.size);
}

/* A message of KIND with all rows, of CLOCK; its sender. */
static uint32_t receive_rows(struct rows_fixture *fixture,
                             Capstan__DataHeader__Kind kind, uint64_t clock) {
    struct link_frame frame;
    Capstan__DataHeader *header = receive(fixture, &frame, kind, clock);
    check_parts(fixture, header, frame.payload.size);
    assert_int_equal(header->encoding, CAPSTAN__DATA_HEADER__ENCODING__FLOAT32);
    assert_int_equal(header->n_assigned, 0);
    check_rows(fixture, &frame, header->sizes);
    uint32_t peer = frame.peer;
    link_release(&frame);
    return peer;
}

static uint32_t receive_push(struct rows_fixture *fixture, uint64_t clock) {
    return receive_rows(fixture, CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS, clock);
}

static void send_partitions(struct rows_fixture *fixture, uint32_t peer,
                            Capstan__DataHeader__Kind kind, uint64_t clock,
                            uint32_t count) {
    uint32_t blocks[] = {SERVER_FIXTURE_BLOCKS, SERVER_FIXTURE_BLOCKS + 1};
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    header.kind = kind;
    header.clock = clock;
    header.n_blocks = count;
    header.blocks = blocks;
    send_reply(fixture, peer, &header, NULL, 0);
}

/* Lets the client take what has been sent to it; is its push taken? */
static bool is_pushed(struct rows_fixture *fixture) {
    client_fixture_poll(fixture->client);
    assert_ok(
        client_step(fixture->client->client, fixture->client->now, &failure));
    return fixture->client->exchange->wait_pushed(fixture->client->exchange,
                                                  time_now());
}

static void expect_pushed(struct rows_fixture *fixture) {
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    while (!is_pushed(fixture))
        assert_true(time_now() < deadline);
}

/* What was sent before is taken within ten turns, mostly. */
static void expect_not_pushed(struct rows_fixture *fixture) {
    for (int turn = 0; turn < 10; turn++)
        assert_false(is_pushed(fixture));
}

TEST(a_push_is_taken_when_each_partition_has_its_receipt) {
    struct exchange *exchange = fixture->client->exchange;
    assert_true(
        exchange->push_rows(exchange, 1, CONTRIBUTION_FULL, &fixture->rows));
    uint32_t peer = receive_push(fixture, 1);
    expect_not_pushed(fixture);
    send_partitions(fixture, peer, CAPSTAN__DATA_HEADER__KIND__ACK, 0, 2);
    expect_not_pushed(fixture);
    send_partitions(fixture, peer, CAPSTAN__DATA_HEADER__KIND__ACK, 1, 1);
    send_partitions(fixture, peer, CAPSTAN__DATA_HEADER__KIND__ACK, 1, 1);
    expect_not_pushed(fixture);
    send_partitions(fixture, peer, CAPSTAN__DATA_HEADER__KIND__ACK, 1, 2);
    expect_pushed(fixture);
}

/* They go with one push, without gradients here, also when it is sent again. */
TEST(rows_that_are_written_go_with_the_next_push) {
    struct exchange *exchange = fixture->client->exchange;
    struct link_frame frame;
    uint32_t peer = 0;
    exchange->write_rows(exchange, &fixture->rows);
    assert_true(exchange->push_rows(exchange, 1, CONTRIBUTION_EMPTY, NULL));
    for (int time = 0; time < 2; time++) {
        Capstan__DataHeader *header =
            receive(fixture, &frame, CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS, 1);
        assert_int_equal(header->encoding,
                         CAPSTAN__DATA_HEADER__ENCODING__EMPTY);
        assert_int_equal(header->n_sizes, 0);
        assert_int_equal(header->n_assigned, PARTITIONS);
        check_rows(fixture, &frame, header->assigned);
        peer = frame.peer;
        link_release(&frame);
        if (!time)
            send_partitions(fixture, peer, CAPSTAN__DATA_HEADER__KIND__MISSING,
                            1, 2);
    }
    assert_true(
        exchange->push_rows(exchange, 2, CONTRIBUTION_FULL, &fixture->rows));
    send_partitions(fixture, peer, CAPSTAN__DATA_HEADER__KIND__ACK, 1, 2);
    receive_push(fixture, 2);
}

TEST(rows_to_begin_with_are_sent_again_until_they_are_taken) {
    struct exchange *exchange = fixture->client->exchange;
    struct link_frame frame;
    exchange->assign(exchange, 0, &fixture->rows);
    receive(fixture, &frame, CAPSTAN__DATA_HEADER__KIND__ASSIGN, 0);
    link_release(&frame);
    for (int time = 0; time < 2; time++) {
        uint32_t peer =
            receive_rows(fixture, CAPSTAN__DATA_HEADER__KIND__ASSIGN_ROWS, 0);
        assert_false(exchange->wait_pushed(exchange, time_now()));
        send_partitions(fixture, peer,
                        time ? CAPSTAN__DATA_HEADER__KIND__ACK
                             : CAPSTAN__DATA_HEADER__KIND__MISSING,
                        0, 2);
    }
    expect_pushed(fixture);
}

/* The number of a third push, once there was room for it. */
static void *push_third(void *argument) {
    struct rows_fixture *fixture = argument;
    bool taken = fixture->client->exchange->push_rows(
        fixture->client->exchange, 3, CONTRIBUTION_FULL, &fixture->rows);
    atomic_store(&fixture->third, taken ? 3 : -1);
    return NULL;
}

TEST(a_third_push_waits_until_the_first_is_taken) {
    struct exchange *exchange = fixture->client->exchange;
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    pthread_t thread;
    assert_true(
        exchange->push_rows(exchange, 1, CONTRIBUTION_FULL, &fixture->rows));
    uint32_t peer = receive_push(fixture, 1);
    assert_true(
        exchange->push_rows(exchange, 2, CONTRIBUTION_FULL, &fixture->rows));
    assert_int_equal(pthread_create(&thread, NULL, push_third, fixture), 0);
    expect_not_pushed(fixture);
    assert_int_equal(atomic_load(&fixture->third), 0);
    send_partitions(fixture, peer, CAPSTAN__DATA_HEADER__KIND__ACK, 1, 2);
    peer = receive_push(fixture, 2);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(atomic_load(&fixture->third), 3);
    send_partitions(fixture, peer, CAPSTAN__DATA_HEADER__KIND__ACK, 2, 2);
    peer = receive_push(fixture, 3);
    send_partitions(fixture, peer, CAPSTAN__DATA_HEADER__KIND__ACK, 3, 2);
    expect_pushed(fixture);
    assert_true(time_now() < deadline);
}

TEST(no_push_waits_after_the_end) {
    struct exchange *exchange = fixture->client->exchange;
    pthread_t thread;
    assert_true(
        exchange->push_rows(exchange, 1, CONTRIBUTION_FULL, &fixture->rows));
    receive_push(fixture, 1);
    assert_true(
        exchange->push_rows(exchange, 2, CONTRIBUTION_FULL, &fixture->rows));
    assert_int_equal(pthread_create(&thread, NULL, push_third, fixture), 0);
    exchange->cancel(exchange);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(atomic_load(&fixture->third), -1);
    assert_false(exchange->wait_pushed(exchange, TIME_NEVER));
}

/* The caller goes on meanwhile, and what is lost of the first is sent again. */
TEST(a_push_leaves_when_the_one_before_is_taken) {
    struct exchange *exchange = fixture->client->exchange;
    struct link_frame frame;
    assert_true(
        exchange->push_rows(exchange, 1, CONTRIBUTION_FULL, &fixture->rows));
    uint32_t peer = receive_push(fixture, 1);
    assert_true(
        exchange->push_rows(exchange, 2, CONTRIBUTION_FULL, &fixture->rows));
    send_partitions(fixture, peer, CAPSTAN__DATA_HEADER__KIND__ACK, 1, 1);
    expect_not_pushed(fixture);
    assert_false(link_view(fixture->client->server->wire->server_link, &frame));
    fixture->client->now += TIME_S + TIME_MS;
    receive(fixture, &frame, CAPSTAN__DATA_HEADER__KIND__QUERY, 1);
    link_release(&frame);
    uint32_t second[] = {SERVER_FIXTURE_BLOCKS + 1};
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    header.kind = CAPSTAN__DATA_HEADER__KIND__ACK;
    header.clock = header.n_blocks = 1;
    header.blocks = second;
    send_reply(fixture, peer, &header, NULL, 0);
    peer = receive_push(fixture, 2);
    expect_not_pushed(fixture);
    send_partitions(fixture, peer, CAPSTAN__DATA_HEADER__KIND__ACK, 2, 2);
    expect_pushed(fixture);
}

/* No trainer keeps the rows of a table. */
TEST(a_partition_is_not_wanted) {
    struct exchange *exchange = fixture->client->exchange;
    assert_true(
        exchange->push_rows(exchange, 1, CONTRIBUTION_FULL, &fixture->rows));
    uint32_t peer = receive_push(fixture, 1);
    send_partitions(fixture, peer, CAPSTAN__DATA_HEADER__KIND__ACK, 1, 2);
    expect_pushed(fixture);
    assert_true(
        exchange->push_rows(exchange, 2, CONTRIBUTION_FULL, &fixture->rows));
    peer = receive_push(fixture, 2);
    send_partitions(fixture, peer, CAPSTAN__DATA_HEADER__KIND__WANTED, 1, 2);
    expect_not_pushed(fixture);
    send_partitions(fixture, peer, CAPSTAN__DATA_HEADER__KIND__ACK, 2, 2);
    expect_pushed(fixture);
    assert_true(
        exchange->push_rows(exchange, 3, CONTRIBUTION_FULL, &fixture->rows));
    receive_push(fixture, 3);
}

/* Nor is a block that such a message names: a ps sends none. */
TEST(a_message_that_wants_a_block_and_a_partition_is_left) {
    struct exchange *exchange = fixture->client->exchange;
    uint32_t mixed[] = {SERVER_FIXTURE_BLOCKS - 1, SERVER_FIXTURE_BLOCKS};
    Capstan__DataHeader wanted = CAPSTAN__DATA_HEADER__INIT;
    struct link_frame frame;
    assert_true(
        exchange->push_rows(exchange, 1, CONTRIBUTION_FULL, &fixture->rows));
    uint32_t peer = receive_push(fixture, 1);
    wanted.kind = CAPSTAN__DATA_HEADER__KIND__WANTED;
    wanted.clock = 1;
    wanted.n_blocks = 2;
    wanted.blocks = mixed;
    send_reply(fixture, peer, &wanted, NULL, 0);
    send_partitions(fixture, peer, CAPSTAN__DATA_HEADER__KIND__ACK, 1, 2);
    expect_pushed(fixture);
    exchange->announce(exchange, 0, 1, 2, CONTRIBUTION_ZERO);
    receive(fixture, &frame, CAPSTAN__DATA_HEADER__KIND__PUSH, 2);
    link_release(&frame);
}

TEST(a_missing_push_is_asked_for_and_sent_again) {
    struct link_frame frame;
    assert_true(fixture->client->exchange->push_rows(
        fixture->client->exchange, 1, CONTRIBUTION_FULL, &fixture->rows));
    uint32_t peer = receive_push(fixture, 1);
    fixture->client->now += TIME_S + TIME_MS;
    Capstan__DataHeader *query =
        receive(fixture, &frame, CAPSTAN__DATA_HEADER__KIND__QUERY, 1);
    assert_int_equal(query->n_blocks, PARTITIONS);
    assert_int_equal(query->blocks[0], SERVER_FIXTURE_BLOCKS);
    assert_int_equal(frame.payload.size, 0);
    link_release(&frame);
    send_partitions(fixture, peer, CAPSTAN__DATA_HEADER__KIND__MISSING, 1, 2);
    peer = receive_push(fixture, 1);
    send_partitions(fixture, peer, CAPSTAN__DATA_HEADER__KIND__ACK, 1, 2);
    expect_pushed(fixture);
}

TEST(a_push_without_rows_has_no_bytes) {
    static const struct {
        enum contribution kind;
        Capstan__DataHeader__Encoding encoding;
    } cases[] = {
        {CONTRIBUTION_ZERO, CAPSTAN__DATA_HEADER__ENCODING__ZERO},
        {CONTRIBUTION_EMPTY, CAPSTAN__DATA_HEADER__ENCODING__EMPTY},
        {CONTRIBUTION_OVERFLOWED, CAPSTAN__DATA_HEADER__ENCODING__OVERFLOW},
    };
    for (uint64_t i = 0; i < 3; i++) {
        struct link_frame frame;
        assert_true(fixture->client->exchange->push_rows(
            fixture->client->exchange, i + 1, cases[i].kind, NULL));
        Capstan__DataHeader *header = receive(
            fixture, &frame, CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS, i + 1);
        assert_int_equal(header->encoding, cases[i].encoding);
        assert_int_equal(header->n_blocks, PARTITIONS);
        assert_int_equal(header->n_sizes, 0);
        assert_int_equal(frame.payload.size, 0);
        uint32_t peer = frame.peer;
        link_release(&frame);
        send_partitions(fixture, peer, CAPSTAN__DATA_HEADER__KIND__ACK, i + 1,
                        2);
        expect_pushed(fixture);
    }
}
