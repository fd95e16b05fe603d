/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/proof.h"
#include "core/base/time.h"
#include "tests/lib/gloo_fixture.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int over_tcp(void **state) {
    static bool shm = false;
    *state = &shm;
    return 0;
}

static int over_shm(void **state) {
    static bool shm = true;
    *state = &shm;
    return 0;
}

/* Each case is played over TCP, and over shared memory. */
#define GLOO_TEST(name)                                                        \
    static void name(void **state);                                            \
    TEST_AGAIN("over TCP: " #name, over_tcp, NULL, name);                      \
    TEST_AGAIN("over shared memory: " #name, over_shm, NULL, name);            \
    static void name(void **state)

static bool transports_of(void **state) {
    return *(const bool *)*state;
}

GLOO_TEST(every_call_is_correct_and_repeatable_on_all_ranks) {
    struct gloo_fixture fixture = {
        .ops = gloo_fixture_load(), .shm = transports_of(state), .timeout = 20};
    for (uint32_t i = 0; i < RENDEZVOUS_FAKE_RANKS; i++)
        fixture.transports[i] = fixture.shm ? "over shared memory" : "";
    for (fixture.size = 1; fixture.size <= 5; fixture.size++)
        for (int algorithm = 0; algorithm < 2; algorithm++) {
            fixture.algorithm =
                algorithm ? COLLECTIVE_HALVING_DOUBLING : COLLECTIVE_RING;
            uint64_t bits = gloo_fixture_run_all(fixture);
            assert_true(bits == gloo_fixture_run_all(fixture));
        }
}

static const unsigned char keys[][PROOF_KEY_BYTES] = {{1}, {2}};

static void give_key(uint32_t rank, struct collective_settings *settings) {
    (void)rank;
    settings->proof = keys[0];
}

static void give_another_key(uint32_t rank,
                             struct collective_settings *settings) {
    settings->proof = keys[rank == 1];
}

static void give_no_key(uint32_t rank, struct collective_settings *settings) {
    settings->proof = rank == 1 ? NULL : keys[0];
}

GLOO_TEST(ranks_that_prove_themselves_sum_to_the_same_bits) {
    struct gloo_fixture fixture = {
        .ops = gloo_fixture_load(), .shm = transports_of(state), .timeout = 20};
    for (fixture.size = 2; fixture.size <= 5; fixture.size++) {
        fixture.prepare = NULL;
        uint64_t bits = gloo_fixture_run_all(fixture);
        fixture.prepare = give_key;
        assert_true(bits == gloo_fixture_run_all(fixture));
    }
}

/* Ranks of a group of FIXTURE that each play PART. What they wait for is time
 * that groups spend beside each other. */
static struct rendezvous_fake *start_group(const struct gloo_fixture *fixture,
                                           gloo_fixture_body *part) {
    struct rendezvous_fake *rendezvous = rendezvous_fake_open();
    for (uint32_t rank = 0; rank < fixture->size; rank++)
        rendezvous_fake_start(rendezvous, rank, part, fixture);
    return rendezvous;
}

/* Connects with rank 1, or tells why not. */
static void meet_once(struct rendezvous_fake *rendezvous, uint32_t rank,
                      const void *context) {
    struct collective *group = gloo_fixture_connect(rendezvous, rank, context);
    struct gloo_fixture fixture = *(const struct gloo_fixture *)context;
    fixture.ops->close(&group);
    gloo_fixture_end(rendezvous, rank, STATUS_OK, "");
}

GLOO_TEST(a_rank_with_another_key_or_none_is_refused) {
    void (*const prepares[])(uint32_t, struct collective_settings *) = {
        give_another_key, give_no_key};
    struct rendezvous_fake *groups[2];
    for (int i = 0; i < 2; i++) {
        struct gloo_fixture fixture = {.ops = gloo_fixture_load(),
                                       .shm = transports_of(state),
                                       .size = 2,
                                       .timeout = 2,
                                       .prepare = prepares[i]};
        groups[i] = start_group(&fixture, meet_once);
    }
    for (int i = 0; i < 2; i++) {
        rendezvous_fake_await_exit(groups[i], 0);
        assert_int_equal(groups[i]->ends[0].status, STATUS_RETRY);
        assert_contains(groups[i]->ends[0].text, "does not prove");
        rendezvous_fake_await_exit(groups[i], 1);
        rendezvous_fake_close(&groups[i]);
    }
}

GLOO_TEST(a_killed_rank_is_named_by_all_within_seconds) {
    for (uint32_t size = 2; size <= 5; size++) {
        struct gloo_fixture fixture = {.ops = gloo_fixture_load(),
                                       .shm = transports_of(state),
                                       .size = size,
                                       .timeout = 600};
        struct rendezvous_fake *rendezvous =
            start_group(&fixture, gloo_fixture_call_forever);
        assert_true(rendezvous_fake_await_arrivals(rendezvous, size));
        int64_t killed = time_now();
        kill(rendezvous->pids[1], SIGKILL);
        gloo_fixture_expect_failed_rank(rendezvous, size, 1, "was lost");
        assert_true(time_now() - killed < 20 * TIME_S);
        rendezvous_fake_close(&rendezvous);
    }
}

/* Who gives up first has waited for as long as it may, by its own clock; the
 * others hear of it. */
static int64_t longest_wait(const struct rendezvous_fake *rendezvous,
                            uint32_t size) {
    int64_t longest = 0;
    for (uint32_t i = 0; i < size; i++)
        if (rendezvous->ends[i].waited > longest)
            longest = rendezvous->ends[i].waited;
    return longest;
}

GLOO_TEST(a_stopped_rank_is_named_by_all_at_the_timeout) {
    struct rendezvous_fake *groups[6];
    int64_t stopped[6];
    for (uint32_t size = 2; size <= 5; size++) {
        struct gloo_fixture fixture = {.ops = gloo_fixture_load(),
                                       .shm = transports_of(state),
                                       .size = size,
                                       .timeout = 2};
        groups[size] = start_group(&fixture, gloo_fixture_call_forever);
        assert_true(rendezvous_fake_await_arrivals(groups[size], size));
        stopped[size] = time_now();
        kill(groups[size]->pids[1], SIGSTOP);
    }
    for (uint32_t size = 2; size <= 5; size++) {
        gloo_fixture_expect_failed_rank(groups[size], size, 1, "did not come");
        assert_true(longest_wait(groups[size], size) > 19 * TIME_S / 10);
        assert_true(time_now() - stopped[size] < 20 * TIME_S);
        rendezvous_fake_close(&groups[size]);
    }
}

/* Rank 1 cuts its lines, and closes when all others have failed. */
static void run_until_closed(struct rendezvous_fake *rendezvous, uint32_t rank,
                             const void *context) {
    static float data[1000];
    const struct gloo_fixture *fixture = context;
    struct collective *group = gloo_fixture_connect(rendezvous, rank, fixture);
    struct failure why = {0};
    enum status status = fixture->ops->all_reduce(group, data, 1000, &why);
    if (rank == 1) {
        fixture->ops->abort(group);
        rendezvous_fake_await_arrivals(rendezvous, fixture->size - 1);
    } else if (!status) {
        status = fixture->ops->all_reduce(group, data, 1000, &why);
        rendezvous_fake_arrive(rendezvous);
    }
    fixture->ops->close(&group);
    gloo_fixture_end(rendezvous, rank, status, why.text);
}

/* Though it lives: nobody has waited for as long as they may. */
GLOO_TEST(a_closed_connection_is_not_a_timeout) {
    struct rendezvous_fake *groups[5];
    for (uint32_t size = 2; size <= 4; size++) {
        struct gloo_fixture fixture = {.ops = gloo_fixture_load(),
                                       .shm = transports_of(state),
                                       .size = size,
                                       .timeout = 500};
        groups[size] = start_group(&fixture, run_until_closed);
    }
    for (uint32_t size = 2; size <= 4; size++) {
        gloo_fixture_expect_failed_rank(groups[size], size, 1, "was lost");
        rendezvous_fake_close(&groups[size]);
    }
}

/* Less than the 8 s that jobs have at least, and more than a machine may let
 * one of its cores stand still, with what that has to acknowledge. */
static void limit_silence(uint32_t rank, struct collective_settings *settings) {
    (void)rank;
    settings->silence = 3;
}

/* Rank 1 comes late: the others have sent all that the connections hold. */
static void come_late(struct rendezvous_fake *rendezvous, uint32_t rank,
                      const void *context) {
    static float data[8 << 20];
    const struct gloo_fixture *fixture = context;
    struct collective *group = gloo_fixture_connect(rendezvous, rank, fixture);
    struct failure why = {0};
    struct timespec late = {rank == 1 ? 8 : 0, 0}; /* what is tested */
    nanosleep(&late, NULL);
    enum status status = fixture->ops->all_reduce(group, data, 8 << 20, &why);
    fixture->ops->close(&group);
    gloo_fixture_end(rendezvous, rank, status, why.text);
}

/* Its kernel answers for it: nothing is cut off. */
GLOO_TEST(a_rank_that_computes_for_long_is_not_cut_off) {
    struct rendezvous_fake *groups[4];
    for (uint32_t size = 2; size <= 3; size++) {
        struct gloo_fixture fixture = {.ops = gloo_fixture_load(),
                                       .shm = transports_of(state),
                                       .size = size,
                                       .timeout = 30,
                                       .prepare = limit_silence};
        groups[size] = start_group(&fixture, come_late);
    }
    for (uint32_t size = 2; size <= 3; size++) {
        gloo_fixture_expect_success(groups[size], size);
        rendezvous_fake_close(&groups[size]);
    }
}

struct aborter {
    const struct gloo_fixture *fixture;
    struct rendezvous_fake *rendezvous;
    struct collective *group;
};

static void *abort_soon(void *context) {
    struct aborter *aborter = context;
    if (rendezvous_fake_await_arrivals(aborter->rendezvous, 2))
        aborter->fixture->ops->abort(aborter->group);
    return NULL;
}

/* Rank 0 waits in a call for rank 1, which stays away until 0 has ended. */
static void run_abort(struct rendezvous_fake *rendezvous, uint32_t rank,
                      const void *context) {
    static float data[100000];
    const struct gloo_fixture *fixture = context;
    struct collective *group = gloo_fixture_connect(rendezvous, rank, fixture);
    struct aborter aborter = {fixture, rendezvous, group};
    struct failure why = {0};
    pthread_t thread;
    rendezvous_fake_arrive(rendezvous);
    if (rank == 1) {
        bool ended = rendezvous_fake_await_arrivals(rendezvous, 3);
        fixture->ops->close(&group);
        gloo_fixture_end(rendezvous, 1, ended ? STATUS_OK : STATUS_FAILED, "");
    }
    pthread_create(&thread, NULL, abort_soon, &aborter);
    int64_t begun = time_now();
    enum status status = fixture->ops->all_reduce(group, data, 100000, &why);
    enum status later = fixture->ops->all_gather(group, data, 100000, NULL);
    bool soon = time_now() - begun < 20 * TIME_S;
    pthread_join(thread, NULL);
    rendezvous_fake_arrive(rendezvous);
    fixture->ops->close(&group);
    if (!status || !later || !soon)
        gloo_fixture_end(rendezvous, 0, STATUS_FAILED,
                         soon ? "went on" : "late");
    gloo_fixture_end(rendezvous, 0, STATUS_OK, "");
}

GLOO_TEST(abort_ends_the_current_call_and_later_ones) {
    struct gloo_fixture fixture = {.ops = gloo_fixture_load(),
                                   .shm = transports_of(state),
                                   .size = 2,
                                   .timeout = 600};
    for (int i = 0; i < 20; i++) {
        struct rendezvous_fake *rendezvous = start_group(&fixture, run_abort);
        gloo_fixture_expect_success(rendezvous, 2);
        rendezvous_fake_close(&rendezvous);
    }
}

TEST(the_plugin_reports_its_name_and_version) {
    const struct collective_ops *ops = gloo_fixture_load();
    struct failure why = {0};
    assert_string_equal(ops->name, "gloo");
    assert_true(strlen(ops->version) > 2);
    assert_int_equal(ops->check(&why), STATUS_OK);
}
