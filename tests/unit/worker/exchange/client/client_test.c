/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds of a client and a ps over a link that may lose messages: the compute
 * thread sees the weights of each round and no others. */
#define STATE struct client_fixture *fixture

#include "worker/exchange/client/client.h"

#include "core/base/time.h"
#include "core/tensor/bf16.h"
#include "tests/lib/client_fixture.h"
#include "tests/lib/seed.h"
#include "tests/lib/shard_snapshot.h"
#include "tests/lib/test.h"

/* Round after round a gradient of ones: weights are minus the round. */
static void *train(void *argument) {
    struct client_fixture *fixture = argument;
    float *gradients = buffer_data(fixture->gradients);
    bool here = true;
    for (uint64_t clock = 1; here && clock <= fixture->rounds; clock++) {
        for (uint32_t p = SERVER_FIXTURE_BLOCKS; p-- > 0;) {
            for (int i = 0; i < 16; i++)
                gradients[fixture->offsets[p] + (uint64_t)i] = 1;
            fixture->exchange->announce(fixture->exchange, p, 1, clock,
                                        fixture->empty ? CONTRIBUTION_EMPTY
                                                       : CONTRIBUTION_FULL);
        }
        here = client_fixture_await_weights(fixture);
        client_fixture_check_weights(fixture,
                                     fixture->empty ? 0 : -(float)clock);
    }
    if (!here ||
        fixture->exchange->global_step(fixture->exchange) != fixture->rounds)
        fixture->passed = false;
    atomic_store(&fixture->done, true);
    return NULL;
}

FIXTURE(client_fixture_setup, client_fixture_teardown);

TEST(each_wait_returns_the_rounds_weights) {
    server_fixture_open(fixture->server, 1);
    client_fixture_open(fixture, 0);
    fixture->rounds = 200;
    client_fixture_start(fixture, train);
    client_fixture_run(fixture);
    assert_true(fixture->exchange->waited(fixture->exchange) > 0);
}

CLIENT_BF16(each_wait_returns_the_rounds_weights);

TEST(the_minimum_credit_suffices) {
    server_fixture_open(fixture->server, 1);
    client_fixture_open(fixture, 1);
    fixture->rounds = 20;
    client_fixture_start(fixture, train);
    client_fixture_run(fixture);
}

CLIENT_BF16(the_minimum_credit_suffices);

TEST(empty_contributions_are_answered) {
    server_fixture_open(fixture->server, 1);
    client_fixture_open(fixture, 0);
    fixture->rounds = 5;
    fixture->empty = true;
    client_fixture_start(fixture, train);
    client_fixture_run(fixture);
}

CLIENT_BF16(empty_contributions_are_answered);

TEST(sums_are_exact_under_message_loss) {
    server_fixture_open(fixture->server, 1);
    client_fixture_open(fixture, 100);
    seed_open(&fixture->random);
    fixture->rounds = 40;
    fixture->loss = 4;
    client_fixture_start(fixture, train);
    client_fixture_run(fixture);
}

CLIENT_BF16(sums_are_exact_under_message_loss);

static void *pull(void *argument) {
    struct client_fixture *fixture = argument;
    for (int i = 0; i < 3; i++) {
        fixture->exchange->pull(fixture->exchange, 0, 0);
        if (!client_fixture_await_weights(fixture))
            fixture->passed = false;
        client_fixture_check_weights(fixture, 7);
    }
    atomic_store(&fixture->done, true);
    return NULL;
}

TEST(all_weights_can_be_pulled_without_a_push) {
    float sevens[16];
    for (int i = 0; i < 16; i++)
        sevens[i] = 7;
    server_fixture_open(fixture->server, 1);
    for (uint32_t b = 0; b < SERVER_FIXTURE_BLOCKS; b++)
        shard_assign(server_shard(fixture->server->server), b, sevens);
    client_fixture_open(fixture, 0);
    fixture->loss = 3;
    seed_open(&fixture->random);
    client_fixture_start(fixture, pull);
    client_fixture_run(fixture);
}

CLIENT_BF16(all_weights_can_be_pulled_without_a_push);

