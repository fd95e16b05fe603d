/* SPDX-License-Identifier: Apache-2.0 */
/* What a ps answers to each message: receipts, words of refusal, what it lacks,
 * weights in the encoding that the job asks for, and to whom they go. */
#include "ps/service.h"

#include "proto/tensor/encoding.h"
#include "tests/lib/service_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define PUSH CAPSTAN__DATA_HEADER__KIND__PUSH
#define PULL CAPSTAN__DATA_HEADER__KIND__PULL
#define ASK CAPSTAN__DATA_HEADER__KIND__ASK

static uint32_t all[] = {0, 1, 3};

/* A push of rank RANK's CLOCK to ALL that asks for a receipt. */
static void push_for_receipt(struct service_fixture *fixture, uint32_t rank,
                             uint64_t clock) {
    float floats[SERVICE_MAX_FLOATS];
    size_t count = 0;
    for (int i = 0; i < 3; i++)
        for (uint32_t e = 0; e < fixture->elements[all[i]]; e++)
            floats[count++] = 1;
    Capstan__DataHeader header =
        service_fixture_header(fixture, PUSH, rank, clock, all, 3);
    header.receipt = true;
    service_fixture_send(fixture, fixture->trainers[rank], &header, floats,
                         count * sizeof(float));
}

/* The next answer is a receipt of COUNT blocks, the last of them of CLOCK. */
static Capstan__DataHeader *expect_taken(struct service_fixture *fixture,
                                         uint32_t rank, uint64_t clock,
                                         size_t count) {
    struct link_frame frame;
    Capstan__DataHeader *header =
        service_fixture_answer(fixture, fixture->trainers[rank], &frame);
    assert_int_equal(header->kind, CAPSTAN__DATA_HEADER__KIND__TAKEN);
    assert_int_equal(header->clock, clock);
    assert_int_equal(header->rank, rank);
    assert_int_equal(header->n_blocks, count);
    assert_int_equal(frame.payload.size, 0);
    link_release(&frame);
    return header;
}

