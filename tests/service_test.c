#include "ps/service.h"

#include "proto/base/time.h"
#include "proto/math/encoding.h"
#include "proto/math/schedule.h"
#include "tests/seed.h"
#include "tests/service_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PUSH CAPSTAN__DATA_HEADER__KIND__PUSH
#define PULL CAPSTAN__DATA_HEADER__KIND__PULL
#define ASK CAPSTAN__DATA_HEADER__KIND__ASK

static uint32_t all[] = {0, 1, 3};

/* LINK's next answer is of KIND, with TEXT in its text unless that is NULL. */
static void expect(struct service_fixture *fixture, struct link *link,
                   Capstan__DataHeader__Kind kind, const char *text) {
    struct link_frame frame;
    Capstan__DataHeader *header = service_fixture_answer(fixture, link, &frame);
    assert_int_equal(header->kind, kind);
    if (text && !strstr(header->text, text))
        fail_msg("'%s' is not in: %s", text, header->text);
    link_release(&frame);
}

/* Which of the answer's blocks its block I is in the plan's order: threads
 * finish in any. */
static size_t place_of(const Capstan__DataHeader *header, size_t i) {
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

/* VALUES in the plan's order of the blocks. */
static void expect_weights(struct service_fixture *fixture, uint32_t rank,
                           uint64_t clock, const float *values, size_t count) {
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
                   values[place_of(header, i)]);
    assert_int_equal(bytes - (char *)frame.payload.data, frame.payload.size);
    link_release(&frame);
}

static void a_round_takes_the_mean_and_answers_all(void **state) {
    struct service_fixture *fixture = *state;
    service_fixture_open(fixture, 2);
    service_fixture_push(fixture, 0, 1, all, 3, 2);
    service_fixture_serve(fixture, 1);
    wire_fixture_silent(fixture->trainers[0]);
    service_fixture_push(fixture, 1, 1, all, 3, 4);
    service_fixture_serve(fixture, 1);
    const float means[] = {-3, -4, -6};
    expect_weights(fixture, 0, 1, means, 3);
    expect_weights(fixture, 1, 1, means, 3);
    assert_true(service_update_seconds(fixture->service) > 0);
}

/* Three of one trainer and one of the other: each pushes the sum of its own. */
static void a_rounds_mean_is_that_of_all_replicas(void **state) {
    static const uint32_t replicas[] = {3, 1};
    struct service_fixture *fixture = *state;
    fixture->replicas = replicas;
    service_fixture_open(fixture, 2);
    service_fixture_push(fixture, 0, 1, all, 3, 2);
    service_fixture_push(fixture, 1, 1, all, 3, 4);
    service_fixture_serve(fixture, 2);
    const float means[] = {-1.5f, -2, -3};
    expect_weights(fixture, 0, 1, means, 3);
    expect_weights(fixture, 1, 1, means, 3);
}

/* Of two replicas, and of another trainer's four. */
static void with_staleness_a_push_is_divided_by_its_own_replicas(void **state) {
    static const uint32_t replicas[] = {2, 4};
    struct service_fixture *fixture = *state;
    fixture->replicas = replicas;
    fixture->job.staleness = JOB_STALENESS_INF;
    service_fixture_open(fixture, 2);
    service_fixture_push(fixture, 0, 1, all, 3, 2);
    service_fixture_serve(fixture, 1);
    const float first[] = {-1, -1.5f, -2.5f};
    expect_weights(fixture, 0, 1, first, 3);
    service_fixture_push(fixture, 1, 1, all, 3, 4);
    service_fixture_serve(fixture, 1);
    const float second[] = {-2, -2.75f, -4.25f};
    expect_weights(fixture, 1, 1, second, 3);
}

