#include "worker/reducer.h"

#include "proto/base/time.h"
#include "tests/allocations.h"
#include "tests/reducer_fixture.h"
#include "tests/rule_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <poll.h>
#include <string.h>

static const uint32_t shapes[] = {1025, 7, 255, 1, 40000, 1025};
enum { SHAPES = sizeof shapes / sizeof *shapes };
enum { CASES = sizeof rule_cases / sizeof *rule_cases };

static const struct optimizer sgd = {.type = OPTIMIZER_SGD};
static const struct optimizer adam = {
    .type = OPTIMIZER_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};

static void open_play(struct reducer_play *play, uint32_t ranks) {
    reducer_play_open(play, ranks, shapes, SHAPES, &adam, 0.01);
}

/* Every rank has the weights of MODEL, to the bit. */
static void expect_weights(const struct reducer_play *play,
                           const struct reducer_model *model) {
    size_t bytes = play->layout->elements * sizeof(float);
    for (uint32_t r = 0; r < play->ranks; r++)
        assert_memory_equal(reducer_play_weights(play, r), model->tensors[0],
                            bytes);
}

static void expect_model(const struct reducer_play *play,
                         const struct reducer_model *found,
                         const struct reducer_model *expected) {
    for (unsigned t = 0; t <= rule_slots(&play->job.optimizer); t++)
        assert_memory_equal(found->tensors[t], expected->tensors[t],
                            play->layout->elements * sizeof(float));
}

/* PLAY's ranks end with what one process makes of all their gradients. */
static void run_and_compare(struct reducer_play *play) {
    struct reducer_model alone;
    play->course.checkpoints = true;
    reducer_model_open(&alone, play);
    reducer_play_alone(play, &alone);
    reducer_play_run(play);
    expect_weights(play, &alone);
    assert_int_equal(play->saved.round, play->rounds);
    expect_model(play, &play->saved, &alone);
    reducer_model_close(&alone);
}

static void ranks_train_as_one_process_with_the_whole_batch(void **state) {
    (void)state;
    for (uint32_t ranks = 1; ranks <= 5; ranks++)
        for (uint32_t stage = 0; stage <= 2; stage++) {
            struct reducer_play play;
            open_play(&play, ranks);
            play.job.zero.stage = stage;
            run_and_compare(&play);
            reducer_play_close(&play);
        }
}

static void every_rule_gives_the_same_bits_in_every_stage(void **state) {
    static const uint32_t small[] = {1025, 7, 255};
    (void)state;
    for (unsigned c = 0; c < CASES; c++)
        for (uint32_t stage = 0; stage <= 2; stage++) {
            struct reducer_play play;
            reducer_play_open(&play, 3, small, 3, &rule_cases[c].rule,
                              rule_cases[c].rate);
            play.job.zero.stage = stage;
            play.job.zero.reduce_bucket = 500;
            run_and_compare(&play);
            reducer_play_close(&play);
        }
}

static void buckets_of_any_size_give_the_same_bits(void **state) {
    static const uint64_t sizes[] = {1, 16, 1000, 500000000};
    static const uint32_t small[] = {255, 1, 1025, 7};
    (void)state;
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (uint32_t stage = 0; stage <= 1; stage++) {
            struct reducer_play play;
            reducer_play_open(&play, 2, small, 4, &adam, 0.01);
            play.job.zero.stage = stage;
            play.job.zero.reduce_bucket = sizes[i];
            play.job.zero.overlap = i % 2;
            run_and_compare(&play);
            reducer_play_close(&play);
        }
}

static void a_gather_bucket_bounds_the_others(void **state) {
    struct reducer_play play;
    (void)state;
    open_play(&play, 3);
    play.job.zero.stage = 2;
    play.job.zero.allgather_bucket = 4000;
    run_and_compare(&play);
    reducer_play_close(&play);
}

static void the_sum_is_near_one_in_double(void **state) {
    struct reducer_play play;
    float gradients[3][3000];
    uint32_t elements[] = {3000};
    (void)state;
    reducer_play_open(&play, 3, elements, 1, &sgd, 0.1);
    play.rounds = 20;
    reducer_play_run(&play);
    double weights[3000];
    float first[3000];
    layout_init_block(play.layout, 0, play.job.seed, first);
    for (unsigned i = 0; i < 3000; i++)
        weights[i] = (double)first[i];
    for (uint64_t round = 1; round <= play.rounds; round++) {
        for (uint32_t r = 0; r < 3; r++)
            reducer_play_gradient(r, round, gradients[r], 3000);
        for (unsigned i = 0; i < 3000; i++)
            weights[i] -= 0.1 / 3 *
                          ((double)gradients[0][i] + (double)gradients[1][i] +
                           (double)gradients[2][i]);
    }
    for (unsigned i = 0; i < 3000; i++) {
        double found = (double)reducer_play_weights(&play, 2)[i];
        if (!(fabs(found - weights[i]) <= 1e-6))
            fail_msg("weight %u is %.9g, not %.9g", i, found, weights[i]);
    }
    reducer_play_close(&play);
}

