/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/exchange/allreduce/keeping.h"

#include "tests/lib/reducer_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <string.h>

/* Saved by 3 ranks in stage 2, read by 2 in stage 0, and the other way. */
static void another_number_of_ranks_goes_on_from_what_was_saved(void **state) {
    static const uint32_t ranks[][2] = {{3, 2}, {2, 3}},
                          stages[][2] = {{2, 0}, {0, 2}};
    (void)state;
    for (unsigned way = 0; way < 2; way++) {
        struct reducer_play first, second;
        reducer_play_open_usual(&first, ranks[way][0]);
        first.job.zero.stage = stages[way][0];
        reducer_play_run_and_compare(&first);
        reducer_play_open_usual(&second, ranks[way][1]);
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
        reducer_play_expect_weights(&second, &alone);
        reducer_model_close(&alone);
        reducer_play_close(&first);
        reducer_play_close(&second);
    }
}

static void planned_rounds_are_saved_and_no_others(void **state) {
    struct reducer_play play;
    (void)state;
    reducer_play_open_usual(&play, 2);
    play.rounds = 7;
    play.course.checkpoints = true;
    play.course.every_steps = 3;
    play.job.zero.stage = 1;
    reducer_play_run(&play);
    assert_int_equal(play.saved.saves, 3);
    reducer_play_close(&play);
}

static void a_load_that_fails_is_told(void **state) {
    struct reducer_play play;
    struct failure why;
    (void)state;
    reducer_play_open_usual(&play, 2);
    play.timeout = 1;
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
    reducer_play_open_usual(&play, 1);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_number_of_ranks_goes_on_from_what_was_saved),
        cmocka_unit_test(planned_rounds_are_saved_and_no_others),
        cmocka_unit_test(a_load_that_fails_is_told),
        cmocka_unit_test(a_save_that_fails_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