static void a_contribution_without_bytes_is_not_divided_by(void **state) {
    struct service_fixture *fixture = *state;
    service_fixture_open(fixture, 2);
    Capstan__DataHeader header =
        service_fixture_header(fixture, PUSH, 0, 1, all, 3);
    header.encoding = CAPSTAN__DATA_HEADER__ENCODING__EMPTY;
    service_fixture_send(fixture, fixture->trainers[0], &header, NULL, 0);
    service_fixture_push(fixture, 1, 1, all, 3, 4);
    service_fixture_serve(fixture, 2);
    const float weights[] = {-4, -5, -7};
    expect_weights(fixture, 0, 1, weights, 3);
    expect_weights(fixture, 1, 1, weights, 3);
}

static void push_void(struct service_fixture *fixture, uint32_t rank,
                      uint64_t clock, double at) {
    Capstan__DataHeader header =
        service_fixture_header(fixture, PUSH, rank, clock, all, 3);
    header.encoding = CAPSTAN__DATA_HEADER__ENCODING__VOID;
    header.loss_scale = at;
    service_fixture_send(fixture, fixture->trainers[rank], &header, NULL, 0);
}

/* Answers of RANK's CLOCK: the scale of the next step, and how many were
 * skipped. */
static void expect_scale(struct service_fixture *fixture, uint32_t rank,
                         double scale, uint64_t skipped) {
    struct link_frame frame;
    Capstan__DataHeader *header =
        service_fixture_answer(fixture, fixture->trainers[rank], &frame);
    assert_int_equal(header->kind, CAPSTAN__DATA_HEADER__KIND__WEIGHTS);
    assert_true(header->loss_scale == scale);
    assert_int_equal(header->skipped, skipped);
    link_release(&frame);
}

static void scale_losses(struct service_fixture *fixture) {
    fixture->job.fp16 = (struct job_fp16){.enabled = true,
                                          .initial_scale_power = 8,
                                          .loss_scale_window = 2,
                                          .hysteresis = 1,
                                          .min_loss_scale = 1};
}

static void a_round_with_a_void_push_changes_nothing(void **state) {
    struct service_fixture *fixture = *state;
    scale_losses(fixture);
    service_fixture_open(fixture, 2);
    service_fixture_push(fixture, 0, 1, all, 3, 2);
    push_void(fixture, 1, 1, 256);
    service_fixture_serve(fixture, 2);
    const float zeros[] = {0, 0, 0}, means[] = {-3, -4, -6};
    expect_weights(fixture, 0, 1, zeros, 3);
    expect_weights(fixture, 1, 1, zeros, 3);
    service_fixture_push(fixture, 0, 2, all, 3, 2);
    service_fixture_push(fixture, 1, 2, all, 3, 4);
    service_fixture_serve(fixture, 2);
    expect_weights(fixture, 0, 2, means, 3);
    expect_weights(fixture, 1, 2, means, 3);
}

static void answers_tell_the_scale_of_the_next_step(void **state) {
    struct service_fixture *fixture = *state;
    scale_losses(fixture);
    service_fixture_open(fixture, 2);
    Capstan__DataHeader pull =
        service_fixture_header(fixture, PULL, 0, 0, all, 3);
    service_fixture_send(fixture, fixture->trainers[0], &pull, NULL, 0);
    service_fixture_serve(fixture, 1);
    expect_scale(fixture, 0, 256, 0);
    push_void(fixture, 0, 1, 256);
    push_void(fixture, 1, 1, 256);
    service_fixture_serve(fixture, 2);
    expect_scale(fixture, 0, 128, 1);
    expect_scale(fixture, 1, 128, 1);
    for (uint64_t clock = 2; clock <= 3; clock++) {
        service_fixture_push(fixture, 0, clock, all, 3, 2);
        service_fixture_push(fixture, 1, clock, all, 3, 2);
        service_fixture_serve(fixture, 2);
        expect_scale(fixture, 0, clock == 3 ? 256 : 128, 1);
        expect_scale(fixture, 1, clock == 3 ? 256 : 128, 1);
    }
}

