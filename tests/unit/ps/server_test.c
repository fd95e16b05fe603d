/* SPDX-License-Identifier: Apache-2.0 */
/* The rounds of a ps as its trainers see them: weights begin at 0 and the rate
 * is 1, so that the weights that come back tell what was summed. */
#define STATE struct server_fixture *fixture

#include "ps/server.h"

#include "proto/plan/encoding.h"
#include "tests/lib/seed.h"
#include "tests/lib/server_fixture.h"
#include "tests/lib/test.h"

#include <math.h>

#define PUSH CAPSTAN__DATA_HEADER__KIND__PUSH
#define PULL CAPSTAN__DATA_HEADER__KIND__PULL

static uint32_t all[] = {0, 1, 3};

FIXTURE(server_fixture_setup, server_fixture_teardown);

TEST(a_round_applies_the_mean_and_answers_all) {
    server_fixture_open(fixture, 2);
    server_fixture_push(fixture, 0, 1, all, 3, 2);
    server_fixture_handle_messages(fixture, 1);
    link_fixture_expect_nothing(fixture->trainers[0]);
    server_fixture_push(fixture, 1, 1, all, 3, 4);
    server_fixture_handle_messages(fixture, 1);
    const float means[] = {-3, -4, -6};
    server_fixture_expect_weights(fixture, 0, 1, means, 3);
    server_fixture_expect_weights(fixture, 1, 1, means, 3);
    assert_true(server_update_seconds(fixture->server) > 0);
}

SERVER_BF16(a_round_applies_the_mean_and_answers_all);
SERVER_THREADS(a_round_applies_the_mean_and_answers_all);

/* Three of one trainer and one of the other: each pushes the sum of its own. */
TEST(a_rounds_mean_is_over_all_replicas) {
    static const uint32_t replicas[] = {3, 1};
    fixture->replicas = replicas;
    server_fixture_open(fixture, 2);
    server_fixture_push(fixture, 0, 1, all, 3, 2);
    server_fixture_push(fixture, 1, 1, all, 3, 4);
    server_fixture_handle_messages(fixture, 2);
    const float means[] = {-1.5f, -2, -3};
    server_fixture_expect_weights(fixture, 0, 1, means, 3);
    server_fixture_expect_weights(fixture, 1, 1, means, 3);
}

/* Of two replicas, and of another trainer's four. */
TEST(with_staleness_a_push_is_divided_by_its_own_replicas) {
    static const uint32_t replicas[] = {2, 4};
    fixture->replicas = replicas;
    fixture->job.staleness = JOB_STALENESS_INF;
    server_fixture_open(fixture, 2);
    server_fixture_push(fixture, 0, 1, all, 3, 2);
    server_fixture_handle_messages(fixture, 1);
    const float first[] = {-1, -1.5f, -2.5f};
    server_fixture_expect_weights(fixture, 0, 1, first, 3);
    server_fixture_push(fixture, 1, 1, all, 3, 4);
    server_fixture_handle_messages(fixture, 1);
    const float second[] = {-2, -2.75f, -4.25f};
    server_fixture_expect_weights(fixture, 1, 1, second, 3);
}

TEST(an_empty_contribution_does_not_count_in_the_mean) {
    server_fixture_open(fixture, 2);
    server_fixture_push_empty(fixture, 0, 1, all, 3);
    server_fixture_push(fixture, 1, 1, all, 3, 4);
    server_fixture_handle_messages(fixture, 2);
    const float weights[] = {-4, -5, -7};
    server_fixture_expect_weights(fixture, 0, 1, weights, 3);
    server_fixture_expect_weights(fixture, 1, 1, weights, 3);
}

SERVER_BF16(an_empty_contribution_does_not_count_in_the_mean);
SERVER_THREADS(an_empty_contribution_does_not_count_in_the_mean);

TEST(a_duplicate_does_not_replace_a_held_contribution) {
    server_fixture_open(fixture, 2);
    server_fixture_push(fixture, 0, 1, all, 3, 2);
    server_fixture_push(fixture, 0, 1, all, 3, 100);
    server_fixture_push_empty(fixture, 0, 1, all, 3);
    server_fixture_push(fixture, 1, 1, all, 3, 4);
    server_fixture_handle_messages(fixture, 4);
    const float means[] = {-3, -4, -6};
    server_fixture_expect_weights(fixture, 0, 1, means, 3);
}

