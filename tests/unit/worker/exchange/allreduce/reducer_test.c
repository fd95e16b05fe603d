/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of all-reduce, a thread each: they end in the bits that one process
 * makes of all gradients (tests/lib/reducer_fixture.h), or all of them with one
 * reason. */
#include "worker/exchange/allreduce/reducer.h"

#include "tests/lib/allocations.h"
#include "tests/lib/reducer_fixture.h"
#include "tests/lib/test.h"

#include <poll.h>
#include <sys/resource.h>

/* Notes sums that began while parameters were still to be announced. */
static void record_early(void *context, uint32_t rank, const char *call,
                         size_t count) {
    struct reducer_fixture *fixture = context;
    (void)count;
    if (rank == 1 && !strcmp(call, "reduce_scatter"))
        fixture->note += atomic_load(&fixture->rank[1].left) > 0;
}

TEST(with_overlap_gradients_are_sent_while_others_are_computed) {
    struct reducer_fixture fixture;
    reducer_fixture_open_default(&fixture, 2);
    fixture.in_two_steps = true;
    fixture.job.zero.reduce_bucket = 1;
    fixture.rendezvous.called = record_early;
    fixture.rendezvous.context = &fixture;
    reducer_fixture_run_and_compare(&fixture);
    assert_true(fixture.note > 0);
    reducer_fixture_close(&fixture);
}

TEST(without_overlap_buckets_are_sent_once_all_are_complete) {
    struct reducer_fixture fixture;
    reducer_fixture_open_default(&fixture, 2);
    fixture.job.zero.reduce_bucket = 1;
    fixture.job.zero.overlap = false;
    fixture.rendezvous.called = record_early;
    fixture.rendezvous.context = &fixture;
    reducer_fixture_run_and_compare(&fixture);
    assert_int_equal(fixture.note, 0);
    reducer_fixture_close(&fixture);
}

/* By a norm that no gradient reaches: the bits are those of no clipping. */
TEST(with_clipping_each_bucket_is_updated_once) {
    for (uint32_t stage = 0; stage <= 1; stage++) {
        struct reducer_fixture fixture;
        reducer_fixture_open_default(&fixture, 2);
        fixture.job.zero.stage = stage;
        fixture.job.zero.reduce_bucket = 5000;
        fixture.job.gradient_clipping = 1e9;
        reducer_fixture_run_and_compare(&fixture);
        reducer_fixture_close(&fixture);
    }
}

/* After round 2 the next one is named. */
static void name_next(struct reducer_fixture *fixture, uint64_t round) {
    if (round == 2)
        reducer_save(fixture->rank[0].reducer, 3);
}

TEST(a_round_named_while_ranks_pause_is_saved) {
    for (uint32_t stage = 0; stage <= 1; stage++) {
        struct reducer_fixture fixture, until;
        reducer_fixture_open_default(&fixture, 3);
        fixture.job.zero.stage = stage;
        fixture.rounds = 5;
        fixture.pause = name_next;
        reducer_fixture_run(&fixture);
        assert_int_equal(fixture.saved.saves, 1);
        assert_int_equal(fixture.saved.round, 3);
        reducer_fixture_open_default(&until, 3);
        struct reducer_model alone;
        reducer_model_open(&alone, &until);
        reducer_fixture_train_single(&until, &alone);
        reducer_fixture_expect_model(&fixture, &fixture.saved, &alone);
        reducer_model_close(&alone);
        reducer_fixture_close(&until);
        reducer_fixture_close(&fixture);
    }
}

/* The rank of the note hears early that no round follows. */
static void report_early(void *context, uint32_t rank, const char *call,
                         size_t count) {
    struct reducer_fixture *fixture = context;
    (void)count;
    if (rank == fixture->note && !strcmp(call, "reduce_scatter"))
        reducer_save_now(fixture->rank[rank].reducer);
}

/* Alone, and right after one that stands in the plan: whether a rank hears
 * before or after that one that no round follows, it does what the others do,
 * and waits for nobody to allow another. */
