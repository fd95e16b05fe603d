/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/exchange/allreduce/reduction.h"

#include "tests/lib/reducer_fixture.h"
#include "tests/lib/rule_cases.h"
#include "tests/lib/test.h"
#include "worker/exchange/allreduce/round_trailer.h"

#include <math.h>

enum { CASES = sizeof rule_cases / sizeof *rule_cases };

TEST(ranks_train_as_one_process_with_the_whole_batch) {
    for (uint32_t ranks = 1; ranks <= 5; ranks++)
        for (uint32_t stage = 0; stage <= 2; stage++) {
            struct reducer_fixture fixture;
            reducer_fixture_open_default(&fixture, ranks);
            fixture.job.zero.stage = stage;
            reducer_fixture_run_and_compare(&fixture);
            reducer_fixture_close(&fixture);
        }
}

/* The same as training at a rate three times as high. */
TEST(the_rate_is_scaled_by_the_ranks_if_the_job_says_so) {
    static const uint32_t elements[] = {300};
    struct reducer_fixture scaled, plain;
    reducer_fixture_open(&scaled, 3, elements, 1, &reducer_fixture_sgd, 0.125);
    reducer_fixture_open(&plain, 3, elements, 1, &reducer_fixture_sgd, 0.375);
    scaled.job.scale_lr = true;
    reducer_fixture_run(&scaled);
    reducer_fixture_run(&plain);
    assert_memory_equal(reducer_fixture_weights(&scaled, 1),
                        reducer_fixture_weights(&plain, 1),
                        300 * sizeof(float));
    reducer_fixture_close(&scaled);
    reducer_fixture_close(&plain);
}

TEST(each_round_uses_the_rate_of_the_schedule) {
    struct reducer_fixture fixture;
    reducer_fixture_open_default(&fixture, 2);
    fixture.job.schedule = (struct schedule){
        .type = SCHEDULE_WARMUP, .warmup_max_lr = 0.01, .warmup_num_steps = 10};
    reducer_fixture_run_and_compare(&fixture);
    reducer_fixture_close(&fixture);
}

TEST(every_rule_gives_the_same_bits_in_every_stage) {
    static const uint32_t small[] = {1025, 7, 255};
    for (unsigned c = 0; c < CASES; c++)
        for (uint32_t stage = 0; stage <= 2; stage++) {
            struct reducer_fixture fixture;
            reducer_fixture_open(&fixture, 3, small, 3, &rule_cases[c].rule,
                                 rule_cases[c].rate);
            fixture.job.zero.stage = stage;
            fixture.job.zero.reduce_bucket = 500;
            reducer_fixture_run_and_compare(&fixture);
            reducer_fixture_close(&fixture);
        }
}

TEST(buckets_of_any_size_give_the_same_bits) {
    static const uint64_t sizes[] = {1, 16, 1000, 500000000};
    static const uint32_t small[] = {255, 1, 1025, 7};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (uint32_t stage = 0; stage <= 1; stage++) {
            struct reducer_fixture fixture;
            reducer_fixture_open(&fixture, 2, small, 4, &reducer_fixture_adam,
                                 0.01);
            fixture.job.zero.stage = stage;
            fixture.job.zero.reduce_bucket = sizes[i];
            fixture.job.zero.overlap = i % 2;
            reducer_fixture_run_and_compare(&fixture);
            reducer_fixture_close(&fixture);
        }
}

/* Notes the largest vector that is gathered. */
static void record_largest(void *context, uint32_t rank, const char *call,
                           size_t count) {
    struct reducer_fixture *fixture = context;
    if (rank == 1 && !strcmp(call, "all_gather") && count > fixture->note)
        fixture->note = count;
}

TEST(the_smaller_of_both_bucket_sizes_counts) {
    for (unsigned gathers = 0; gathers < 2; gathers++) {
        struct reducer_fixture fixture;
        reducer_fixture_open_default(&fixture, 3);
        fixture.job.zero.stage = 2;
        if (gathers)
            fixture.job.zero.allgather_bucket = 4000;
        else
            fixture.job.zero.reduce_bucket = 4000;
        fixture.rendezvous.called = record_largest;
        fixture.rendezvous.context = &fixture;
        reducer_fixture_run_and_compare(&fixture);
        assert_in_range(fixture.note, 3700, 4000 + 2 * REDUCER_HEADER_FLOATS);
        reducer_fixture_close(&fixture);
    }
}