/* Rates by the steps that were applied: the second of them here is the third
 * round. */
static void skipped_steps_are_none_to_the_rule(void **state) {
    struct service_fixture *fixture = *state;
    scale_losses(fixture);
    fixture->job.schedule = (struct schedule){.type = SCHEDULE_WARMUP,
                                              .warmup_linear = true,
                                              .warmup_max_lr = 4,
                                              .warmup_num_steps = 4};
    service_fixture_open(fixture, 1);
    push_void(fixture, 0, 1, 256);
    service_fixture_push(fixture, 0, 2, all, 1, 1);
    service_fixture_serve(fixture, 1);
    expect_scale(fixture, 0, 128, 1);
    service_fixture_serve(fixture, 1);
    const float once[] = {(float)-schedule_rate(&fixture->job.schedule, 1)};
    expect_weights(fixture, 0, 2, once, 1);
    service_fixture_push(fixture, 0, 3, all, 1, 1);
    service_fixture_serve(fixture, 1);
    const float twice[] = {once[0] -
                           (float)schedule_rate(&fixture->job.schedule, 2)};
    expect_weights(fixture, 0, 3, twice, 1);
}

/* The first step that Adam applies is as long as the rate, if it is its
 * first. */
static void skipped_steps_are_none_to_adam(void **state) {
    struct service_fixture *fixture = *state;
    scale_losses(fixture);
    fixture->job.optimizer = (struct optimizer){
        .type = OPTIMIZER_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    service_fixture_open(fixture, 1);
    push_void(fixture, 0, 1, 256);
    service_fixture_push(fixture, 0, 2, all, 1, 3);
    service_fixture_serve(fixture, 2);
    expect_scale(fixture, 0, 128, 1);
    expect_scale(fixture, 0, 128, 1);
    float weight = service_fixture_weight(fixture, 0, 0);
    if (!(fabsf(weight + 1) < 1e-5f))
        fail_msg("%.9g", (double)weight);
}

static void a_void_clipped_round_is_summed_to_nothing(void **state) {
    struct service_fixture *fixture = *state;
    struct failure why;
    scale_losses(fixture);
    fixture->job.gradient_clipping = 1;
    service_fixture_open(fixture, 2);
    service_fixture_push(fixture, 0, 1, all, 3, 2);
    push_void(fixture, 1, 1, 256);
    service_fixture_serve(fixture, 2);
    assert_int_equal(fixture->summed_round, 1);
    for (int i = 0; i < 3; i++)
        assert_true(fixture->sums[i] == 0);
    assert_int_equal(service_norm(fixture->service, 1, 0, &why), STATUS_OK);
    assert_int_equal(service_finish(fixture->service, &why), STATUS_OK);
    const float zeros[] = {0, 0, 0};
    expect_weights(fixture, 0, 1, zeros, 3);
    expect_weights(fixture, 1, 1, zeros, 3);
}

static void a_copy_does_not_replace_what_is_held(void **state) {
    struct service_fixture *fixture = *state;
    service_fixture_open(fixture, 2);
    service_fixture_push(fixture, 0, 1, all, 3, 2);
    service_fixture_push(fixture, 0, 1, all, 3, 100);
    Capstan__DataHeader empty =
        service_fixture_header(fixture, PUSH, 0, 1, all, 3);
    empty.encoding = CAPSTAN__DATA_HEADER__ENCODING__EMPTY;
    service_fixture_send(fixture, fixture->trainers[0], &empty, NULL, 0);
    service_fixture_push(fixture, 1, 1, all, 3, 4);
    service_fixture_serve(fixture, 4);
    const float means[] = {-3, -4, -6};
    expect_weights(fixture, 0, 1, means, 3);
}

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
        assert_int_equal(header->blocks[i], all[place_of(header, i)]);
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
    expect_weights(fixture, 0, 2, weights, 3);
}

