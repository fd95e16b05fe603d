/* SPDX-License-Identifier: Apache-2.0 */
/* Resident reducers, in reducer.c over reduction.c and state_io.c, on
 * fake devices whose streams go on in each order there is. */
#include "worker/exchange/allreduce/reducer.h"

#include "tests/lib/reducer_fixture.h"
#include "tests/lib/rule_cases.h"
#include "tests/lib/test.h"

#include <poll.h>

enum { CASES = sizeof rule_cases / sizeof *rule_cases };

static void open_usual(struct reducer_fixture *fixture, uint32_t ranks,
                       uint32_t stage, enum fake_device_order order) {
    reducer_fixture_open_default(fixture, ranks);
    fixture->resident = true;
    fixture->order = order;
    fixture->job.zero.stage = stage;
    fixture->job.zero.reduce_bucket = 20000;
}

TEST(ranks_train_as_one_process_with_the_whole_batch) {
    for (uint32_t ranks = 1; ranks <= 4; ranks++)
        for (uint32_t stage = 0; stage <= 2; stage++)
            for (int order = 0; order < FAKE_DEVICE_ORDERS; order++) {
                struct reducer_fixture fixture;
                open_usual(&fixture, ranks, stage,
                           (enum fake_device_order)order);
                fixture.job.zero.overlap = order % 2;
                reducer_fixture_run_and_compare(&fixture);
                reducer_fixture_close(&fixture);
            }
}

TEST(every_rule_has_the_bits_of_the_cpu) {
    static const uint32_t small[] = {1025, 7, 255};
    for (unsigned c = 0; c < CASES; c++)
        for (uint32_t stage = 0; stage <= 1; stage++) {
            struct reducer_fixture fixture;
            reducer_fixture_open(&fixture, 2, small, 3, &rule_cases[c].rule,
                                 rule_cases[c].rate);
            fixture.resident = true;
            fixture.order = FAKE_DEVICE_RANDOM;
            fixture.job.zero.stage = stage;
            fixture.job.zero.reduce_bucket = 500;
            reducer_fixture_run_and_compare(&fixture);
            reducer_fixture_close(&fixture);
        }
}

TEST(clipped_weights_have_the_bits_of_the_cpu) {
    for (uint32_t stage = 0; stage <= 2; stage++) {
        struct reducer_fixture plays[2];
        for (int resident = 0; resident < 2; resident++) {
            open_usual(&plays[resident], 3, stage, FAKE_DEVICE_RANDOM);
            plays[resident].job.gradient_clipping = 0.5;
            plays[resident].resident = resident;
            reducer_fixture_run(&plays[resident]);
        }
        for (uint32_t r = 0; r < 3; r++)
            assert_memory_equal(reducer_fixture_weights(&plays[1], r),
                                reducer_fixture_weights(&plays[0], 0),
                                plays[0].layout->elements * sizeof(float));
        for (int resident = 0; resident < 2; resident++)
            reducer_fixture_close(&plays[resident]);
    }
}

/* One rank in round 1, all in round 2, none in round 3. */
static bool some(uint32_t rank, uint64_t round) {
    return round == 2 || (round == 1 && rank == 1);
}

/* Two ranks of round 1, none of round 2, one of round 3. */
static bool overflows(uint32_t rank, uint64_t round) {
    return (round == 1 && rank > 0) || (round == 3 && rank == 2);
}

/* What they have instead of gradients is NaN, and on its way to the device
 * when they say so. */
TEST(empty_and_overflowed_contributions_are_left_out) {
    for (uint32_t stage = 0; stage <= 1; stage++)
        for (int order = 0; order < FAKE_DEVICE_ORDERS; order++) {
            struct reducer_fixture fixture;
            open_usual(&fixture, 3, stage, (enum fake_device_order)order);
            fixture.empty = some;
            fixture.voids = stage ? overflows : NULL;
            reducer_fixture_run_and_compare(&fixture);
            reducer_fixture_close(&fixture);
        }
}

