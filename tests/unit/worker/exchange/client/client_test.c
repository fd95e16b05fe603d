/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds of a client and a ps over a link that may lose messages: the compute
 * thread sees the weights of each round and no others. */
#include "worker/exchange/client/client.h"

#include "proto/base/time.h"
#include "proto/tensor/bf16.h"
#include "tests/lib/client_fixture.h"
#include "tests/lib/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Round after round a gradient of ones: weights are minus the round. */
static void *train(void *argument) {
    struct client_fixture *fixture = argument;
    float *gradients = buffer_data(fixture->gradients);
    bool here = true;
    for (uint64_t clock = 1; here && clock <= fixture->rounds; clock++) {
        for (uint32_t p = SERVICE_BLOCKS; p-- > 0;) {
            for (int i = 0; i < 16; i++)
                gradients[fixture->offsets[p] + (uint64_t)i] = 1;
            client_announce(fixture->client, p, 1, clock,
                            fixture->empty ? CONTRIBUTION_EMPTY
                                           : CONTRIBUTION_WHOLE);
        }
        here = client_fixture_wait(fixture);
        client_fixture_check(fixture, fixture->empty ? 0 : -(float)clock);
    }
    if (!here || client_global_step(fixture->client) != fixture->rounds)
        fixture->right = false;
    atomic_store(&fixture->done, true);
    return NULL;
}

static void each_wait_brings_the_rounds_weights(void **state) {
    struct client_fixture *fixture = *state;
    service_fixture_open(fixture->service, 1);
    client_fixture_open(fixture, 0);
    fixture->rounds = 200;
    client_fixture_start(fixture, train);
    client_fixture_run(fixture);
    assert_true(client_waited(fixture->client) > 0);
}

static void the_least_credit_is_enough(void **state) {
    struct client_fixture *fixture = *state;
    service_fixture_open(fixture->service, 1);
    client_fixture_open(fixture, 1);
    fixture->rounds = 20;
    client_fixture_start(fixture, train);
    client_fixture_run(fixture);
}

static void contributions_without_bytes_are_answered(void **state) {
    struct client_fixture *fixture = *state;
    service_fixture_open(fixture->service, 1);
    client_fixture_open(fixture, 0);
    fixture->rounds = 5;
    fixture->empty = true;
    client_fixture_start(fixture, train);
    client_fixture_run(fixture);
}

static void sums_are_exact_whatever_is_lost(void **state) {
    struct client_fixture *fixture = *state;
    service_fixture_open(fixture->service, 1);
    client_fixture_open(fixture, 100);
    seed_open(&fixture->random);
    fixture->rounds = 40;
    fixture->loss = 4;
    client_fixture_start(fixture, train);
    client_fixture_run(fixture);
}

static void *pull(void *argument) {
    struct client_fixture *fixture = argument;
    for (int i = 0; i < 3; i++) {
        client_pull(fixture->client, 0, 0);
        if (!client_fixture_wait(fixture))
            fixture->right = false;
        client_fixture_check(fixture, 7);
    }
    atomic_store(&fixture->done, true);
    return NULL;
}

static void all_can_be_read_without_a_push(void **state) {
    struct client_fixture *fixture = *state;
    float sevens[16];
    for (int i = 0; i < 16; i++)
        sevens[i] = 7;
    service_fixture_open(fixture->service, 1);
    for (uint32_t b = 0; b < SERVICE_BLOCKS; b++)
        shard_assign(service_shard(fixture->service->service), b, sevens);
    client_fixture_open(fixture, 0);
    fixture->loss = 3;
    seed_open(&fixture->random);
    client_fixture_start(fixture, pull);
    client_fixture_run(fixture);
}

/* The ps gets gradients to the nearest bf16, and so come its weights back. */
static void *push_once(void *argument) {
    struct client_fixture *fixture = argument;
    float *gradients = buffer_data(fixture->gradients);
    const float *weights = buffer_data(fixture->weights);
    for (int i = 0; i < 64; i++)
        gradients[i] = 1 + (float)i * 0x1p-12f;
    for (uint32_t p = 0; p < SERVICE_BLOCKS; p++)
        client_announce(fixture->client, p, 1, 1, CONTRIBUTION_WHOLE);
    fixture->right = client_fixture_wait(fixture);
    for (uint32_t b = 0; b < SERVICE_BLOCKS; b++) {
        uint64_t at =
            fixture->offsets[fixture->service->layout->blocks[b].parameter];
        for (uint32_t i = 0; i < fixture->service->elements[b]; i++, at++) {
            float came = bf16_to_float(bf16_from_float(gradients[at]));
            float held = 0 - 0.37f * came;
            float seen = bf16_to_float(bf16_from_float(held));
            fixture->right &= weights[at] == seen && seen != held;
            fixture->right &=
                service_fixture_weight(fixture->service, b, i) == held;
        }
    }
    atomic_store(&fixture->done, true);
    return NULL;
}