/* Clips in each of the first rounds, and hardly in a loose one. */
static void the_mean_gradient_is_clipped_by_its_norm(void **state) {
    static const double limits[] = {0.5, 1e4};
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct reducer_play play;
        struct reducer_model alone;
        open_play(&play, 3);
        play.job.optimizer = sgd;
        play.job.gradient_clipping = limits[i];
        reducer_model_open(&alone, &play);
        reducer_play_alone(&play, &alone);
        reducer_play_run(&play);
        for (uint64_t e = 0; e < play.layout->elements; e++) {
            float found = reducer_play_weights(&play, 1)[e];
            if (!(fabsf(found - alone.tensors[0][e]) <= 1e-7f))
                fail_msg("weight %llu is %.9g, not %.9g", (unsigned long long)e,
                         (double)found, (double)alone.tensors[0][e]);
        }
        reducer_model_close(&alone);
        reducer_play_close(&play);
    }
}

static void clipped_weights_are_the_same_bits_in_every_stage(void **state) {
    (void)state;
    for (uint32_t ranks = 1; ranks <= 5; ranks++) {
        struct reducer_play plays[3];
        for (uint32_t stage = 0; stage < 3; stage++) {
            open_play(&plays[stage], ranks);
            plays[stage].job.gradient_clipping = 0.5;
            plays[stage].job.zero.stage = stage;
            plays[stage].job.zero.reduce_bucket = 20000;
            reducer_play_run(&plays[stage]);
        }
        for (uint32_t stage = 1; stage < 3; stage++)
            for (uint32_t r = 0; r < ranks; r++)
                assert_memory_equal(reducer_play_weights(&plays[stage], r),
                                    reducer_play_weights(&plays[0], 0),
                                    plays[0].layout->elements * sizeof(float));
        for (uint32_t stage = 0; stage < 3; stage++)
            reducer_play_close(&plays[stage]);
    }
}

/* One rank in round 1, all in round 2, none in round 3. */
static bool some(uint32_t rank, uint64_t round) {
    return round == 2 || (round == 1 && rank == 1);
}

static void the_sum_is_divided_by_those_that_are_not_empty(void **state) {
    (void)state;
    for (uint32_t stage = 0; stage <= 2; stage++)
        for (unsigned clips = 0; clips < 2; clips++) {
            struct reducer_play play;
            open_play(&play, 3);
            play.job.zero.stage = stage;
            play.job.gradient_clipping = clips ? 1e9 : 0;
            play.empty = some;
            run_and_compare(&play);
            reducer_play_close(&play);
        }
}

/* Saved by 3 ranks in stage 2, read by 2 in stage 0, and the other way. */
static void another_number_of_ranks_goes_on_from_what_was_saved(void **state) {
    static const uint32_t ranks[][2] = {{3, 2}, {2, 3}},
                          stages[][2] = {{2, 0}, {0, 2}};
    (void)state;
    for (unsigned way = 0; way < 2; way++) {
        struct reducer_play first, second;
        open_play(&first, ranks[way][0]);
        first.job.zero.stage = stages[way][0];
        run_and_compare(&first);
        open_play(&second, ranks[way][1]);
        second.job.zero.stage = stages[way][1];
        second.job.zero.reduce_bucket = 3000;
        second.loads = true;
        second.course.start = first.rounds;
        second.rounds = first.rounds + 2;
        struct reducer_model alone;
        reducer_model_open(&alone, &second);
        for (unsigned t = 0; t < REDUCER_FIXTURE_TENSORS; t++) {
            size_t bytes = first.layout->elements * sizeof(float);
            memcpy(second.loaded.tensors[t], first.saved.tensors[t], bytes);
            memcpy(alone.tensors[t], first.saved.tensors[t], bytes);
        }
        reducer_play_alone(&second, &alone);
        reducer_play_run(&second);
        expect_weights(&second, &alone);
        reducer_model_close(&alone);
        reducer_play_close(&first);
        reducer_play_close(&second);
    }
}