/* Lets the service handle one message, as in a ps that has more to do. */
static void handle_one(struct service_fixture *fixture) {
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

static void receipts_of_several_requests_go_together(void **state) {
    struct service_fixture *fixture = *state;
    fixture->job.staleness = JOB_STALENESS_INF;
    service_fixture_open(fixture, 1);
    push_for_receipt(fixture, 0, 1);
    push_for_receipt(fixture, 0, 2);
    handle_one(fixture);
    handle_one(fixture);
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
    handle_one(fixture);
    handle_one(fixture);
    expect_receipt(fixture, 0, 1);
    const float weights[] = {-1, -2, -4};
    expect_weights(fixture, 0, 2, weights, 3);
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
    expect_weights(fixture, 1, 1, weights, 3);
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
    expect(fixture, fixture->trainers[0], CAPSTAN__DATA_HEADER__KIND__LACK,
           NULL);
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
    expect_weights(fixture, 0, 0, weights, 3);
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
        expect_weights(fixture, 0, clock, &expected, 1);
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
        expect(fixture, fixture->trainers[0],
               CAPSTAN__DATA_HEADER__KIND__REFUSED, cases[i].text);
    }
    service_fixture_push(fixture, 0, 7, all, 3, 1);
    service_fixture_serve(fixture, 1);
    expect(fixture, fixture->trainers[0], CAPSTAN__DATA_HEADER__KIND__REFUSED,
           "order of its clock");
    for (uint32_t b = 0; b < SERVICE_MINE; b++)
        assert_int_equal(
            exchange_version(service_exchange(fixture->service), b), 0);
}

static void each_round_brings_all_its_own_weights(void **state) {
    struct service_fixture *fixture = *state;
    service_fixture_open(fixture, 3);
    for (uint64_t clock = 1; clock <= 5; clock++) {
        for (uint32_t r = 0; r < 3; r++)
            service_fixture_push(fixture, r, clock, all, 3, 1);
        service_fixture_serve(fixture, 3);
        float n = (float)clock;
        const float weights[] = {-n, -2 * n, -4 * n};
        for (uint32_t r = 0; r < 3; r++)
            expect_weights(fixture, r, clock, weights, 3);
    }
}

/* Ever more of what is less than half of the last place of a bf16: readers see
 * it when the float32 that the ps holds has come far enough. */
static void weights_are_float32_here_and_bf16_on_the_wire(void **state) {
    struct service_fixture *fixture = *state;
    uint32_t id = 0;
    fixture->job.staleness = JOB_STALENESS_INF;
    service_fixture_open(fixture, 1);
    service_fixture_push(fixture, 0, 1, &id, 1, 1);
    service_fixture_serve(fixture, 1);
    float seen = -1;
    expect_weights(fixture, 0, 1, &seen, 1);
    for (uint64_t clock = 2; clock <= 9; clock++) {
        service_fixture_push(fixture, 0, clock, &id, 1, 0x1p-10f);
        service_fixture_serve(fixture, 1);
        float held = -1 - 0x1p-10f * (float)(clock - 1);
        assert_true(service_fixture_weight(fixture, id, 0) == held);
        encoding_round(JOB_BF16, &held, 1);
        expect_weights(fixture, 0, clock, &held, 1);
        seen = held;
    }
    assert_true(seen == -1 - 0x1p-7f);
}