SERVER_BF16(a_duplicate_does_not_replace_a_held_contribution);
SERVER_THREADS(a_duplicate_does_not_replace_a_held_contribution);

TEST(each_trainer_gets_the_weights_of_each_round) {
    server_fixture_open(fixture, 3);
    for (uint64_t clock = 1; clock <= 5; clock++) {
        for (uint32_t r = 0; r < 3; r++)
            server_fixture_push(fixture, r, clock, all, 3, 1);
        server_fixture_handle_messages(fixture, 3);
        float n = (float)clock;
        const float weights[] = {-n, -2 * n, -4 * n};
        for (uint32_t r = 0; r < 3; r++)
            server_fixture_expect_weights(fixture, r, clock, weights, 3);
    }
}

SERVER_BF16(each_trainer_gets_the_weights_of_each_round);

/* Ever more of what is less than half of the last place of a bf16: readers see
 * it when the float32 that the ps holds has come far enough. */
static void weights_are_float32_in_memory_and_bf16_on_the_wire(void **state) {
    struct server_fixture *fixture = *state;
    uint32_t id = 0;
    fixture->job.staleness = JOB_STALENESS_INF;
    server_fixture_open(fixture, 1);
    server_fixture_push(fixture, 0, 1, &id, 1, 1);
    server_fixture_handle_messages(fixture, 1);
    float seen = -1;
    server_fixture_expect_weights(fixture, 0, 1, &seen, 1);
    for (uint64_t clock = 2; clock <= 9; clock++) {
        server_fixture_push(fixture, 0, clock, &id, 1, 0x1p-10f);
        server_fixture_handle_messages(fixture, 1);
        float held = -1 - 0x1p-10f * (float)(clock - 1);
        assert_true(server_fixture_weight(fixture, id, 0) == held);
        encoding_round(JOB_WIRE_BF16, &held, 1);
        server_fixture_expect_weights(fixture, 0, clock, &held, 1);
        seen = held;
    }
    assert_true(seen == -1 - 0x1p-7f);
}

SERVER_BF16(weights_are_float32_in_memory_and_bf16_on_the_wire);

static void gradients_in_bf16_are_summed_in_float32(void **state) {
    struct server_fixture *fixture = *state;
    uint32_t id = 0;
    server_fixture_open(fixture, 2);
    server_fixture_push(fixture, 0, 1, &id, 1, 1);
    server_fixture_push(fixture, 1, 1, &id, 1, 0x1p-20f);
    server_fixture_handle_messages(fixture, 2);
    assert_true(server_fixture_weight(fixture, id, 0) == -(1 + 0x1p-20f) / 2);
}

SERVER_BF16(gradients_in_bf16_are_summed_in_float32);

/* What a trainer of the next test has out. */
struct naive_trainer {
    uint64_t clock[SERVER_FIXTURE_BLOCKS];
    float sum[SERVER_FIXTURE_BLOCKS];
    float value[SERVER_FIXTURE_BLOCKS];
};

static float weight_of(struct server_fixture *fixture, uint32_t id) {
    return server_fixture_weight(fixture, id, 0);
}

/* Pushes twice, out of turn, and repeats of old clocks: sums are exact. */
TEST(sums_are_exact_under_duplicates) {
    struct philox_sequence random;
    struct naive_trainer trainers[2];
    seed_open(&random);
    memset(trainers, 0, sizeof trainers);
    fixture->job.staleness = JOB_STALENESS_INF;
    server_fixture_open(fixture, 2);
    for (int event = 0; event < 2000; event++) {
        uint32_t r = philox_below(&random, 2);
        uint32_t id = all[philox_below(&random, 3)];
        struct naive_trainer *trainer = &trainers[r];
        uint32_t what = philox_below(&random, 4);
        uint64_t clock = trainer->clock[id] + (what < 2) + 2 * (what == 3);
        float value = (float)philox_below(&random, 5);
        server_fixture_push(fixture, r, clock, &id, 1, value);
        server_fixture_handle_messages(fixture, 1);
        if (what < 2) {
            trainer->clock[id]++;
            trainer->sum[id] += value + (float)id;
        }
        struct link_frame frame;
        server_fixture_receive_reply(fixture, fixture->trainers[r], &frame);
        link_release(&frame);
        assert_true(weight_of(fixture, id) ==
                    -(trainers[0].sum[id] + trainers[1].sum[id]));
    }
}