static void expect_receipt(struct service_fixture *fixture, uint32_t rank,
                           uint64_t clock) {
    Capstan__DataHeader *header = expect_taken(fixture, rank, clock, 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(header->blocks[i],
                         all[service_fixture_place(header, i)]);
}

static void a_push_for_a_receipt_gets_no_weights(void **state) {
    struct service_fixture *fixture = *state;
    fixture->job.staleness = JOB_STALENESS_INF;
    service_fixture_open(fixture, 1);
    push_for_receipt(fixture, 0, 1);
    push_for_receipt(fixture, 0, 1); /* a copy is not applied again */
    service_fixture_push(fixture, 0, 2, all, 3, 0);
    service_fixture_serve(fixture, 3);
    expect_receipt(fixture, 0, 1);
    expect_receipt(fixture, 0, 1);
    const float weights[] = {-1, -2, -4};
    service_fixture_expect_weights(fixture, 0, 2, weights, 3);
}

static void receipts_of_several_requests_go_together(void **state) {
    struct service_fixture *fixture = *state;
    fixture->job.staleness = JOB_STALENESS_INF;
    service_fixture_open(fixture, 1);
    push_for_receipt(fixture, 0, 1);
    push_for_receipt(fixture, 0, 2);
    service_fixture_handle(fixture);
    service_fixture_handle(fixture);
    wire_fixture_silent(fixture->trainers[0]);
    service_flush(fixture->service);
    Capstan__DataHeader *header = expect_taken(fixture, 0, 2, 6);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(header->blocks[i], all[i % 3]);
}

static void receipts_do_not_wait_behind_weights(void **state) {
    struct service_fixture *fixture = *state;
    fixture->job.staleness = JOB_STALENESS_INF;
    service_fixture_open(fixture, 1);
    push_for_receipt(fixture, 0, 1);
    service_fixture_push(fixture, 0, 2, all, 3, 0);
    service_fixture_handle(fixture);
    service_fixture_handle(fixture);
    expect_receipt(fixture, 0, 1);
    const float weights[] = {-1, -2, -4};
    service_fixture_expect_weights(fixture, 0, 2, weights, 3);
}

static void a_receipt_comes_when_the_round_closes(void **state) {
    struct service_fixture *fixture = *state;
    service_fixture_open(fixture, 2);
    push_for_receipt(fixture, 0, 1);
    service_fixture_serve(fixture, 1);
    wire_fixture_silent(fixture->trainers[0]);
    service_fixture_push(fixture, 1, 1, all, 3, 1);
    service_fixture_serve(fixture, 1);
    expect_receipt(fixture, 0, 1);
    const float weights[] = {-1, -1.5f, -2.5f};
    service_fixture_expect_weights(fixture, 1, 1, weights, 3);
}

static void an_ask_may_want_a_receipt_too(void **state) {
    struct service_fixture *fixture = *state;
    service_fixture_open(fixture, 1);
    push_for_receipt(fixture, 0, 1);
    service_fixture_serve(fixture, 1);
    expect_receipt(fixture, 0, 1);
    Capstan__DataHeader header =
        service_fixture_header(fixture, ASK, 0, 1, all, 3);
    header.receipt = true;
    service_fixture_send(fixture, fixture->trainers[0], &header, NULL, 0);
    service_fixture_serve(fixture, 1);
    service_fixture_expect(fixture, fixture->trainers[0],
                           CAPSTAN__DATA_HEADER__KIND__LACK, NULL);
    expect_receipt(fixture, 0, 1);
}

static void a_new_life_that_counts_anew_gets_its_weights(void **state) {
    struct service_fixture *fixture = *state;
    struct failure why;
    fixture->job.staleness = JOB_STALENESS_INF;
    service_fixture_open(fixture, 1);
    push_for_receipt(fixture, 0, 1);
    service_fixture_serve(fixture, 1);
    expect_receipt(fixture, 0, 1);
    fixture->slots[0].incarnation = SERVICE_TRAINER + 1;
    exchange_view(service_exchange(fixture->service), 2, fixture->slots);
    assert_int_equal(service_settle(fixture->service, &why), STATUS_OK);
    assert_int_equal(service_finish(fixture->service, &why), STATUS_OK);
    Capstan__DataHeader header =
        service_fixture_header(fixture, PULL, 0, 0, all, 3);
    header.incarnation = SERVICE_TRAINER + 1;
    header.seq = 1;
    service_fixture_send(fixture, fixture->trainers[0], &header, NULL, 0);
    service_fixture_serve(fixture, 1);
    const float weights[] = {-1, -1, -1};
    service_fixture_expect_weights(fixture, 0, 0, weights, 3);
}

/* A header's length moves the payload behind it in libzmq's buffer. */
static void a_push_is_applied_whatever_its_alignment(void **state) {
    struct service_fixture *fixture = *state;
    char text[65] = {0};
    fixture->job.staleness = JOB_STALENESS_INF;
    service_fixture_open(fixture, 1);
    for (uint64_t clock = 1; clock <= 64; clock++) {
        float ones[16];
        char payload[sizeof ones];
        uint32_t id = 1;
        for (uint32_t i = 0; i < fixture->elements[id]; i++)
            ones[i] = 1;
        text[clock - 1] = 'x';
        Capstan__DataHeader header =
            service_fixture_header(fixture, PUSH, 0, clock, &id, 1);
        header.text = text;
        size_t count = fixture->elements[id];
        encoding_write(NULL, fixture->job.wire, ones, count, payload);
        service_fixture_send(fixture, fixture->trainers[0], &header, payload,
                             encoding_bytes(fixture->job.wire, count));
        service_fixture_serve(fixture, 1);
        const float expected = -(float)clock;
        service_fixture_expect_weights(fixture, 0, clock, &expected, 1);
    }
}

static void what_is_wrong_is_refused_and_not_applied(void **state) {
    struct service_fixture *fixture = *state;
    service_fixture_open(fixture, 1);
    static uint32_t unknown[] = {0, 4}, others[] = {2}, twice[] = {1, 1},
                    back[] = {3, 0};
    float floats[SERVICE_MAX_FLOATS] = {0};
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
        {unknown, 2, 0, PULL, 0, 0, 0, 1, 0, "not of this ps"},
        {others, 1, 0, PULL, 0, 0, 0, 1, 0, "not of this ps"},
        {twice, 2, 0, ASK, 0, 0, 0, 1, 0, "order"},
        {back, 2, 0, PULL, 0, 0, 0, 1, 0, "order"},
        {all, 3, 0, PULL, 1, 0, 0, 1, 0, "another run"},
        {all, 3, 0, PULL, 0, 1, 0, 1, 0, "not in this ps's view"},
        {all, 3, 0, PULL, 0, 0, 1, 1, 0, "not in this ps's view"},
        {all, 3, 0, PULL, 0, 0, UINT32_MAX, 1, 0, "not in this ps's view"},
        {all, 3, 0, PULL, 0, 0, 0, 1, 77, "not held"},
        {all, 3, 0, CAPSTAN__DATA_HEADER__KIND__WEIGHTS, 0, 0, 0, 1, 0,
         "kind of message"},
        {all, 3, 0, CAPSTAN__DATA_HEADER__KIND__REFUSED, 0, 0, 0, 1, 0,
         "kind of message"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Capstan__DataHeader header =
            service_fixture_header(fixture, cases[i].kind, 0, cases[i].clock,
                                   cases[i].ids, cases[i].count);
        header.run += cases[i].run;
        header.incarnation += cases[i].incarnation;
        header.rank = (uint32_t)cases[i].rank;
        header.snapshot = cases[i].snapshot;
        service_fixture_send(fixture, fixture->trainers[0], &header, floats,
                             cases[i].bytes);
        service_fixture_serve(fixture, 1);
        service_fixture_expect(fixture, fixture->trainers[0],
                               CAPSTAN__DATA_HEADER__KIND__REFUSED,
                               cases[i].text);
    }
    service_fixture_push(fixture, 0, 7, all, 3, 1);
    service_fixture_serve(fixture, 1);
    service_fixture_expect(fixture, fixture->trainers[0],
                           CAPSTAN__DATA_HEADER__KIND__REFUSED,
                           "order of its clock");
    for (uint32_t b = 0; b < SERVICE_MINE; b++)
        assert_int_equal(
            exchange_version(service_exchange(fixture->service), b), 0);
}

/* MESSAGE, else in order, comes with ENCODING and is refused. */
static void expect_refused(struct service_fixture *fixture,
                           Capstan__DataHeader message,
                           Capstan__DataHeader__Encoding encoding,
                           size_t bytes) {
    static const char payload[SERVICE_MAX_FLOATS * sizeof(float)];
    message.encoding = encoding;
    service_fixture_send(fixture, fixture->trainers[0], &message, payload,
                         bytes);
    service_fixture_serve(fixture, 1);
    service_fixture_expect(fixture, fixture->trainers[0],
                           CAPSTAN__DATA_HEADER__KIND__REFUSED, "encoding");
}

static void what_is_in_another_encoding_is_refused(void **state) {
    struct service_fixture *fixture = *state;
    enum job_wire mine = fixture->job.wire;
    enum job_wire other = mine == JOB_BF16 ? JOB_FLOAT32 : JOB_BF16;
    const Capstan__DataHeader__Kind kinds[] = {PUSH, PULL, ASK};
    service_fixture_open(fixture, 1);
    for (int i = 0; i < 3; i++) {
        Capstan__DataHeader message =
            service_fixture_header(fixture, kinds[i], 0, 1, all, 1);
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
        service_fixture_header(fixture, PULL, 0, 1, all, 1);
    snapshot.snapshot = 1;
    expect_refused(fixture, snapshot, CAPSTAN__DATA_HEADER__ENCODING__BF16, 0);
    assert_int_equal(exchange_version(service_exchange(fixture->service), 0),
                     0);
}

static void a_snapshot_is_read_in_float32(void **state) {
    struct service_fixture *fixture = *state;
    struct snapshots *snapshots;
    struct failure why;
    fixture->job.staleness = JOB_STALENESS_INF;
    service_fixture_open(fixture, 1);
    struct shard *shard = service_shard(fixture->service);
    const float exact[] = {1 + 0x1p-20f, 2, 3, 4, 5};
    uint32_t id = 0;
    assert_int_equal(shard_block_bytes(shard, 0), sizeof exact);
    shard_assign(shard, 0, exact);
    assert_int_equal(snapshots_open(&snapshots, shard,
                                    service_exchange(fixture->service), &why),
                     STATUS_OK);
    service_snapshots(fixture->service, snapshots);
    struct snapshot *snapshot = snapshots_begin(snapshots, 5);
    snapshot_keep(snapshot);
    snapshot_add(snapshot, 0, 0);
    Capstan__DataHeader header =
        service_fixture_header(fixture, PULL, 0, 0, &id, 1);
    header.snapshot = 5;
    header.encoding = CAPSTAN__DATA_HEADER__ENCODING__FLOAT32;
    service_fixture_send(fixture, fixture->trainers[0], &header, NULL, 0);
    service_fixture_serve(fixture, 1);
    struct link_frame frame;
    Capstan__DataHeader *answer =
        service_fixture_answer(fixture, fixture->trainers[0], &frame);
    assert_int_equal(answer->encoding, CAPSTAN__DATA_HEADER__ENCODING__FLOAT32);
    assert_int_equal(frame.payload.size, sizeof exact);
    assert_memory_equal(frame.payload.data, exact, sizeof exact);
    link_release(&frame);
    service_snapshots(fixture->service, NULL);
    snapshots_close(&snapshots);
}

static void a_message_of_no_blocks_changes_nothing(void **state) {
    struct service_fixture *fixture = *state;
    service_fixture_open(fixture, 1);
    Capstan__DataHeader header =
        service_fixture_header(fixture, PUSH, 0, 1, NULL, 0);
    service_fixture_send(fixture, fixture->trainers[0], &header, NULL, 0);
    service_fixture_serve(fixture, 1);
    wire_fixture_silent(fixture->trainers[0]);
}

static void an_ask_names_what_is_lacking(void **state) {
    struct service_fixture *fixture = *state;
    uint32_t first[] = {1};
    service_fixture_open(fixture, 2);
    service_fixture_push(fixture, 0, 1, first, 1, 5);
    Capstan__DataHeader header =
        service_fixture_header(fixture, ASK, 0, 1, all, 3);
    service_fixture_send(fixture, fixture->trainers[0], &header, NULL, 0);
    service_fixture_serve(fixture, 2);
    struct link_frame frame;
    Capstan__DataHeader *answer =
        service_fixture_answer(fixture, fixture->trainers[0], &frame);
    assert_int_equal(answer->kind, CAPSTAN__DATA_HEADER__KIND__LACK);
    assert_int_equal(answer->seq, header.seq);
    assert_int_equal(answer->n_blocks, 2);
    assert_int_equal(answer->blocks[0], 0);
    assert_int_equal(answer->blocks[1], 3);
    link_release(&frame);
}

static void an_answer_goes_to_the_newest_connection(void **state) {
    struct service_fixture *fixture = *state;
    uint32_t id = 0;
    service_fixture_open(fixture, 2);
    service_fixture_push(fixture, 0, 1, &id, 1, 1);
    service_fixture_serve(fixture, 1);
    link_close(&fixture->trainers[0]);
    fixture->trainers[0] = wire_fixture_client(fixture->wire);
    Capstan__DataHeader header =
        service_fixture_header(fixture, ASK, 0, 1, &id, 1);
    service_fixture_send(fixture, fixture->trainers[0], &header, NULL, 0);
    service_fixture_serve(fixture, 1);
    struct link_frame frame;
    Capstan__DataHeader *word =
        service_fixture_answer(fixture, fixture->trainers[0], &frame);
    assert_int_equal(word->kind, CAPSTAN__DATA_HEADER__KIND__LACK);
    assert_int_equal(word->n_blocks, 0); /* it is here, and waits */
    link_release(&frame);
    service_fixture_push(fixture, 1, 1, &id, 1, 1);
    service_fixture_serve(fixture, 1);
    const float weight = -1;
    service_fixture_expect_weights(fixture, 0, 1, &weight, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SERVICE_BF16_TEST(a_push_is_applied_whatever_its_alignment),
        SERVICE_BF16_TEST(an_answer_goes_to_the_newest_connection),
        SERVICE_BF16_TEST(what_is_in_another_encoding_is_refused),
        SERVICE_TEST(what_is_in_another_encoding_is_refused),
        SERVICE_BF16_TEST(a_snapshot_is_read_in_float32),
        SERVICE_TEST(a_snapshot_is_read_in_float32),
        SERVICE_TEST(a_push_is_applied_whatever_its_alignment),
        SERVICE_TEST(a_push_for_a_receipt_gets_no_weights),
        SERVICE_TEST(receipts_of_several_requests_go_together),
        SERVICE_TEST(receipts_do_not_wait_behind_weights),
        SERVICE_TEST(a_receipt_comes_when_the_round_closes),
        SERVICE_TEST(an_ask_may_want_a_receipt_too),
        SERVICE_TEST(a_new_life_that_counts_anew_gets_its_weights),
        SERVICE_TEST(what_is_wrong_is_refused_and_not_applied),
        SERVICE_TEST(a_message_of_no_blocks_changes_nothing),
        SERVICE_TEST(an_ask_names_what_is_lacking),
        SERVICE_TEST(an_answer_goes_to_the_newest_connection),
        SERVICE_THREADS_TEST(what_is_in_another_encoding_is_refused),
        SERVICE_THREADS_TEST(a_snapshot_is_read_in_float32),
        SERVICE_THREADS_TEST(a_push_is_applied_whatever_its_alignment),
        SERVICE_THREADS_TEST(a_push_for_a_receipt_gets_no_weights),
        SERVICE_THREADS_TEST(a_receipt_comes_when_the_round_closes),
        SERVICE_THREADS_TEST(an_ask_may_want_a_receipt_too),
        SERVICE_THREADS_TEST(a_new_life_that_counts_anew_gets_its_weights),
        SERVICE_THREADS_TEST(what_is_wrong_is_refused_and_not_applied),
        SERVICE_THREADS_TEST(a_message_of_no_blocks_changes_nothing),
        SERVICE_THREADS_TEST(an_ask_names_what_is_lacking),
        SERVICE_THREADS_TEST(an_answer_goes_to_the_newest_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