static void gradients_in_bf16_are_summed_in_float32(void **state) {
    struct service_fixture *fixture = *state;
    uint32_t id = 0;
    service_fixture_open(fixture, 2);
    service_fixture_push(fixture, 0, 1, &id, 1, 1);
    service_fixture_push(fixture, 1, 1, &id, 1, 0x1p-20f);
    service_fixture_serve(fixture, 2);
    assert_true(service_fixture_weight(fixture, id, 0) == -(1 + 0x1p-20f) / 2);
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
    expect(fixture, fixture->trainers[0], CAPSTAN__DATA_HEADER__KIND__REFUSED,
           "encoding");
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

/* What a trainer of the next test has out. */
struct naive_trainer {
    uint64_t clock[SERVICE_BLOCKS];
    float sum[SERVICE_BLOCKS];
    float value[SERVICE_BLOCKS];
};

static float weight_of(struct service_fixture *fixture, uint32_t id) {
    return service_fixture_weight(fixture, id, 0);
}

/* Pushes twice, out of turn, and repeats of old clocks: sums are exact. */
static void sums_are_exact_whatever_comes_twice(void **state) {
    struct service_fixture *fixture = *state;
    struct philox_sequence random;
    struct naive_trainer trainers[2];
    seed_open(&random);
    memset(trainers, 0, sizeof trainers);
    fixture->job.staleness = JOB_STALENESS_INF;
    service_fixture_open(fixture, 2);
    for (int event = 0; event < 2000; event++) {
        uint32_t r = philox_below(&random, 2);
        uint32_t id = all[philox_below(&random, 3)];
        struct naive_trainer *trainer = &trainers[r];
        uint32_t what = philox_below(&random, 4);
        uint64_t clock = trainer->clock[id] + (what < 2) + 2 * (what == 3);
        float value = (float)philox_below(&random, 5);
        service_fixture_push(fixture, r, clock, &id, 1, value);
        service_fixture_serve(fixture, 1);
        if (what < 2) {
            trainer->clock[id]++;
            trainer->sum[id] += value + (float)id;
        }
        struct link_frame frame;
        service_fixture_answer(fixture, fixture->trainers[r], &frame);
        link_release(&frame);
        assert_true(weight_of(fixture, id) ==
                    -(trainers[0].sum[id] + trainers[1].sum[id]));
    }
}

static void a_reply_keeps_its_weights_while_an_update_goes_elsewhere(
    void **state) {
    struct service_fixture *fixture = *state;
    struct link_settings settings = {.max_frame = 1 << 20,
                                     .receive_frames = 100};
    struct link *inside;
    struct failure why;
    uint32_t id = 0;
    fixture->job.staleness = JOB_STALENESS_INF;
    service_fixture_open(fixture, 1);
    assert_int_equal(
        link_open(&inside, fixture->wire->zmq, LINK_CLIENT, &settings, &why),
        0);
    assert_int_equal(link_bind_inside(fixture->wire->server, "ps", &why), 0);
    assert_int_equal(link_connect_inside(inside, "ps", &why), 0);
    link_close(&fixture->trainers[0]);
    fixture->trainers[0] = inside;
    service_fixture_push(fixture, 0, 1, &id, 1, 1);
    service_fixture_serve(fixture, 1); /* its answer is not read yet */
    assert_false(
        buffer_alone(shard_tensor(service_shard(fixture->service), 0, 0)));
    service_fixture_push(fixture, 0, 2, &id, 1, 1);
    service_fixture_serve(fixture, 1);
    assert_true(weight_of(fixture, id) == -2);
    const float first = -1, second = -2;
    expect_weights(fixture, 0, 1, &first, 1);
    expect_weights(fixture, 0, 2, &second, 1);
    assert_int_equal(shard_copied_bytes(service_shard(fixture->service)), 0);
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
    expect_weights(fixture, 0, 1, &weight, 1);
}

static void a_wrong_request_takes_no_answers_away(void **state) {
    struct service_fixture *fixture = *state;
    static uint32_t unknown[] = {4};
    uint32_t id = 0;
    service_fixture_open(fixture, 2);
    service_fixture_push(fixture, 0, 1, &id, 1, 1);
    service_fixture_serve(fixture, 1);
    struct link *other = wire_fixture_client(fixture->wire);
    Capstan__DataHeader header =
        service_fixture_header(fixture, PULL, 0, 1, unknown, 1);
    service_fixture_send(fixture, other, &header, NULL, 0);
    service_fixture_push(fixture, 1, 1, &id, 1, 1);
    service_fixture_serve(fixture, 2);
    const float weight = -1;
    expect_weights(fixture, 0, 1, &weight, 1);
    link_close(&other);
}

/* A dead trainer's gradient, still held, is freed at the end (a sanitizer
 * sees the leak). */
static void an_open_round_ends_with_the_service(void **state) {
    struct service_fixture *fixture = *state;
    service_fixture_open(fixture, 2);
    service_fixture_push(fixture, 0, 1, all, 3, 1);
    service_fixture_serve(fixture, 1);
}

static void a_dead_trainers_gradient_counts_in_its_round(void **state) {
    struct service_fixture *fixture = *state;
    struct failure why;
    service_fixture_open(fixture, 3);
    service_fixture_push(fixture, 0, 1, all, 3, 3);
    service_fixture_push(fixture, 1, 1, all, 3, 6);
    service_fixture_serve(fixture, 2);
    fixture->slots[0] = (struct gate_slot){0};
    exchange_view(service_exchange(fixture->service), 2, fixture->slots);
    assert_int_equal(service_settle(fixture->service, &why), STATUS_OK);
    assert_int_equal(service_finish(fixture->service, &why), STATUS_OK);
    service_fixture_push(fixture, 2, 1, all, 3, 0);
    service_fixture_serve(fixture, 1);
    const float means[] = {-3, -4, -6};
    expect_weights(fixture, 1, 1, means, 3);
    expect_weights(fixture, 2, 1, means, 3);
    service_fixture_push(fixture, 0, 2, all, 3, 3);
    service_fixture_serve(fixture, 1);
    expect(fixture, fixture->trainers[0], CAPSTAN__DATA_HEADER__KIND__REFUSED,
           "view");
}

static void clipped_rounds_shrink_to_the_limit(void **state) {
    struct service_fixture *fixture = *state;
    struct failure why;
    fixture->job.gradient_clipping = 2;
    service_fixture_open(fixture, 1);
    service_fixture_push(fixture, 0, 1, all, 3, 1);
    service_fixture_serve(fixture, 1);
    assert_int_equal(fixture->summed_round, 1);
    double squares = 0;
    for (int i = 0; i < 3; i++) {
        double value = 1 + all[i],
               sum = value * value * fixture->elements[all[i]];
        assert_true(fabs(fixture->sums[i] - sum) < 1e-9);
        squares += sum;
    }
    assert_true(weight_of(fixture, 0) == 0);
    assert_int_equal(service_norm(fixture->service, 1, sqrt(squares), &why),
                     STATUS_OK);
    assert_int_equal(service_finish(fixture->service, &why), STATUS_OK);
    assert_true(fabs(weight_of(fixture, 3) + 4 * 2 / sqrt(squares)) < 1e-5);
    service_fixture_push(fixture, 0, 2, all, 3, 0);
    service_fixture_serve(fixture, 1);
    assert_int_equal(service_norm(fixture->service, 2, 0.5, &why), STATUS_OK);
    assert_int_equal(service_finish(fixture->service, &why), STATUS_OK);
    assert_true(fabs(weight_of(fixture, 1) + 2 * 2 / sqrt(squares) + 1) <
                1e-5); /* below the limit: as it is */
}

/* At a snapshot the row names just the contributions in the weights. */
static void check_row(struct service_fixture *fixture, uint32_t b,
                      uint64_t version) {
    struct ledger_entry row[2];
    exchange_row(service_exchange(fixture->service), b, version, row);
    float weight = weight_of(fixture, fixture->ids[b]);
    float sum = -(float)version * (1 + (float)fixture->ids[b]);
    assert_true(weight == sum);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(row[r].clock, version);
        assert_int_equal(row[r].incarnation, SERVICE_TRAINER + r);
    }
    ++*(int *)fixture->context;
}