static void bf16_rounds_gradients_and_weights_once_each(void **state) {
    struct client_fixture *fixture = *state;
    fixture->service->job.schedule.lr = 0.37;
    service_fixture_open(fixture->service, 1);
    client_fixture_open(fixture, 0);
    client_fixture_start(fixture, push_once);
    client_fixture_run(fixture);
}

static void *pull_snapshot(void *argument) {
    struct client_fixture *fixture = argument;
    client_pull(fixture->client, 0, 5);
    fixture->right = client_fixture_wait(fixture);
    client_fixture_check(fixture, 1 + 0x1p-20f);
    client_pull(fixture->client, 0, 0);
    fixture->right &= client_fixture_wait(fixture);
    client_fixture_check(fixture, 1);
    atomic_store(&fixture->done, true);
    return NULL;
}

static void a_snapshot_is_read_as_the_ps_holds_it(void **state) {
    struct client_fixture *fixture = *state;
    struct service_fixture *service = fixture->service;
    struct snapshots *snapshots;
    struct failure why;
    float exact[16];
    for (int i = 0; i < 16; i++)
        exact[i] = 1 + 0x1p-20f;
    service_fixture_open(service, 1);
    struct shard *shard = service_shard(service->service);
    assert_int_equal(snapshots_open(&snapshots, shard,
                                    service_exchange(service->service), &why),
                     STATUS_OK);
    service_snapshots(service->service, snapshots);
    struct snapshot *snapshot = snapshots_begin(snapshots, 5);
    snapshot_keep(snapshot);
    for (uint32_t b = 0; b < SERVICE_BLOCKS; b++) {
        shard_assign(shard, b, exact);
        snapshot_add(snapshot, b, 0);
    }
    client_fixture_open(fixture, 0);
    client_fixture_start(fixture, pull_snapshot);
    client_fixture_run(fixture);
    service_snapshots(service->service, NULL);
    snapshots_close(&snapshots);
}

static void *wait_in_vain(void *argument) {
    struct client_fixture *fixture = argument;
    client_announce(fixture->client, 2, 1, 1, CONTRIBUTION_WHOLE);
    fixture->right = !client_wait(fixture->client, 2);
    atomic_store(&fixture->done, true);
    return NULL;
}

static void a_cancelled_wait_ends(void **state) {
    struct client_fixture *fixture = *state;
    client_fixture_open(fixture, 0);
    client_fixture_start(fixture, wait_in_vain);
    client_cancel(fixture->client);
    pthread_join(fixture->compute, NULL);
    assert_true(fixture->right);
}

static void with_nothing_wanted_nothing_is_due(void **state) {
    struct client_fixture *fixture = *state;
    struct failure why;
    service_fixture_open(fixture->service, 1);
    client_fixture_open(fixture, 0);
    assert_int_equal(client_deadline(fixture->client), TIME_NEVER);
    assert_int_equal(client_step(fixture->client, fixture->now, &why), 0);
    assert_int_equal(client_deadline(fixture->client), TIME_NEVER);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CLIENT_BF16_TEST(each_wait_brings_the_rounds_weights),
        CLIENT_BF16_TEST(the_least_credit_is_enough),
        CLIENT_BF16_TEST(contributions_without_bytes_are_answered),
        CLIENT_BF16_TEST(sums_are_exact_whatever_is_lost),
        CLIENT_BF16_TEST(all_can_be_read_without_a_push),
        CLIENT_BF16_TEST(bf16_rounds_gradients_and_weights_once_each),
        CLIENT_BF16_TEST(a_snapshot_is_read_as_the_ps_holds_it),
        CLIENT_TEST(each_wait_brings_the_rounds_weights),
        CLIENT_TEST(the_least_credit_is_enough),
        CLIENT_TEST(contributions_without_bytes_are_answered),
        CLIENT_TEST(sums_are_exact_whatever_is_lost),
        CLIENT_TEST(all_can_be_read_without_a_push),
        CLIENT_TEST(a_cancelled_wait_ends),
        CLIENT_TEST(with_nothing_wanted_nothing_is_due),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