TEST(all_ranks_save_the_final_state) {
    for (unsigned transport = 0; transport < 4; transport++) {
        struct reducer_fixture fixture;
        unsigned planned = transport % 2, early = transport < 2 ? 2 : 0;
        int allowed;
        reducer_fixture_open_default(&fixture, 3);
        fixture.note = early;
        fixture.rounds = 1;
        fixture.job.zero.stage = 1;
        fixture.job.zero.overlap = false;
        fixture.job.zero.reduce_bucket = 5000;
        fixture.course.checkpoints = planned;
        fixture.rendezvous.called = report_early;
        fixture.rendezvous.context = &fixture;
        reducer_fixture_begin(&fixture);
        reducer_fixture_end(&fixture);
        for (uint32_t r = 0; r < fixture.ranks; r++)
            reducer_save_now(fixture.rank[r].reducer);
        for (unsigned saves = 0; saves < 1 + planned; saves++)
            reducer_fixture_await(&fixture.handed_over);
        assert_int_equal(fixture.saved.round, fixture.rounds);
        sem_getvalue(&fixture.finished, &allowed);
        assert_false(early == 0 && allowed);
        struct reducer_model alone;
        reducer_model_open(&alone, &fixture);
        reducer_fixture_train_single(&fixture, &alone);
        reducer_fixture_expect_model(&fixture, &fixture.saved, &alone);
        reducer_model_close(&alone);
        for (uint32_t r = 0; r < fixture.ranks; r++)
            assert_false(reducer_failed(fixture.rank[r].reducer, &failure));
        reducer_fixture_close(&fixture);
    }
}

/* All ranks have failed with TEXT, and say so to who polls. */
static void expect_failures(struct reducer_fixture *fixture, const char *text) {
    for (uint32_t r = 0; r < fixture->ranks; r++) {
        struct pollfd readable = {reducer_descriptor(fixture->rank[r].reducer),
                                  POLLIN, 0};
        assert_true(fixture->rank[r].ended);
        assert_int_equal(poll(&readable, 1, 60000), 1);
        assert_true(reducer_failed(fixture->rank[r].reducer, &failure));
        assert_int_equal(failure.code, FAILURE_PEER_LOST);
        assert_contains(failure.text, text);
    }
}

/* At the meeting, and at calls of the first rounds. */
TEST(a_rank_that_fails_ends_all_and_is_named) {
    for (uint32_t call = 0; call < 12; call++) {
        struct reducer_fixture fixture;
        reducer_fixture_open_default(&fixture, 3);
        fixture.job.zero.stage = call % 3;
        fixture.job.zero.reduce_bucket = 5000;
        fixture.rendezvous.fault = COLLECTIVE_FAULT_FAIL;
        fixture.rendezvous.fault_rank = 1;
        fixture.rendezvous.fault_call = call;
        reducer_fixture_begin(&fixture);
        reducer_fixture_end(&fixture);
        expect_failures(&fixture, "rank 1 was lost");
        reducer_fixture_close(&fixture);
    }
}

TEST(a_rank_that_never_connects_is_named_at_the_deadline) {
    struct reducer_fixture fixture;
    reducer_fixture_open_default(&fixture, 3);
    fixture.timeout = 1;
    fixture.rendezvous.fault = COLLECTIVE_FAULT_HANG;
    fixture.rendezvous.fault_rank = 2;
    fixture.rendezvous.fault_call = 3;
    reducer_fixture_begin(&fixture);
    for (uint32_t r = 0; r < 2; r++) {
        pthread_join(fixture.rank[r].thread, NULL);
        assert_true(fixture.rank[r].ended);
        assert_true(reducer_failed(fixture.rank[r].reducer, &failure));
        assert_string_equal(failure.text, "rank 2 was lost");
    }
    fixture.rank[2].exchange->cancel(fixture.rank[2].exchange);
    pthread_join(fixture.rank[2].thread, NULL);
    assert_false(reducer_failed(fixture.rank[2].reducer, &failure));
    reducer_fixture_close(&fixture);
}

