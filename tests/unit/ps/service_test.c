/* SPDX-License-Identifier: Apache-2.0 */
/* The rounds of a ps as its trainers see them: weights begin at 0 and the rate
 * is 1, so that the weights that come back tell what was summed. */
#include "ps/service.h"

#include "proto/tensor/encoding.h"
#include "tests/lib/seed.h"
#include "tests/lib/service_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#define PUSH CAPSTAN__DATA_HEADER__KIND__PUSH
#define PULL CAPSTAN__DATA_HEADER__KIND__PULL

static uint32_t all[] = {0, 1, 3};

static void a_round_takes_the_mean_and_answers_all(void **state) {
    struct service_fixture *fixture = *state;
    service_fixture_open(fixture, 2);
    service_fixture_push(fixture, 0, 1, all, 3, 2);
    service_fixture_serve(fixture, 1);
    wire_fixture_silent(fixture->trainers[0]);
    service_fixture_push(fixture, 1, 1, all, 3, 4);
    service_fixture_serve(fixture, 1);
    const float means[] = {-3, -4, -6};
    service_fixture_expect_weights(fixture, 0, 1, means, 3);
    service_fixture_expect_weights(fixture, 1, 1, means, 3);
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
    service_fixture_expect_weights(fixture, 0, 1, means, 3);
    service_fixture_expect_weights(fixture, 1, 1, means, 3);
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
    service_fixture_expect_weights(fixture, 0, 1, first, 3);
    service_fixture_push(fixture, 1, 1, all, 3, 4);
    service_fixture_serve(fixture, 1);
    const float second[] = {-2, -2.75f, -4.25f};
    service_fixture_expect_weights(fixture, 1, 1, second, 3);
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
    service_fixture_expect_weights(fixture, 0, 1, weights, 3);
    service_fixture_expect_weights(fixture, 1, 1, weights, 3);
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
    service_fixture_expect_weights(fixture, 0, 1, means, 3);
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
            service_fixture_expect_weights(fixture, r, clock, weights, 3);
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
    service_fixture_expect_weights(fixture, 0, 1, &seen, 1);
    for (uint64_t clock = 2; clock <= 9; clock++) {
        service_fixture_push(fixture, 0, clock, &id, 1, 0x1p-10f);
        service_fixture_serve(fixture, 1);
        float held = -1 - 0x1p-10f * (float)(clock - 1);
        assert_true(service_fixture_weight(fixture, id, 0) == held);
        encoding_round(JOB_BF16, &held, 1);
        service_fixture_expect_weights(fixture, 0, clock, &held, 1);
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
    service_fixture_expect_weights(fixture, 0, 1, &first, 1);
    service_fixture_expect_weights(fixture, 0, 2, &second, 1);
    assert_int_equal(shard_copied_bytes(service_shard(fixture->service)), 0);
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
    service_fixture_expect_weights(fixture, 0, 1, &weight, 1);
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
    service_fixture_expect_weights(fixture, 1, 1, means, 3);
    service_fixture_expect_weights(fixture, 2, 1, means, 3);
    service_fixture_push(fixture, 0, 2, all, 3, 3);
    service_fixture_serve(fixture, 1);
    service_fixture_expect(fixture, fixture->trainers[0],
                           CAPSTAN__DATA_HEADER__KIND__REFUSED, "view");
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
    struct failure why;
    fixture->job.staleness = JOB_STALENESS_INF;
    service_fixture_open(fixture, 1);
    for (uint64_t clock = 1; clock <= 300; clock++) {
        service_fixture_push(fixture, 0, clock, all, 3, 1);
        service_fixture_handle(fixture);
        assert_int_equal(service_finish(fixture->service, &why), STATUS_OK);
        for (int i = 0; i < 3; i++)
            assert_true(service_fixture_weight(fixture, all[i], 0) ==
                        -(float)clock * (float)(1 + all[i]));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SERVICE_BF16_TEST(a_round_takes_the_mean_and_answers_all),
        SERVICE_BF16_TEST(a_contribution_without_bytes_is_not_divided_by),
        SERVICE_BF16_TEST(a_copy_does_not_replace_what_is_held),
        SERVICE_BF16_TEST(sums_are_exact_whatever_comes_twice),
        SERVICE_BF16_TEST(a_dead_trainers_gradient_counts_in_its_round),
        SERVICE_BF16_TEST(clipped_rounds_shrink_to_the_limit),
        SERVICE_TEST(each_round_brings_all_its_own_weights),
        SERVICE_BF16_TEST(each_round_brings_all_its_own_weights),
        SERVICE_BF16_TEST(weights_are_float32_here_and_bf16_on_the_wire),
        SERVICE_BF16_TEST(gradients_in_bf16_are_summed_in_float32),
        SERVICE_TEST(a_round_takes_the_mean_and_answers_all),
        SERVICE_TEST(a_rounds_mean_is_that_of_all_replicas),
        SERVICE_TEST(with_staleness_a_push_is_divided_by_its_own_replicas),
        SERVICE_TEST(a_contribution_without_bytes_is_not_divided_by),
        SERVICE_TEST(a_copy_does_not_replace_what_is_held),
        SERVICE_TEST(sums_are_exact_whatever_comes_twice),
        SERVICE_TEST(a_reply_keeps_its_weights_while_an_update_goes_elsewhere),
        SERVICE_TEST(a_wrong_request_takes_no_answers_away),
        SERVICE_TEST(an_open_round_ends_with_the_service),
        SERVICE_TEST(a_dead_trainers_gradient_counts_in_its_round),
        SERVICE_TEST(clipped_rounds_shrink_to_the_limit),
        SERVICE_TEST(rows_and_weights_of_a_snapshot_belong_together),
        SERVICE_THREADS_TEST(a_round_takes_the_mean_and_answers_all),
        SERVICE_THREADS_TEST(a_contribution_without_bytes_is_not_divided_by),
        SERVICE_THREADS_TEST(a_copy_does_not_replace_what_is_held),
        SERVICE_THREADS_TEST(sums_are_exact_whatever_comes_twice),
        SERVICE_THREADS_TEST(
            a_reply_keeps_its_weights_while_an_update_goes_elsewhere),
        SERVICE_THREADS_TEST(a_wrong_request_takes_no_answers_away),
        SERVICE_THREADS_TEST(an_open_round_ends_with_the_service),
        SERVICE_THREADS_TEST(a_dead_trainers_gradient_counts_in_its_round),
        SERVICE_THREADS_TEST(clipped_rounds_shrink_to_the_limit),
        SERVICE_THREADS_TEST(rows_and_weights_of_a_snapshot_belong_together),
        SERVICE_THREADS_TEST(once_finished_weights_have_all_that_is_counted),
        SERVICE_TEST(once_finished_weights_have_all_that_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
