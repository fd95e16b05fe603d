/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/exchange/allreduce/state_io.h"

#include "tests/lib/reducer_fixture.h"
#include "tests/lib/test.h"

#include <poll.h>

/* Saved by 3 ranks in stage 2, read by 2 in stage 0, and the other way. */
TEST(another_number_of_ranks_resumes_from_a_checkpoint) {
    static const uint32_t ranks[][2] = {{3, 2}, {2, 3}},
                          stages[][2] = {{2, 0}, {0, 2}};
    for (unsigned transport = 0; transport < 2; transport++) {
        struct reducer_fixture first, second;
        reducer_fixture_open_default(&first, ranks[transport][0]);
        first.job.zero.stage = stages[transport][0];
        reducer_fixture_run_and_compare(&first);
        reducer_fixture_open_default(&second, ranks[transport][1]);
        second.job.zero.stage = stages[transport][1];
        second.job.zero.reduce_bucket = 3000;
        second.broadcasts_first_weights = true;
        second.course.start = first.rounds;
        second.rounds = first.rounds + 2;
        struct reducer_model alone;
        reducer_model_open(&alone, &second);
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

TEST(only_planned_rounds_are_saved) {
    struct reducer_fixture fixture;
    reducer_fixture_open_default(&fixture, 2);
    fixture.rounds = 7;
    fixture.course.checkpoints = true;
    fixture.course.every_steps = 3;
    fixture.job.zero.stage = 1;
    reducer_fixture_run(&fixture);
    assert_int_equal(fixture.saved.saves, 3);
    reducer_fixture_close(&fixture);
}

TEST(a_failed_load_is_reported) {
    struct reducer_fixture fixture;
    reducer_fixture_open_default(&fixture, 2);
    fixture.timeout = 1;
    fixture.broadcasts_first_weights = true;
    fixture.loaded.fail_load = 2;
    reducer_fixture_begin(&fixture);
    reducer_fixture_end(&fixture);
    assert_true(reducer_failed(fixture.rank[0].reducer, &failure));
    assert_string_equal(failure.text, "the disk is gone");
    assert_true(reducer_failed(fixture.rank[1].reducer, &failure));
    assert_string_equal(failure.text, "rank 0 was lost");
    reducer_fixture_close(&fixture);
}

TEST(a_failed_save_is_reported) {
    struct reducer_fixture fixture;
    reducer_fixture_open_default(&fixture, 1);
    fixture.course.checkpoints = true;
    fixture.saved.fail_save = 2;
    reducer_fixture_begin(&fixture);
    reducer_fixture_end(&fixture);
    struct pollfd readable = {reducer_descriptor(fixture.rank[0].reducer),
                              POLLIN, 0};
    assert_int_equal(poll(&readable, 1, 60000), 1);
    assert_true(reducer_failed(fixture.rank[0].reducer, &failure));
    assert_string_equal(failure.text, "the disk is full");
    reducer_fixture_close(&fixture);
}