/* The ps gets gradients to the nearest bf16, and so come its weights back. */
static void *push_once(void *argument) {
    struct client_fixture *fixture = argument;
    float *gradients = buffer_data(fixture->gradients);
    const float *weights = buffer_data(fixture->weights);
    for (int i = 0; i < 64; i++)
        gradients[i] = 1 + (float)i * 0x1p-12f;
    for (uint32_t p = 0; p < SERVER_FIXTURE_BLOCKS; p++)
        fixture->exchange->announce(fixture->exchange, p, 1, 1,
                                    CONTRIBUTION_FULL);
    fixture->passed = client_fixture_await_weights(fixture);
    for (uint32_t b = 0; b < SERVER_FIXTURE_BLOCKS; b++) {
        uint64_t at =
            fixture->offsets[fixture->server->layout->blocks[b].parameter];
        for (uint32_t i = 0; i < fixture->server->elements[b]; i++, at++) {
            float came = bf16_to_float(bf16_from_float(gradients[at]));
            float held = 0 - 0.37f * came;
            float seen = bf16_to_float(bf16_from_float(held));
            fixture->passed &= weights[at] == seen && seen != held;
            fixture->passed &=
                server_fixture_weight(fixture->server, b, i) == held;
        }
    }
    atomic_store(&fixture->done, true);
    return NULL;
}

static void bf16_rounds_gradients_and_weights_once_each(void **state) {
    struct client_fixture *fixture = *state;
    fixture->server->job.schedule.lr = 0.37;
    server_fixture_open(fixture->server, 1);
    client_fixture_open(fixture, 0);
    client_fixture_start(fixture, push_once);
    client_fixture_run(fixture);
}

CLIENT_BF16(bf16_rounds_gradients_and_weights_once_each);

static void *pull_snapshot(void *argument) {
    struct client_fixture *fixture = argument;
    fixture->exchange->pull(fixture->exchange, 0, 5);
    fixture->passed = client_fixture_await_weights(fixture);
    client_fixture_check_weights(fixture, 1 + 0x1p-20f);
    fixture->exchange->pull(fixture->exchange, 0, 0);
    fixture->passed &= client_fixture_await_weights(fixture);
    client_fixture_check_weights(fixture, 1);
    atomic_store(&fixture->done, true);
    return NULL;
}

static void a_snapshot_is_read_as_the_ps_holds_it(void **state) {
    struct client_fixture *fixture = *state;
    struct server_fixture *server = fixture->server;
    float exact[16];
    for (int i = 0; i < 16; i++)
        exact[i] = 1 + 0x1p-20f;
    server_fixture_open(server, 1);
    struct shard *shard = server_shard(server->server);
    struct snapshots *snapshots =
        shard_snapshot_open(shard, server->layout, server->ids);
    server_set_snapshots(server->server, snapshots);
    for (uint32_t b = 0; b < SERVER_FIXTURE_BLOCKS; b++)
        shard_assign(shard, b, exact);
    shard_snapshot_take(snapshots, 5, shard);
    client_fixture_open(fixture, 0);
    client_fixture_start(fixture, pull_snapshot);
    client_fixture_run(fixture);
    server_set_snapshots(server->server, NULL);
    snapshots_close(&snapshots);
}

CLIENT_BF16(a_snapshot_is_read_as_the_ps_holds_it);

static void *wait_until_cancelled(void *argument) {
    struct client_fixture *fixture = argument;
    fixture->exchange->announce(fixture->exchange, 2, 1, 1, CONTRIBUTION_FULL);
    fixture->passed =
        !fixture->exchange->wait(fixture->exchange, 2, TIME_NEVER);
    atomic_store(&fixture->done, true);
    return NULL;
}

TEST(a_cancelled_wait_ends) {
    client_fixture_open(fixture, 0);
    client_fixture_start(fixture, wait_until_cancelled);
    fixture->exchange->cancel(fixture->exchange);
    pthread_join(fixture->compute, NULL);
    assert_true(fixture->passed);
}

TEST(with_no_request_nothing_is_due) {
    server_fixture_open(fixture->server, 1);
    client_fixture_open(fixture, 0);
    assert_int_equal(client_deadline(fixture->client), TIME_NEVER);
    assert_ok(client_step(fixture->client, fixture->now, &failure));
    assert_int_equal(client_deadline(fixture->client), TIME_NEVER);
}