SERVER_BF16(sums_are_exact_under_duplicates);
SERVER_THREADS(sums_are_exact_under_duplicates);

TEST(a_reply_keeps_its_weights_while_an_update_uses_another_buffer) {
    struct link_settings settings = {.max_frame = 1 << 20};
    struct link *inside;
    uint32_t id = 0;
    fixture->job.staleness = JOB_STALENESS_INF;
    server_fixture_open(fixture, 1);
    assert_ok(link_open(&inside, fixture->wire->zmq, LINK_CLIENT, &settings,
                        &failure));
    assert_ok(link_bind_inproc(fixture->wire->server_link, "ps", &failure));
    assert_ok(link_connect_inproc(inside, "ps", &failure));
    link_close(&fixture->trainers[0]);
    fixture->trainers[0] = inside;
    server_fixture_push(fixture, 0, 1, &id, 1, 1);
    server_fixture_handle_messages(fixture, 1); /* its answer is not read yet */
    assert_false(
        buffer_is_unique(shard_tensor(server_shard(fixture->server), 0, 0)));
    server_fixture_push(fixture, 0, 2, &id, 1, 1);
    server_fixture_handle_messages(fixture, 1);
    assert_true(weight_of(fixture, id) == -2);
    const float first = -1, second = -2;
    server_fixture_expect_weights(fixture, 0, 1, &first, 1);
    server_fixture_expect_weights(fixture, 0, 2, &second, 1);
    assert_int_equal(shard_copied_bytes(server_shard(fixture->server)), 0);
}

SERVER_THREADS(a_reply_keeps_its_weights_while_an_update_uses_another_buffer);

TEST(an_invalid_request_removes_no_pending_reply) {
    static uint32_t unknown[] = {4};
    uint32_t id = 0;
    server_fixture_open(fixture, 2);
    server_fixture_push(fixture, 0, 1, &id, 1, 1);
    server_fixture_handle_messages(fixture, 1);
    struct link *other = link_fixture_client(fixture->wire);
    Capstan__DataHeader header =
        server_fixture_header(fixture, PULL, 0, 1, unknown, 1);
    server_fixture_send(fixture, other, &header, NULL, 0);
    server_fixture_push(fixture, 1, 1, &id, 1, 1);
    server_fixture_handle_messages(fixture, 2);
    const float weight = -1;
    server_fixture_expect_weights(fixture, 0, 1, &weight, 1);
    link_close(&other);
}

SERVER_THREADS(an_invalid_request_removes_no_pending_reply);

/* A dead trainer's gradient, still held, is freed at the end (a sanitizer
 * sees the leak). */
TEST(an_open_round_ends_with_the_server) {
    server_fixture_open(fixture, 2);
    server_fixture_push(fixture, 0, 1, all, 3, 1);
    server_fixture_handle_messages(fixture, 1);
}

SERVER_THREADS(an_open_round_ends_with_the_server);

TEST(a_dead_trainers_gradient_counts_in_its_round) {
    server_fixture_open(fixture, 3);
    server_fixture_push(fixture, 0, 1, all, 3, 3);
    server_fixture_push(fixture, 1, 1, all, 3, 6);
    server_fixture_handle_messages(fixture, 2);
    fixture->slots[0] = (struct gate_slot){0};
    update_core_set_view(server_update_core(fixture->server), 2,
                         fixture->slots);
    assert_ok(server_run_actions(fixture->server, &failure));
    assert_ok(server_drain(fixture->server, &failure));
    server_fixture_push(fixture, 2, 1, all, 3, 0);
    server_fixture_handle_messages(fixture, 1);
    const float means[] = {-3, -4, -6};
    server_fixture_expect_weights(fixture, 1, 1, means, 3);
    server_fixture_expect_weights(fixture, 2, 1, means, 3);
    server_fixture_push(fixture, 0, 2, all, 3, 3);
    server_fixture_handle_messages(fixture, 1);
    server_fixture_expect(fixture, fixture->trainers[0],
                          CAPSTAN__DATA_HEADER__KIND__REFUSED, "view");
}

SERVER_BF16(a_dead_trainers_gradient_counts_in_its_round);
SERVER_THREADS(a_dead_trainers_gradient_counts_in_its_round);

