/* SPDX-License-Identifier: Apache-2.0 */
/* What two trainers keep with the checkpoints of a synchronous run. */
#include "chief/snapshot/kept_states.h"

#include "tests/lib/run_fixture.h"
#include "tests/lib/test.h"

enum { TRAINERS = 2 };

static int setup(void **state) {
    run_fixture_setup(state, TRAINERS);
    struct run *run = &((struct run_fixture *)*state)->run;
    for (uint32_t r = 0; r < TRAINERS; r++) {
        run->trainers[r].from = 1;
        run->roster.slots[r].incarnation = r + 1;
    }
    return 0;
}

static int teardown(void **state) {
    kept_states_free(&((struct run_fixture *)*state)->run);
    return run_fixture_teardown(state);
}

static void report(struct run *run, uint32_t rank, uint64_t step) {
    Capstan__Kept__File file = CAPSTAN__KEPT__FILE__INIT;
    Capstan__Kept__File *files[] = {&file};
    Capstan__Kept kept = CAPSTAN__KEPT__INIT;
    file.name = rank ? "kept-1-state-1.bin" : "kept-0-state-1.bin";
    kept.step = step;
    kept.files = files;
    kept.n_files = 1;
    kept_states_receive(run, &run->roster.slots[rank], &kept);
}

static void expect_two_files(struct run *run, uint64_t step) {
    struct shard_info *files;
    uint32_t count;
    char name[64];
    assert_false(kept_states_awaited(run, step, name));
    assert_ok(kept_states_take(run, step, &files, &count, &failure));
    assert_int_equal(count, TRAINERS);
    free(files);
}

/* A planned one and the last, of a run that its trainers end. */
TEST_WITH(setup, teardown, two_checkpoints_of_a_step_have_the_same_states) {
    struct run *run = &((struct run_fixture *)*state)->run;
    char name[64];
    for (uint32_t r = 0; r < TRAINERS; r++)
        report(run, r, 0);
    for (uint64_t step = 10; step <= 20; step += 10) {
        report(run, 0, step);
        assert_true(kept_states_awaited(run, step, name));
        report(run, 1, step);
        expect_two_files(run, step);
        expect_two_files(run, step);
    }
    assert_true(kept_states_awaited(run, 10, name));
}

/* The chief before may have had it: a checkpoint without it would lack it
 * silently. */
TEST_WITH(setup, teardown, an_adopted_run_misses_what_a_dead_rank_has_kept) {
    struct run *run = &((struct run_fixture *)*state)->run;
    run->checkpoints.kept.adopted = 20;
    for (unsigned again = 0; again < 2; again++) {
        struct run_trainer *dead = &run->trainers[1];
        struct shard_info *files;
        uint32_t count;
        dead->absence.is_gone = !again;
        dead->from = again ? 21 : 0; /* one has joined in its place */
        report(run, 0, 20);
        assert_int_equal(kept_states_take(run, 20, &files, &count, &failure),
                         STATUS_FAILED);
        assert_int_equal(failure.code, FAILURE_CHECKPOINT_NOT_WRITTEN);
        report(run, 0, 30);
        assert_ok(kept_states_take(run, 30, &files, &count, &failure));
        free(files);
        report(run, 0, 20);
        report(run, 1, 20);
        expect_two_files(run, 20);
        kept_states_free(run);
    }
}