/* Rank 1 hangs in a collective, so rank 0's two threads wait too. */
TEST(cancelling_ends_every_wait) {
    for (uint32_t call = 0; call < 4; call++) {
        struct reducer_fixture fixture;
        reducer_fixture_open_default(&fixture, 2);
        fixture.rendezvous.fault = COLLECTIVE_FAULT_HANG;
        fixture.rendezvous.fault_rank = 1;
        fixture.rendezvous.fault_call = 1 + call;
        reducer_fixture_begin(&fixture);
        for (uint32_t r = 0; r < 2; r++)
            fixture.rank[r].exchange->cancel(fixture.rank[r].exchange);
        reducer_fixture_end(&fixture);
        for (uint32_t r = 0; r < 2; r++) {
            assert_true(fixture.rank[r].ended);
            assert_false(reducer_failed(fixture.rank[r].reducer, &failure));
        }
        reducer_fixture_close(&fixture);
    }
}

TEST(closing_ends_a_reducer_that_waits_for_gradients) {
    struct reducer_fixture fixture;
    reducer_fixture_open_default(&fixture, 1);
    fixture.rounds = 0;
    reducer_fixture_begin(&fixture);
    reducer_fixture_end(&fixture);
    reducer_fixture_close(&fixture);
    assert_null(fixture.rank[0].reducer);
}

TEST(without_a_descriptor_the_reducer_is_not_opened) {
    struct reducer_fixture fixture;
    struct arena arena;
    struct reducer *reducer;
    struct rlimit before, none;
    reducer_fixture_open_default(&fixture, 1);
    assert_ok(arena_open(&arena, fixture.layout, false, &failure));
    struct reducer_settings settings = {.job = &fixture.job,
                                        .layout = fixture.layout,
                                        .run_schedule = &fixture.course,
                                        .group = {.size = 1},
                                        .weights = arena.weights,
                                        .gradients = arena.gradients,
                                        .offsets = arena.offsets};
    getrlimit(RLIMIT_NOFILE, &before);
    none = before;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &none);
    enum status status = reducer_open(&reducer, &settings, &failure);
    setrlimit(RLIMIT_NOFILE, &before);
    assert_error(status, FAILURE_NO_DESCRIPTORS);
    assert_null(reducer);
    arena_close(&arena);
    reducer_fixture_close(&fixture);
}

/* Notes what was asked for between the third round and the last but one. */
static void async_error(struct reducer_fixture *fixture, uint64_t round) {
    if (round == 3)
        fixture->note = allocations_made();
    if (round == 40)
        fixture->note = allocations_made() - fixture->note;
}

TEST(a_round_allocates_nothing) {
    for (uint32_t stage = 0; stage <= 2; stage++) {
        struct reducer_fixture fixture;
        reducer_fixture_open_default(&fixture, 2);
        fixture.job.zero.stage = stage;
        fixture.job.zero.reduce_bucket = 5000;
        fixture.job.gradient_clipping = stage == 1 ? 1 : 0;
        fixture.course.checkpoints = true;
        fixture.course.every_steps = 5;
        fixture.rounds = 41;
        fixture.pause = async_error;
        reducer_fixture_run(&fixture);
        assert_int_equal(fixture.note, 0);
        reducer_fixture_close(&fixture);
    }
}

TEST(bytes_and_time_are_reported) {
    static const uint32_t elements[] = {16000};
    struct reducer_fixture fixture;
    struct reducer_times times;
    reducer_fixture_open(&fixture, 2, elements, 1, &reducer_fixture_sgd, 0.1);
    fixture.rounds = 10;
    reducer_fixture_run(&fixture);
    reducer_times(fixture.rank[0].reducer, &times);
    assert_int_equal(times.bytes, 10 * (16000 + REDUCER_HEADER_FLOATS) * 4);
    assert_true(times.reduce_s > 0 && times.update_s > 0);
    assert_true(fixture.rank[0].exchange->waited(fixture.rank[0].exchange) > 0);
    reducer_fixture_close(&fixture);
}