TEST(clipped_rounds_shrink_to_the_limit) {
    fixture->job.gradient_clipping = 2;
    server_fixture_open(fixture, 1);
    server_fixture_push(fixture, 0, 1, all, 3, 1);
    server_fixture_handle_messages(fixture, 1);
    assert_int_equal(fixture->summed_round, 1);
    double squares = 0;
    for (int i = 0; i < 3; i++) {
        double value = 1 + all[i],
               sum = value * value * fixture->elements[all[i]];
        assert_true(fabs(fixture->sums[i] - sum) < 1e-9);
        squares += sum;
    }
    assert_true(weight_of(fixture, 0) == 0);
    assert_ok(server_set_norm(fixture->server, 1, sqrt(squares), &failure));
    assert_ok(server_drain(fixture->server, &failure));
    assert_true(fabs(weight_of(fixture, 3) + 4 * 2 / sqrt(squares)) < 1e-5);
    server_fixture_push(fixture, 0, 2, all, 3, 0);
    server_fixture_handle_messages(fixture, 1);
    assert_ok(server_set_norm(fixture->server, 2, 0.5, &failure));
    assert_ok(server_drain(fixture->server, &failure));
    assert_true(fabs(weight_of(fixture, 1) + 2 * 2 / sqrt(squares) + 1) <
                1e-5); /* below the limit: as it is */
}

SERVER_BF16(clipped_rounds_shrink_to_the_limit);
SERVER_THREADS(clipped_rounds_shrink_to_the_limit);

/* At a snapshot the row names just the contributions in the weights. */
static void check_row(struct server_fixture *fixture, uint32_t b,
                      uint64_t version) {
    struct ledger_entry row[2];
    update_core_ledger_row(server_update_core(fixture->server), b, version,
                           row);
    float weight = weight_of(fixture, fixture->ids[b]);
    float sum = -(float)version * (1 + (float)fixture->ids[b]);
    assert_true(weight == sum);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(row[r].clock, version);
        assert_int_equal(row[r].incarnation, SERVER_FIXTURE_TRAINER + r);
    }
    ++*(int *)fixture->context;
}

TEST(ledger_rows_and_weights_of_a_snapshot_agree) {
    int snapshots = 0;
    fixture->context = &snapshots;
    fixture->snapshot = check_row;
    fixture->run_schedule.checkpoints = true;
    fixture->run_schedule.every_steps = 2;
    server_fixture_open(fixture, 2);
    struct update_core *core = server_update_core(fixture->server);
    for (uint64_t clock = 1; clock <= 4; clock++)
        for (uint32_t r = 0; r < 2; r++) {
            server_fixture_push(fixture, r, clock, all, 3, 1);
            server_fixture_handle_messages(fixture, 1);
        }
    assert_int_equal(snapshots, 2 * SERVER_FIXTURE_OWN_BLOCKS);
    assert_int_equal(update_core_freeze(core), 4);
    for (uint64_t clock = 5; clock <= 6; clock++) {
        server_fixture_push(fixture, 0, clock, all, 3, 1);
        server_fixture_push(fixture, 1, clock, all, 1, 1);
        server_fixture_handle_messages(fixture, 2);
    }
    update_core_set_snapshot_round(
        core, 5); /* block 0 is there, with a push for 6 held */
    assert_ok(server_run_actions(fixture->server, &failure));
    assert_ok(server_drain(fixture->server, &failure));
    assert_true(snapshots > 2 * SERVER_FIXTURE_OWN_BLOCKS);
}

SERVER_THREADS(ledger_rows_and_weights_of_a_snapshot_agree);

/* As before a cut with staleness: rows and weights are read next. */
TEST(at_the_end_weights_include_every_counted_push) {
    fixture->job.staleness = JOB_STALENESS_INF;
    server_fixture_open(fixture, 1);
    for (uint64_t clock = 1; clock <= 300; clock++) {
        server_fixture_push(fixture, 0, clock, all, 3, 1);
        server_fixture_handle_one(fixture);
        assert_ok(server_drain(fixture->server, &failure));
        for (int i = 0; i < 3; i++)
            assert_true(server_fixture_weight(fixture, all[i], 0) ==
                        -(float)clock * (float)(1 + all[i]));
    }
}

SERVER_THREADS(at_the_end_weights_include_every_counted_push);
