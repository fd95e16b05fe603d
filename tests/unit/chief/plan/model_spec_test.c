/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/plan/model_spec.h"

#include "chief/control/membership.h"
#include "core/base/time.h"
#include "tests/lib/run_fixture.h"
#include "tests/lib/test.h"

#include <signal.h>

enum { WORKERS = 2 };

/* Two workers that are here. */
static int setup(void **state) {
    run_fixture_setup(state, WORKERS);
    struct run_fixture *fixture = *state;
    fixture->job.micro_batch = 1;
    for (uint32_t i = 0; i < WORKERS; i++)
        fixture->run.roster.slots[i].state = ROSTER_HELD;
    return 0;
}

FIXTURE(setup, run_fixture_teardown);

/* Worker RANK declares a matrix, as DIGEST has it (0: rank 0's), and SAMPLES to
 * train on. */
static void declare(struct run *run, uint32_t rank, uint64_t digest,
                    uint64_t samples) {
    uint32_t dims[] = {2, 3};
    Capstan__Parameter matrix = CAPSTAN__PARAMETER__INIT, *list[] = {&matrix};
    Capstan__ModelSpec model_spec = CAPSTAN__MODEL_SPEC__INIT;
    matrix.name = "matrix";
    matrix.n_dims = 2;
    matrix.dims = dims;
    model_spec.n_parameters = rank == 0;
    model_spec.parameters = list;
    model_spec.digest = digest ? digest : run->plan.digest;
    model_spec.train_samples = samples;
    model_spec_receive(run, &run->roster.slots[rank], &model_spec);
}

/* What rank 0 declares, as its own digest has it. */
static void declare_first(struct run *run) {
    struct parameter matrix = {.name = "matrix", .num_dims = 2, .dims = {2, 3}};
    struct layout *layout;
    assert_ok(layout_build(&layout, &matrix, 1, &failure));
    declare(run, 0, layout_digest(layout), 600);
    layout_free(&layout);
}

static void expect_end(const struct run *run, enum failure_code code,
                       const char *text) {
    assert_int_equal(run->phase, RUN_STOPPING);
    assert_int_equal(run->code, code);
    assert_contains(run->text, text);
}

TEST(the_spec_is_complete_once_all_members_have_declared) {
    struct run *run = &((struct run_fixture *)*state)->run;
    declare_first(run);
    assert_false(model_spec_is_complete(run));
    declare(run, 1, 0, 600);
    assert_true(model_spec_is_complete(run));
    run->roster.slots[1].state = ROSTER_VACATED;
    assert_false(model_spec_is_complete(run));
    assert_int_equal(run->phase, RUN_JOINING);
    assert_int_equal(run->plan.layout->elements, 6);
}

TEST(other_parameters_than_rank_0s_end_the_run) {
    struct run *run = &((struct run_fixture *)*state)->run;
    declare_first(run);
    declare(run, 1, run->plan.digest + 1, 600);
    expect_end(run, FAILURE_MODEL_MISMATCH,
               "worker 1 on host h1 has other parameters than rank 0");
}

/* Who came first is compared once rank 0 has spoken. */
TEST(other_data_than_rank_0s_end_the_run_in_any_order) {
    struct run *run = &((struct run_fixture *)*state)->run;
    declare(run, 1, 1, 599);
    assert_int_equal(run->phase, RUN_JOINING);
    declare_first(run);
    expect_end(run, FAILURE_MODEL_MISMATCH, "worker 1 on host h1");
}

TEST(differing_data_are_counted) {
    struct run *run = &((struct run_fixture *)*state)->run;
    declare_first(run);
    declare(run, 1, 0, 599);
    expect_end(run, FAILURE_MODEL_MISMATCH,
               "worker 1 on host h1 reads 599 training and 0 test "
               "samples, rank 0 reads 600 and 0");
}

/* As a rank of another release may have. */
TEST(an_optimizer_that_is_none_of_these_ends_the_run) {
    struct run *run = &((struct run_fixture *)*state)->run;
    Capstan__OptimizerGroup unknown = CAPSTAN__OPTIMIZER_GROUP__INIT,
                            *groups[] = {&unknown};
    Capstan__ModelSpec model_spec = CAPSTAN__MODEL_SPEC__INIT;
    declare_first(run);
    unknown.type = UINT32_MAX;
    model_spec.n_groups = 1;
    model_spec.groups = groups;
    model_spec.digest = run->plan.digest;
    model_spec_receive(run, &run->roster.slots[1], &model_spec);
    expect_end(run, FAILURE_MODEL_MISMATCH,
               "worker 1 has the optimizer None with 1 groups, rank 0 SGD");
}

TEST(an_invalid_model_ends_the_run) {
    struct run *run = &((struct run_fixture *)*state)->run;
    Capstan__ModelSpec nothing = CAPSTAN__MODEL_SPEC__INIT;
    model_spec_receive(run, &run->roster.slots[0], &nothing);
    expect_end(run, FAILURE_MODEL_INVALID, "the parameters of rank 0: ");
}

/* Elsewhere the slot waits for who is started again. */
TEST(a_death_before_the_plan_ends_a_launched_run) {
    struct run *run = &((struct run_fixture *)*state)->run;
    Capstan__ExitReport ended = CAPSTAN__EXIT_REPORT__INIT;
    ended.wait_status = SIGKILL;
    membership_receive_exit(run, &run->roster.slots[0], &ended);
    assert_int_equal(run->phase, RUN_JOINING);
    run->no_restart = true;
    membership_receive_exit(run, &run->roster.slots[1], &ended);
    assert_int_equal(run->phase, RUN_STOPPING);
    assert_int_equal(run->code, FAILURE_PEER_LOST);
    assert_string_equal(run->text,
                        "worker 1 on host h1 (pid 0) was killed by signal 9 "
                        "(Killed) before the first step; start the same "
                        "command again");
}