/* Saved by devices, read by the host, and the other way; the ranks change. */
TEST(a_run_moves_from_devices_to_the_host_and_back) {
    for (int back = 0; back < 2; back++)
        for (uint32_t stage = 0; stage <= 2; stage += 2) {
            struct reducer_fixture first, second;
            struct reducer_model alone;
            open_usual(&first, 3, stage, FAKE_DEVICE_LAZY);
            first.resident = !back;
            reducer_fixture_run_and_compare(&first);
            open_usual(&second, 2, 2 - stage, FAKE_DEVICE_RANDOM);
            second.resident = back;
            second.broadcasts_first_weights = true;
            second.course.start = first.rounds;
            second.rounds = first.rounds + 2;
            reducer_model_open(&alone, &second);
            /* One parameter had no gradient in a round before. */
            first.saved.rule_steps[2]--;
            memcpy(second.loaded.rule_steps, first.saved.rule_steps,
                   sizeof alone.rule_steps);
            memcpy(alone.rule_steps, first.saved.rule_steps,
                   sizeof alone.rule_steps);
            for (unsigned t = 0; t < REDUCER_FIXTURE_TENSORS; t++) {
                size_t bytes = first.layout->elements * sizeof(float);
                memcpy(second.loaded.tensors[t], first.saved.tensors[t], bytes);
                memcpy(alone.tensors[t], first.saved.tensors[t], bytes);
            }
            reducer_fixture_train_single(&second, &alone);
            reducer_fixture_run(&second);
            reducer_fixture_expect_weights(&second, &alone);
            reducer_model_close(&alone);
            reducer_fixture_close(&first);
            reducer_fixture_close(&second);
        }
}

TEST(the_final_state_is_saved_when_requested) {
    struct reducer_fixture fixture;
    struct reducer_model alone;
    open_usual(&fixture, 2, 0, FAKE_DEVICE_LAZY);
    reducer_model_open(&alone, &fixture);
    reducer_fixture_train_single(&fixture, &alone);
    reducer_fixture_run(&fixture);
    assert_int_equal(fixture.saved.saves, 0);
    for (uint32_t r = 0; r < 2; r++) {
        reducer_save_now(fixture.rank[r].reducer);
        fixture.rank[r].exchange->serve(fixture.rank[r].exchange);
    }
    assert_int_equal(fixture.saved.saves, 1);
    assert_int_equal(fixture.saved.round, fixture.rounds);
    reducer_fixture_expect_model(&fixture, &fixture.saved, &alone);
    fixture.rank[0].exchange->serve(fixture.rank[0].exchange);
    assert_int_equal(fixture.saved.saves, 1);
    reducer_model_close(&alone);
    reducer_fixture_close(&fixture);
}

TEST(served_weights_are_in_rank_0s_host_arena) {
    struct reducer_fixture fixture;
    struct reducer_model alone;
    open_usual(&fixture, 1, 0, FAKE_DEVICE_LAZY);
    reducer_model_open(&alone, &fixture);
    reducer_fixture_train_single(&fixture, &alone);
    reducer_fixture_run(&fixture);
    memset((float *)reducer_fixture_weights(&fixture, 0), 0xff,
           fixture.layout->elements * sizeof(float));
    assert_ok(fixture.rank[0].exchange->download_weights(
        fixture.rank[0].exchange, &failure));
    reducer_fixture_expect_weights(&fixture, &alone);
    reducer_model_close(&alone);
    reducer_fixture_close(&fixture);
}

/* The word up and down, and once weights down: they are the fixture's own
 * look at them. */
static void expect_words(uint32_t stage, double clipping) {
    uint64_t loaded[2], brought[2];
    for (int more = 0; more < 2; more++) {
        struct reducer_fixture fixture;
        open_usual(&fixture, 2, stage, FAKE_DEVICE_RANDOM);
        fixture.job.gradient_clipping = clipping;
        fixture.rounds = more ? 7 : 3;
        reducer_fixture_run(&fixture);
        uint64_t gradients =
            fixture.rounds * fixture.layout->elements * sizeof(float);
        loaded[more] = fake_device_uploaded(fixture.rank[1].device) - gradients;
        brought[more] = fake_device_downloaded(fixture.rank[1].device);
        reducer_fixture_close(&fixture);
    }
    assert_int_equal(loaded[1] - loaded[0], 4 * 3 * sizeof(float));
    assert_int_equal(brought[1] - brought[0], 4 * 3 * sizeof(float));
}

