/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of all-reduce, a thread each: they end in the bits that one process
 * makes of all gradients (tests/lib/reducer_fixture.h), or all of them with one
 * reason. */
#include "worker/exchange/allreduce/reducer.h"

#include "tests/lib/allocations.h"
#include "tests/lib/reducer_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>

/* Notes sums that began while parameters were still to be announced. */
static void note_early(void *context, uint32_t rank, const char *call,
                       size_t count) {
    struct reducer_play *play = context;
    (void)count;
    if (rank == 1 && !strcmp(call, "reduce_scatter"))
        play->note += atomic_load(&play->rank[1].left) > 0;
}

static void with_overlap_gradients_leave_while_others_are_computed(
    void **state) {
    struct reducer_play play;
    (void)state;
    reducer_play_open_usual(&play, 2);
    play.in_steps = true;
    play.job.zero.reduce_bucket = 1;
    play.meeting.called = note_early;
    play.meeting.context = &play;
    reducer_play_run_and_compare(&play);
    assert_true(play.note > 0);
    reducer_play_close(&play);
}

static void without_overlap_they_leave_when_all_are_there(void **state) {
    struct reducer_play play;
    (void)state;
    reducer_play_open_usual(&play, 2);
    play.job.zero.reduce_bucket = 1;
    play.job.zero.overlap = false;
    play.meeting.called = note_early;
    play.meeting.context = &play;
    reducer_play_run_and_compare(&play);
    assert_int_equal(play.note, 0);
    reducer_play_close(&play);
}

/* By a norm that no gradient reaches: the bits are those of no clipping. */
static void with_clipping_each_bucket_is_updated_once(void **state) {
    (void)state;
    for (uint32_t stage = 0; stage <= 1; stage++) {
        struct reducer_play play;
        reducer_play_open_usual(&play, 2);
        play.job.zero.stage = stage;
        play.job.zero.reduce_bucket = 5000;
        play.job.gradient_clipping = 1e9;
        reducer_play_run_and_compare(&play);
        reducer_play_close(&play);
    }
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
        reducer_play_open_usual(&play, 3);
        play.job.zero.stage = stage;
        play.rounds = 5;
        play.pause = name_next;
        reducer_play_run(&play);
        assert_int_equal(play.saved.saves, 1);
        assert_int_equal(play.saved.round, 3);
        reducer_play_open_usual(&until, 3);
        struct reducer_model alone;
        reducer_model_open(&alone, &until);
        reducer_play_alone(&until, &alone);
        reducer_play_expect_model(&play, &play.saved, &alone);
        reducer_model_close(&alone);
        reducer_play_close(&until);
        reducer_play_close(&play);
    }
}

/* The rank of the note hears early that no round follows. */
static void say_so_early(void *context, uint32_t rank, const char *call,
                         size_t count) {
    struct reducer_play *play = context;
    (void)count;
    if (rank == play->note && !strcmp(call, "reduce_scatter"))
        reducer_save_now(play->rank[rank].reducer);
}

/* Alone, and right after one that stands in the plan: whether a rank hears
 * before or after that one that no round follows, it does what the others do,
 * and waits for nobody to allow another. */
static void what_there_is_at_the_end_is_saved_by_all(void **state) {
    (void)state;
    for (unsigned way = 0; way < 4; way++) {
        struct reducer_play play;
        struct failure why;
        unsigned planned = way % 2, early = way < 2 ? 2 : 0;
        int allowed;
        reducer_play_open_usual(&play, 3);
        play.note = early;
        play.rounds = 1;
        play.job.zero.stage = 1;
        play.job.zero.overlap = false;
        play.job.zero.reduce_bucket = 5000;
        play.course.checkpoints = planned;
        play.meeting.called = say_so_early;
        play.meeting.context = &play;
        reducer_play_begin(&play);
        reducer_play_end(&play);
        for (uint32_t r = 0; r < play.ranks; r++)
            reducer_save_now(play.rank[r].reducer);
        for (unsigned saves = 0; saves < 1 + planned; saves++)
            reducer_play_await(&play.handed_over);
        assert_int_equal(play.saved.round, play.rounds);
        sem_getvalue(&play.over, &allowed);
        assert_false(early == 0 && allowed);
        struct reducer_model alone;
        reducer_model_open(&alone, &play);
        reducer_play_alone(&play, &alone);
        reducer_play_expect_model(&play, &play.saved, &alone);
        reducer_model_close(&alone);
        for (uint32_t r = 0; r < play.ranks; r++)
            assert_false(reducer_failed(play.rank[r].reducer, &why));
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
        reducer_play_open_usual(&play, 3);
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
    reducer_play_open_usual(&play, 3);
    play.timeout = 1;
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

/* Rank 1 hangs in a collective, so rank 0's two threads wait too. */
static void cancelling_ends_every_wait(void **state) {
    (void)state;
    for (uint32_t call = 0; call < 4; call++) {
        struct reducer_play play;
        struct failure why;
        reducer_play_open_usual(&play, 2);
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
    reducer_play_open_usual(&play, 1);
    play.rounds = 0;
    reducer_play_begin(&play);
    reducer_play_end(&play);
    reducer_play_close(&play);
    assert_null(play.rank[0].reducer);
}

static void without_a_descriptor_it_is_not_opened(void **state) {
    struct reducer_play play;
    struct arena arena;
    struct reducer *reducer;
    struct rlimit before, none;
    struct failure why;
    (void)state;
    reducer_play_open_usual(&play, 1);
    assert_int_equal(arena_open(&arena, play.layout, false, &why), STATUS_OK);
    struct reducer_settings settings = {.job = &play.job,
                                        .layout = play.layout,
                                        .rounds = &play.course,
                                        .group = {.size = 1},
                                        .weights = arena.weights,
                                        .gradients = arena.gradients,
                                        .offsets = arena.offsets};
    getrlimit(RLIMIT_NOFILE, &before);
    none = before;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &none);
    enum status status = reducer_open(&reducer, &settings, &why);
    setrlimit(RLIMIT_NOFILE, &before);
    assert_int_equal(status, STATUS_RETRY);
    assert_null(reducer);
    assert_non_null(strstr(why.text, "Too many open files"));
    arena_close(&arena);
    reducer_play_close(&play);
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
        reducer_play_open_usual(&play, 2);
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
    reducer_play_open(&play, 2, elements, 1, &reducer_fixture_sgd, 0.1);
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
        cmocka_unit_test(
            with_overlap_gradients_leave_while_others_are_computed),
        cmocka_unit_test(without_overlap_they_leave_when_all_are_there),
        cmocka_unit_test(with_clipping_each_bucket_is_updated_once),
        cmocka_unit_test(a_round_named_while_ranks_pause_is_saved),
        cmocka_unit_test(what_there_is_at_the_end_is_saved_by_all),
        cmocka_unit_test(a_rank_that_fails_ends_all_and_is_named),
        cmocka_unit_test(a_rank_that_never_comes_is_named_at_the_deadline),
        cmocka_unit_test(cancelling_ends_every_wait),
        cmocka_unit_test(closing_ends_a_reducer_that_waits_for_gradients),
        cmocka_unit_test(without_a_descriptor_it_is_not_opened),
        cmocka_unit_test(a_round_asks_for_no_memory),
        cmocka_unit_test(what_was_sent_and_how_long_it_took_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