static void rows_and_weights_of_a_snapshot_belong_together(void **state) {
    struct service_fixture *fixture = *state;
    struct failure why;
    int snapshots = 0;
    fixture->context = &snapshots;
    fixture->snapshot = check_row;
    fixture->rounds.checkpoints = true;
    fixture->rounds.every_steps = 2;
    service_fixture_open(fixture, 2);
    struct exchange *exchange = service_exchange(fixture->service);
    for (uint64_t clock = 1; clock <= 4; clock++)
        for (uint32_t r = 0; r < 2; r++) {
            service_fixture_push(fixture, r, clock, all, 3, 1);
            service_fixture_serve(fixture, 1);
        }
    assert_int_equal(snapshots, 2 * SERVICE_MINE);
    assert_int_equal(exchange_freeze(exchange), 4);
    for (uint64_t clock = 5; clock <= 6; clock++) {
        service_fixture_push(fixture, 0, clock, all, 3, 1);
        service_fixture_push(fixture, 1, clock, all, 1, 1);
        service_fixture_serve(fixture, 2);
    }
    exchange_cut(exchange, 5); /* block 0 is there, with a push for 6 held */
    assert_int_equal(service_settle(fixture->service, &why), STATUS_OK);
    assert_int_equal(service_finish(fixture->service, &why), STATUS_OK);
    assert_true(snapshots > 2 * SERVICE_MINE);
}