TEST(only_the_round_header_passes_through_the_host) {
    expect_words(1, 0);
    expect_words(0, 1e-3);
    expect_words(2, 1e-3);
}

/* Notes sums that are put on the stream while parameters are still to come. */
static void record_early(void *context, uint32_t rank, const char *call,
                         size_t count) {
    struct reducer_fixture *fixture = context;
    (void)count;
    if (rank == 1 && !strcmp(call, "reduce_scatter"))
        fixture->note += atomic_load(&fixture->rank[1].left) > 0;
}

TEST(with_overlap_buckets_are_summed_while_others_are_computed) {
    uint32_t elements[16];
    for (int p = 0; p < 16; p++)
        elements[p] = 1000;
    for (int overlap = 0; overlap < 2; overlap++) {
        struct reducer_fixture fixture;
        reducer_fixture_open(&fixture, 2, elements, 16, &reducer_fixture_adam,
                             0.01);
        fixture.resident = true;
        fixture.order = FAKE_DEVICE_RANDOM;
        fixture.rounds = 6;
        fixture.job.zero.stage = 1;
        fixture.job.zero.reduce_bucket = 1000;
        fixture.job.zero.overlap = overlap;
        fixture.rendezvous.called = record_early;
        fixture.rendezvous.context = &fixture;
        reducer_fixture_run_and_compare(&fixture);
        assert_int_equal(fixture.note > 0, overlap);
        reducer_fixture_close(&fixture);
    }
}

/* Whatever it is that there is no room for: state, sums, what is saved. */
TEST(a_device_without_memory_fails_permanently) {
    unsigned failed = 0;
    for (uint64_t refused = 2; refused < 16; refused++) {
        struct reducer_fixture fixture;
        struct failure why;
        open_usual(&fixture, 1, 0, FAKE_DEVICE_LAZY);
        fixture.fail_allocation = refused; /* the first is the fixture's own */
        reducer_fixture_begin(&fixture);
        reducer_fixture_end(&fixture);
        if (fixture.rank[0].ended) {
            why = fixture.rank[0].why;
            assert_int_equal(why.code, FAILURE_DEVICE_MEMORY);
            failed++;
        }
        reducer_fixture_close(&fixture);
    }
    assert_int_equal(failed, 10);
}

/* At the meeting, and at calls of the first rounds. */
TEST(a_rank_that_fails_ends_all_and_is_named) {
    for (uint32_t call = 1; call < 12; call++) {
        struct reducer_fixture fixture;
        open_usual(&fixture, 3, call % 3, FAKE_DEVICE_LAZY);
        fixture.rendezvous.fault = COLLECTIVE_FAULT_FAIL;
        fixture.rendezvous.fault_rank = 1;
        fixture.rendezvous.fault_call = call;
        reducer_fixture_begin(&fixture);
        reducer_fixture_end(&fixture);
        for (uint32_t r = 0; r < fixture.ranks; r++) {
            struct reducer *reducer = fixture.rank[r].reducer;
            struct exchange *exchange = fixture.rank[r].exchange;
            struct pollfd readable = {reducer_descriptor(reducer), POLLIN, 0};
            assert_true(fixture.rank[r].ended);
            assert_int_equal(poll(&readable, 1, 60000), 1);
            assert_true(reducer_failed(reducer, &failure));
            assert_non_null(strstr(failure.text, "rank 1 was lost"));
            assert_true(exchange->peer_lost(exchange, &failure));
            assert_non_null(strstr(failure.text, "rank 1 was lost"));
        }
        reducer_fixture_close(&fixture);
    }
}

TEST(cancelling_ends_a_wait_for_other_ranks) {
    for (uint32_t call = 0; call < 4; call++) {
        struct reducer_fixture fixture;
        open_usual(&fixture, 2, 0, FAKE_DEVICE_LAZY);
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
