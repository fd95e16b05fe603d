/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/collective/group.h"

#include "core/base/plugin.h"
#include "tests/lib/collective_fixture.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <limits.h>

enum { SIZE = 3, COUNT = 40 };

struct member {
    struct group ranks;
    struct collective_settings settings;
    pthread_t thread;
    float data[COUNT];
    enum status status;
    struct failure why;
};

static void *sum_and_spread(void *argument) {
    struct member *member = argument;
    struct group *ranks = &member->ranks;
    member->status = group_connect(ranks, &member->settings, &member->why);
    if (!member->status)
        member->status =
            group_broadcast(ranks, member->data, COUNT, 1, &member->why);
    if (!member->status)
        member->status =
            group_all_reduce(ranks, member->data, COUNT, &member->why);
    if (!member->status)
        member->status =
            group_reduce_scatter(ranks, member->data, COUNT, &member->why);
    if (!member->status)
        member->status =
            group_all_gather(ranks, member->data, COUNT, &member->why);
    return NULL;
}

static void open_members(struct member *members,
                         struct collective_store *store) {
    for (uint32_t r = 0; r < SIZE; r++) {
        members[r] = (struct member){
            .settings = {
                .rank = r, .size = SIZE, .store = store, .timeout = 20}};
        group_open(&members[r].ranks, &collective_fixture_ops, r, SIZE);
        for (unsigned i = 0; i < COUNT; i++)
            members[r].data[i] = (float)(r * 100 + i);
    }
}

static void run_all(struct member *members) {
    for (uint32_t r = 0; r < SIZE; r++)
        assert_int_equal(pthread_create(&members[r].thread, NULL,
                                        sum_and_spread, &members[r]),
                         0);
    for (uint32_t r = 0; r < SIZE; r++)
        pthread_join(members[r].thread, NULL);
}

/* Twice summed: 9 times what rank 1 had. */
TEST(bytes_and_time_are_counted) {
    struct collective_fixture fixture;
    struct collective_store store = {.context = &fixture};
    struct member members[SIZE];
    collective_fixture_open(&fixture, SIZE);
    open_members(members, &store);
    run_all(members);
    for (uint32_t r = 0; r < SIZE; r++) {
        assert_int_equal(members[r].status, STATUS_OK);
        for (unsigned i = 0; i < COUNT; i++)
            assert_true(members[r].data[i] == 9 * (float)(100 + i));
        assert_int_equal(members[r].ranks.bytes,
                         4 * (COUNT * sizeof(float) / SIZE * (SIZE - 1)));
        assert_true(members[r].ranks.ns > 0);
        group_close(&members[r].ranks);
    }
    collective_fixture_close(&fixture);
}

static void expect_transport(const struct group *ranks, const char *expected) {
    char text[64] = "?";
    group_transport(ranks, text, sizeof text);
    assert_string_equal(text, expected);
}

TEST(the_transport_is_the_backends) {
    struct collective_fixture fixture;
    struct collective_store store = {.context = &fixture};
    struct member members[SIZE];
    struct group alone;
    collective_fixture_open(&fixture, SIZE);
    open_members(members, &store);
    expect_transport(&members[1].ranks, "");
    run_all(members);
    expect_transport(&members[1].ranks, "by thread 1");
    for (uint32_t r = 0; r < SIZE; r++)
        group_close(&members[r].ranks);
    collective_fixture_close(&fixture);
    group_open(&alone, NULL, 0, 1);
    expect_transport(&alone, "");
    group_close(&alone);
}

TEST(an_abort_before_the_rendezvous_counts) {
    struct collective_fixture fixture;
    struct collective_store store = {.context = &fixture};
    struct member members[SIZE];
    collective_fixture_open(&fixture, SIZE);
    open_members(members, &store);
    for (uint32_t r = 0; r < SIZE; r++)
        group_abort(&members[r].ranks);
    run_all(members);
    for (uint32_t r = 0; r < SIZE; r++) {
        assert_fails(members[r].status, &members[r].why, FAILURE_PEER_LOST);
        group_close(&members[r].ranks);
    }
    collective_fixture_close(&fixture);
}

/* As NCCL; Gloo's connections prove themselves. */
TEST(with_a_secret_no_backend_without_proofs_is_used) {
    static const unsigned char key[32] = {1};
    struct member member = {.settings = {.size = 2, .proof = key}};
    group_open(&member.ranks, &collective_fixture_ops, 0, 2);
    sum_and_spread(&member);
    assert_fails(member.status, &member.why, FAILURE_COLLECTIVE_UNUSABLE);
    group_close(&member.ranks);
}

TEST(a_single_rank_needs_no_backend) {
    struct member one = {.settings = {.size = 1}, .data = {1, 2}};
    group_open(&one.ranks, NULL, 0, 1);
    sum_and_spread(&one);
    assert_int_equal(one.status, STATUS_OK);
    assert_true(one.data[0] == 1 && one.data[1] == 2);
    assert_int_equal(one.ranks.bytes, 0);
    group_abort(&one.ranks);
    group_close(&one.ranks);
}

/* The plugins lie beside the program, not beside this test. */
static enum status load(const struct collective_ops **ops, const char *name,
                        struct failure *why) {
    const char *program = getenv("CAPSTAN");
    const void *table;
    enum status status = plugin_load(
        &table, textf("%s-%s.so", program ? program : "build/capstan", name),
        COLLECTIVE_SYMBOL, COLLECTIVE_ABI, why);
    *ops = table;
    return status;
}

TEST(a_missing_backend_is_named) {
    const struct collective_ops *ops;
    assert_error(group_find_backend(&ops, "gloo", &failure),
                 FAILURE_PLUGIN_MISSING);
    assert_null(ops);
    assert_contains(failure.text, "strategy.backend gloo");
    assert_contains(failure.text, "/tests/capstan-gloo.so");
    assert_contains(failure.text, "docs/collectives.md");
}

TEST(gloo_loads_and_works) {
    const struct collective_ops *ops;
    assert_ok(load(&ops, "gloo", &failure));
    assert_string_equal(ops->name, "gloo");
    assert_ok(ops->check(&failure));
}

/* Where there is no GPU, or it was built without CUDA, it says so. */
TEST(nccl_loads_and_works) {
    const struct collective_ops *ops;
    if (load(&ops, "nccl", &failure))
        skip_test("%s", failure.text);
    assert_string_equal(ops->name, "nccl");
    enum status status = ops->check(&failure);
    assert_true(!status || strlen(failure.text) > 10);
    if (status)
        skip_test("%s", failure.text);
}