static void planned_rounds_are_saved_and_no_others(void **state) {
    struct reducer_play play;
    (void)state;
    open_play(&play, 2);
    play.rounds = 7;
    play.course.checkpoints = true;
    play.course.every_steps = 3;
    play.job.zero.stage = 1;
    reducer_play_run(&play);
    assert_int_equal(play.saved.saves, 3);
    reducer_play_close(&play);
}

/* After round 2 the next one is named. */
static void name_next(struct reducer_play *play, uint64_t round) {
    if (round == 2)
        reducer_save(play->rank[0].reducer, 3);
}

static void a_round_named_while_ranks_pause_is_saved(void **state) {
    (void)state;
    for (uint32_t stage = 0; stage <= 1; stage++) {
        struct reducer_play play, until;
        open_play(&play, 3);
        play.job.zero.stage = stage;
        play.rounds = 5;
        play.pause = name_next;
        reducer_play_run(&play);
        assert_int_equal(play.saved.saves, 1);
        assert_int_equal(play.saved.round, 3);
        open_play(&until, 3);
        struct reducer_model alone;
        reducer_model_open(&alone, &until);
        reducer_play_alone(&until, &alone);
        expect_model(&play, &play.saved, &alone);
        reducer_model_close(&alone);
        reducer_play_close(&until);
        reducer_play_close(&play);
    }
}

/* All ranks have failed with TEXT, and say so to who polls. */
static void expect_failures(struct reducer_play *play, const char *text) {
    struct failure why;
    for (uint32_t r = 0; r < play->ranks; r++) {
        struct pollfd readable = {reducer_descriptor(play->rank[r].reducer),
                                  POLLIN, 0};
        assert_true(play->rank[r].ended);
        assert_int_equal(poll(&readable, 1, 20000), 1);
        assert_true(reducer_failed(play->rank[r].reducer, &why));
        assert_int_equal(why.status, STATUS_RETRY);
        assert_non_null(strstr(why.text, text));
    }
}

/* At the meeting, and at calls of the first rounds. */
static void a_rank_that_fails_ends_all_and_is_named(void **state) {
    (void)state;
    for (uint32_t call = 0; call < 12; call++) {
        struct reducer_play play;
        open_play(&play, 3);
        play.job.zero.stage = call % 3;
        play.job.zero.reduce_bucket = 5000;
        play.meeting.fault = COLLECTIVE_FAILS;
        play.meeting.fault_rank = 1;
        play.meeting.fault_call = call;
        reducer_play_begin(&play);
        reducer_play_end(&play);
        expect_failures(&play, "rank 1 was lost");
        reducer_play_close(&play);
    }
}

static void a_rank_that_never_comes_is_named_at_the_deadline(void **state) {
    struct reducer_play play;
    struct failure why;
    (void)state;
    open_play(&play, 3);
    play.timeout = 0.2;
    play.meeting.fault = COLLECTIVE_STAYS;
    play.meeting.fault_rank = 2;
    play.meeting.fault_call = 3;
    reducer_play_begin(&play);
    for (uint32_t r = 0; r < 2; r++) {
        pthread_join(play.rank[r].thread, NULL);
        assert_true(play.rank[r].ended);
        assert_true(reducer_failed(play.rank[r].reducer, &why));
        assert_string_equal(why.text, "rank 2 was lost");
    }
    reducer_cancel(play.rank[2].reducer);
    pthread_join(play.rank[2].thread, NULL);
    assert_false(reducer_failed(play.rank[2].reducer, &why));
    reducer_play_close(&play);
}

static void a_load_that_fails_is_told(void **state) {
    struct reducer_play play;
    struct failure why;
    (void)state;
    open_play(&play, 2);
    play.timeout = 0.2;
    play.loads = true;
    play.loaded.fail_load = 2;
    reducer_play_begin(&play);
    reducer_play_end(&play);
    assert_true(reducer_failed(play.rank[0].reducer, &why));
    assert_string_equal(why.text, "the disk is gone");
    assert_true(reducer_failed(play.rank[1].reducer, &why));
    assert_string_equal(why.text, "rank 0 was lost");
    reducer_play_close(&play);
}