/* A MB, however large the job allows them to be. */
TEST(a_transferred_piece_fits_a_cache) {
    static const uint32_t elements[] = {600000};
    struct reducer_fixture fixture;
    reducer_fixture_open(&fixture, 2, elements, 1, &reducer_fixture_sgd, 0.1);
    fixture.rounds = 1;
    fixture.job.zero.stage = 1;
    fixture.rendezvous.called = record_largest;
    fixture.rendezvous.context = &fixture;
    reducer_fixture_run(&fixture);
    assert_in_range(fixture.note, 1 << 17,
                    (1 << 18) + 2 * REDUCER_HEADER_FLOATS);
    reducer_fixture_close(&fixture);
}

TEST(with_a_fixed_bucket_cost_buckets_are_wide) {
    static const uint32_t elements[] = {600000};
    struct reducer_fixture fixture;
    reducer_fixture_open(&fixture, 2, elements, 1, &reducer_fixture_sgd, 0.1);
    fixture.rounds = 1;
    fixture.large_buckets = true;
    fixture.job.zero.stage = 1;
    fixture.rendezvous.called = record_largest;
    fixture.rendezvous.context = &fixture;
    reducer_fixture_run_and_compare(&fixture);
    assert_in_range(fixture.note, 600000 - (1 << 14), 600000);
    reducer_fixture_close(&fixture);
}

TEST(the_sum_is_close_to_one_in_double) {
    struct reducer_fixture fixture;
    float gradients[3][3000];
    uint32_t elements[] = {3000};
    reducer_fixture_open(&fixture, 3, elements, 1, &reducer_fixture_sgd, 0.1);
    fixture.rounds = 20;
    reducer_fixture_run(&fixture);
    double weights[3000];
    float first[3000];
    layout_init_block(fixture.layout, 0, fixture.job.seed, first);
    for (unsigned i = 0; i < 3000; i++)
        weights[i] = (double)first[i];
    for (uint64_t round = 1; round <= fixture.rounds; round++) {
        for (uint32_t r = 0; r < 3; r++)
            reducer_fixture_gradient(r, round, gradients[r], 3000);
        for (unsigned i = 0; i < 3000; i++)
            weights[i] -= 0.1 / 3 *
                          ((double)gradients[0][i] + (double)gradients[1][i] +
                           (double)gradients[2][i]);
    }
    for (unsigned i = 0; i < 3000; i++) {
        double found = (double)reducer_fixture_weights(&fixture, 2)[i];
        if (!(fabs(found - weights[i]) <= 1e-6))
            fail_msg("weight %u is %.9g, not %.9g", i, found, weights[i]);
    }
    reducer_fixture_close(&fixture);
}

/* Clips in each of the first rounds, and hardly in a loose one. */
TEST(the_mean_gradient_is_clipped_by_its_norm) {
    static const double limits[] = {0.5, 1e4};
    for (unsigned i = 0; i < 2; i++) {
        struct reducer_fixture fixture;
        struct reducer_model alone;
        reducer_fixture_open_default(&fixture, 3);
        fixture.job.optimizer = reducer_fixture_sgd;
        fixture.separate_parameters = false;
        fixture.job.gradient_clipping = limits[i];
        reducer_model_open(&alone, &fixture);
        reducer_fixture_train_single(&fixture, &alone);
        reducer_fixture_run(&fixture);
        for (uint64_t e = 0; e < fixture.layout->elements; e++) {
            float found = reducer_fixture_weights(&fixture, 1)[e];
            if (!(fabsf(found - alone.tensors[0][e]) <= 1e-7f))
                fail_msg("weight %llu is %.9g, not %.9g", (unsigned long long)e,
                         (double)found, (double)alone.tensors[0][e]);
        }
        reducer_model_close(&alone);
        reducer_fixture_close(&fixture);
    }
}

TEST(clipped_weights_are_the_same_bits_in_every_stage) {
    for (uint32_t ranks = 1; ranks <= 5; ranks++) {
        struct reducer_fixture plays[3];
        for (uint32_t stage = 0; stage < 3; stage++) {
            reducer_fixture_open_default(&plays[stage], ranks);
            plays[stage].job.gradient_clipping = 0.5;
            plays[stage].job.zero.stage = stage;
            plays[stage].job.zero.reduce_bucket = 20000;
            reducer_fixture_run(&plays[stage]);
        }
        for (uint32_t stage = 1; stage < 3; stage++)
            for (uint32_t r = 0; r < ranks; r++)
                assert_memory_equal(reducer_fixture_weights(&plays[stage], r),
                                    reducer_fixture_weights(&plays[0], 0),
                                    plays[0].layout->elements * sizeof(float));
        for (uint32_t stage = 0; stage < 3; stage++)
            reducer_fixture_close(&plays[stage]);
    }
}

/* One rank in round 1, all in round 2, none in round 3. */
static bool some(uint32_t rank, uint64_t round) {
    return round == 2 || (round == 1 && rank == 1);
}