/* As before a cut with staleness: rows and weights are read next. */
static void once_finished_weights_have_all_that_is_counted(void **state) {
    struct service_fixture *fixture = *state;
    struct link_frame frame;
    Capstan__DataHeader *header;
    struct failure why;
    fixture->job.staleness = JOB_STALENESS_INF;
    service_fixture_open(fixture, 1);
    for (uint64_t clock = 1; clock <= 300; clock++) {
        service_fixture_push(fixture, 0, clock, all, 3, 1);
        wire_fixture_view(fixture->wire->server, &frame);
        assert_int_equal(message_read_data(&header, &fixture->arena,
                                           frame.header.data, frame.header.size,
                                           &why),
                         STATUS_OK);
        assert_int_equal(service_handle(fixture->service, &frame, header, &why),
                         STATUS_OK);
        assert_int_equal(service_finish(fixture->service, &why), STATUS_OK);
        for (int i = 0; i < 3; i++)
            assert_true(service_fixture_weight(fixture, all[i], 0) ==
                        -(float)clock * (float)(1 + all[i]));
    }
}

#define SERVICE_TEST(f)                                                        \
    cmocka_unit_test_setup_teardown(f, service_fixture_setup,                  \
                                    service_fixture_teardown)

#define BF16_TEST(f)                                                           \
    {                                                                          \
        .name = #f ", bf16", .test_func = f,                                   \
        .setup_func = service_fixture_setup_bf16,                              \
        .teardown_func = service_fixture_teardown                              \
    }

#define THREADS_TEST(f)                                                        \
    {                                                                          \
        .name = #f ", 3 threads", .test_func = f,                              \
        .setup_func = service_fixture_setup_threads,                           \
        .teardown_func = service_fixture_teardown                              \
    }