static void a_save_that_fails_is_told(void **state) {
    struct reducer_play play;
    struct failure why;
    (void)state;
    open_play(&play, 1);
    play.course.checkpoints = true;
    play.saved.fail_save = 2;
    reducer_play_begin(&play);
    reducer_play_end(&play);
    struct pollfd readable = {reducer_descriptor(play.rank[0].reducer), POLLIN,
                              0};
    assert_int_equal(poll(&readable, 1, 20000), 1);
    assert_true(reducer_failed(play.rank[0].reducer, &why));
    assert_string_equal(why.text, "the disk is full");
    reducer_play_close(&play);
}

/* Rank 1 hangs in a collective, so rank 0's two threads wait too. */
static void cancelling_ends_every_wait(void **state) {
    (void)state;
    for (uint32_t call = 0; call < 4; call++) {
        struct reducer_play play;
        struct failure why;
        open_play(&play, 2);
        play.meeting.fault = COLLECTIVE_STAYS;
        play.meeting.fault_rank = 1;
        play.meeting.fault_call = 1 + call;
        reducer_play_begin(&play);
        for (uint32_t r = 0; r < 2; r++)
            reducer_cancel(play.rank[r].reducer);
        reducer_play_end(&play);
        for (uint32_t r = 0; r < 2; r++) {
            assert_true(play.rank[r].ended);
            assert_false(reducer_failed(play.rank[r].reducer, &why));
        }
        reducer_play_close(&play);
    }
}

static void closing_ends_a_reducer_that_waits_for_gradients(void **state) {
    struct reducer_play play;
    (void)state;
    open_play(&play, 1);
    play.rounds = 0;
    reducer_play_begin(&play);
    reducer_play_end(&play);
    reducer_play_close(&play);
    assert_null(play.rank[0].reducer);
}

/* Notes what was asked for between the third round and the last but one. */
static void look(struct reducer_play *play, uint64_t round) {
    if (round == 3)
        play->note = allocations_made();
    if (round == 40)
        play->note = allocations_made() - play->note;
}

static void a_round_asks_for_no_memory(void **state) {
    (void)state;
    for (uint32_t stage = 0; stage <= 2; stage++) {
        struct reducer_play play;
        open_play(&play, 2);
        play.job.zero.stage = stage;
        play.job.zero.reduce_bucket = 5000;
        play.job.gradient_clipping = stage == 1 ? 1 : 0;
        play.course.checkpoints = true;
        play.course.every_steps = 5;
        play.rounds = 41;
        play.pause = look;
        reducer_play_run(&play);
        assert_int_equal(play.note, 0);
        reducer_play_close(&play);
    }
}

static void what_was_sent_and_how_long_it_took_is_told(void **state) {
    static const uint32_t elements[] = {16000};
    struct reducer_play play;
    struct reducer_times times;
    (void)state;
    reducer_play_open(&play, 2, elements, 1, &sgd, 0.1);
    play.rounds = 10;
    reducer_play_run(&play);
    reducer_times(play.rank[0].reducer, &times);
    assert_int_equal(times.bytes, 10 * (16000 + REDUCER_WORD) * 4);
    assert_true(times.reduce_s > 0 && times.update_s > 0);
    assert_true(reducer_waited(play.rank[0].reducer) > 0);
    reducer_play_close(&play);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_train_as_one_process_with_the_whole_batch),
        cmocka_unit_test(every_rule_gives_the_same_bits_in_every_stage),
        cmocka_unit_test(buckets_of_any_size_give_the_same_bits),
        cmocka_unit_test(a_gather_bucket_bounds_the_others),
        cmocka_unit_test(the_sum_is_near_one_in_double),
        cmocka_unit_test(the_mean_gradient_is_clipped_by_its_norm),
        cmocka_unit_test(clipped_weights_are_the_same_bits_in_every_stage),
        cmocka_unit_test(the_sum_is_divided_by_those_that_are_not_empty),
        cmocka_unit_test(another_number_of_ranks_goes_on_from_what_was_saved),
        cmocka_unit_test(planned_rounds_are_saved_and_no_others),
        cmocka_unit_test(a_round_named_while_ranks_pause_is_saved),
        cmocka_unit_test(a_rank_that_fails_ends_all_and_is_named),
        cmocka_unit_test(a_rank_that_never_comes_is_named_at_the_deadline),
        cmocka_unit_test(a_load_that_fails_is_told),
        cmocka_unit_test(a_save_that_fails_is_told),
        cmocka_unit_test(cancelling_ends_every_wait),
        cmocka_unit_test(closing_ends_a_reducer_that_waits_for_gradients),
        cmocka_unit_test(a_round_asks_for_no_memory),
        cmocka_unit_test(what_was_sent_and_how_long_it_took_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