TEST(the_sum_is_divided_by_the_nonempty_contributions) {
    for (uint32_t stage = 0; stage <= 2; stage++)
        for (unsigned clips = 0; clips < 2; clips++) {
            struct reducer_fixture fixture;
            reducer_fixture_open_default(&fixture, 3);
            fixture.job.zero.stage = stage;
            fixture.job.gradient_clipping = clips ? 1e9 : 0;
            fixture.empty = some;
            reducer_fixture_run_and_compare(&fixture);
            reducer_fixture_close(&fixture);
        }
}

/* Two ranks of round 1, none of round 2, one of round 3. */
static bool overflows(uint32_t rank, uint64_t round) {
    return (round == 1 && rank > 0) || (round == 3 && rank == 2);
}

TEST(a_round_with_overflowed_gradients_is_skipped) {
    for (uint32_t stage = 0; stage <= 2; stage++)
        for (unsigned clips = 0; clips < 2; clips++) {
            struct reducer_fixture fixture;
            reducer_fixture_open_default(&fixture, 3);
            fixture.job.zero.stage = stage;
            fixture.job.zero.reduce_bucket = 20000;
            fixture.job.gradient_clipping = clips ? 1e9 : 0;
            fixture.voids = overflows;
            fixture.empty = some;
            reducer_fixture_run_and_compare(&fixture);
            reducer_fixture_close(&fixture);
        }
}

TEST(all_ranks_have_the_same_scale) {
    struct reducer_fixture fixture;
    reducer_fixture_open_default(&fixture, 3);
    fixture.job.fp16 = (struct job_fp16){.enabled = true,
                                         .initial_scale_power = 10,
                                         .loss_scale_window = 1000,
                                         .hysteresis = 1,
                                         .min_loss_scale = 1};
    fixture.voids = overflows;
    reducer_fixture_run_and_compare(&fixture);
    for (uint32_t r = 0; r < 3; r++) {
        struct loss_scaler scaler =
            fixture.rank[r].exchange->scaler(fixture.rank[r].exchange);
        assert_true(scaler.scale == 256);
        assert_int_equal(scaler.skipped, 2);
        assert_true(fixture.scaler.scale == 256);
        assert_int_equal(fixture.scaler.skipped, 2);
    }
    reducer_fixture_close(&fixture);
}

/* What is said of one round is not said of the next; a double keeps what a
 * float cannot. */
TEST(a_trailer_is_of_its_round) {
    const struct parameter parameters[] = {
        {.name = "p", .num_dims = 1, .dims = {5}},
        {.name = "q", .num_dims = 1, .dims = {2}, .kind = PARAMETER_ASSIGNED}};
    const struct optimizer_group plan = {.optimizer.type = OPTIMIZER_ADAM,
                                         .lr = 0.1};
    const float first[] = {1, 2}, second[] = {3, 4};
    double values[OPTIMIZER_VALUES];
    struct layout *layout;
    struct group alone;
    assert_ok(layout_build(&layout, parameters, 2, &failure));
    group_open(&alone, NULL, 0, 1);
    struct round_trailer *trailer = round_trailer_open(layout, &plan, 1);
    assert_non_null(trailer);
    round_trailer_contribute(trailer, 1, 0, CONTRIBUTION_OVERFLOWED, NULL);
    round_trailer_contribute(trailer, 1, 1, CONTRIBUTION_FULL, first);
    round_trailer_contribute(trailer, 2, 0, CONTRIBUTION_ZERO, NULL);
    round_trailer_contribute(trailer, 2, 1, CONTRIBUTION_FULL, second);
    optimizer_group_get(&plan, values);
    values[OPTIMIZER_LR] = 0.3;
    round_trailer_set(trailer, 2, 0, values);
    assert_ok(round_trailer_sum(trailer, &alone, 1, true, &failure));
    assert_true(round_trailer_is_saved(trailer));
    assert_true(round_trailer_overflowed(trailer));
    assert_memory_equal(round_trailer_values(trailer, 1), first, sizeof first);
    assert_true(fabs(round_trailer_group(trailer, 0)->lr - 0.1) < 1e-14);
    assert_ok(round_trailer_sum(trailer, &alone, 2, false, &failure));
    assert_false(round_trailer_is_saved(trailer));
    assert_false(round_trailer_overflowed(trailer));
    assert_false(round_trailer_has_bytes(trailer, 0));
    assert_true(round_trailer_has_bytes(trailer, 1));
    assert_memory_equal(round_trailer_values(trailer, 1), second,
                        sizeof second);
    assert_true(fabs(round_trailer_group(trailer, 0)->lr - 0.3) < 1e-14);
    round_trailer_close(&trailer);
    group_close(&alone);
    layout_free(&layout);
}