int main(void) {
    const struct CMUnitTest tests[] = {
        BF16_TEST(a_round_takes_the_mean_and_answers_all),
        BF16_TEST(a_contribution_without_bytes_is_not_divided_by),
        BF16_TEST(a_round_with_a_void_push_changes_nothing),
        BF16_TEST(a_copy_does_not_replace_what_is_held),
        BF16_TEST(a_push_is_applied_whatever_its_alignment),
        BF16_TEST(sums_are_exact_whatever_comes_twice),
        BF16_TEST(an_answer_goes_to_the_newest_connection),
        BF16_TEST(a_dead_trainers_gradient_counts_in_its_round),
        BF16_TEST(clipped_rounds_shrink_to_the_limit),
        SERVICE_TEST(each_round_brings_all_its_own_weights),
        BF16_TEST(each_round_brings_all_its_own_weights),
        BF16_TEST(weights_are_float32_here_and_bf16_on_the_wire),
        BF16_TEST(gradients_in_bf16_are_summed_in_float32),
        BF16_TEST(what_is_in_another_encoding_is_refused),
        SERVICE_TEST(what_is_in_another_encoding_is_refused),
        BF16_TEST(a_snapshot_is_read_in_float32),
        SERVICE_TEST(a_snapshot_is_read_in_float32),
        SERVICE_TEST(a_round_takes_the_mean_and_answers_all),
        SERVICE_TEST(a_rounds_mean_is_that_of_all_replicas),
        SERVICE_TEST(with_staleness_a_push_is_divided_by_its_own_replicas),
        SERVICE_TEST(a_contribution_without_bytes_is_not_divided_by),
        SERVICE_TEST(a_round_with_a_void_push_changes_nothing),
        SERVICE_TEST(answers_tell_the_scale_of_the_next_step),
        SERVICE_TEST(skipped_steps_are_none_to_the_rule),
        SERVICE_TEST(skipped_steps_are_none_to_adam),
        SERVICE_TEST(a_void_clipped_round_is_summed_to_nothing),
        SERVICE_TEST(a_copy_does_not_replace_what_is_held),
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
        SERVICE_TEST(sums_are_exact_whatever_comes_twice),
        SERVICE_TEST(a_reply_keeps_its_weights_while_an_update_goes_elsewhere),
        SERVICE_TEST(an_answer_goes_to_the_newest_connection),
        SERVICE_TEST(a_wrong_request_takes_no_answers_away),
        SERVICE_TEST(an_open_round_ends_with_the_service),
        SERVICE_TEST(a_dead_trainers_gradient_counts_in_its_round),
        SERVICE_TEST(clipped_rounds_shrink_to_the_limit),
        SERVICE_TEST(rows_and_weights_of_a_snapshot_belong_together),
        THREADS_TEST(what_is_in_another_encoding_is_refused),
        THREADS_TEST(a_snapshot_is_read_in_float32),
        THREADS_TEST(a_round_takes_the_mean_and_answers_all),
        THREADS_TEST(a_contribution_without_bytes_is_not_divided_by),
        THREADS_TEST(a_round_with_a_void_push_changes_nothing),
        THREADS_TEST(answers_tell_the_scale_of_the_next_step),
        THREADS_TEST(skipped_steps_are_none_to_the_rule),
        THREADS_TEST(a_void_clipped_round_is_summed_to_nothing),
        THREADS_TEST(a_copy_does_not_replace_what_is_held),
        THREADS_TEST(a_push_is_applied_whatever_its_alignment),
        THREADS_TEST(a_push_for_a_receipt_gets_no_weights),
        THREADS_TEST(a_receipt_comes_when_the_round_closes),
        THREADS_TEST(an_ask_may_want_a_receipt_too),
        THREADS_TEST(a_new_life_that_counts_anew_gets_its_weights),
        THREADS_TEST(what_is_wrong_is_refused_and_not_applied),
        THREADS_TEST(a_message_of_no_blocks_changes_nothing),
        THREADS_TEST(an_ask_names_what_is_lacking),
        THREADS_TEST(sums_are_exact_whatever_comes_twice),
        THREADS_TEST(a_reply_keeps_its_weights_while_an_update_goes_elsewhere),
        THREADS_TEST(an_answer_goes_to_the_newest_connection),
        THREADS_TEST(a_wrong_request_takes_no_answers_away),
        THREADS_TEST(an_open_round_ends_with_the_service),
        THREADS_TEST(a_dead_trainers_gradient_counts_in_its_round),
        THREADS_TEST(clipped_rounds_shrink_to_the_limit),
        THREADS_TEST(rows_and_weights_of_a_snapshot_belong_together),
        THREADS_TEST(once_finished_weights_have_all_that_is_counted),
        SERVICE_TEST(once_finished_weights_have_all_that_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
