/* SPDX-License-Identifier: Apache-2.0 */
/* Resuming: what may differ from the checkpoint and what not. */
#include "chief/snapshot/checkpoint_policy.h"

#include "core/tensor/initializer.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/run_fixture.h"
#include "tests/lib/test.h"

static char folder[PATH_MAX];

/* A checkpoint with two tables in 5 partitions, and a job like it. */
static int setup(void **state) {
    struct manifest manifest;
    run_fixture_setup(state, 1);
    struct run_fixture *fixture = *state;
    checkpoint_fixture_folder(folder);
    checkpoint_fixture_manifest(&manifest, 7, 1);
    checkpoint_fixture_tables(&manifest, 2, 5);
    fixture->job.seed = manifest.seed;
    fixture->job.optimizer.type = OPTIMIZER_ADAM;
    fixture->job.checkpoint.dir = folder;
    checkpoint_fixture_write_manifest(folder, &manifest);
    checkpoint_fixture_manifest(&manifest, 7, 1);
    fixture->run.plan.layout = manifest.layout;
    manifest.layout = NULL;
    manifest_clear(&manifest);
    return 0;
}

static int teardown(void **state) {
    struct run_fixture *fixture = *state;
    manifest_clear(&fixture->run.plan.restored);
    checkpoint_fixture_remove(folder);
    return run_fixture_teardown(state);
}

FIXTURE(setup, teardown);

/* Resumes with COUNT of TABLES. */
static enum status resume(struct run *run, const struct table *tables,
                          uint32_t count, struct failure *why) {
    struct layout *layout = run->plan.layout;
    free(layout->tables);
    free(layout->stacked);
    free(layout->first_stacked);
    layout->tables = NULL;
    layout->num_tables = layout->num_stacks = layout->num_partitions = 0;
    manifest_clear(&run->plan.restored);
    run->plan.has_restored = false;
    assert_int_equal(
        layout_add_tables(layout, tables, count, LAYOUT_PARTITIONS, why),
        STATUS_OK);
    run->plan.digest = layout_digest(layout);
    return checkpoint_policy_find_start(run, why);
}

static const struct table own[] = {
    {.name = "e1", .dim = 3, .init_bound = 0.25f},
    {.name = "e2", .dim = 3, .init_bound = 0.25f, .max_rows = 1 << 20},
    {.name = "e3", .dim = 3}};

TEST(the_partitions_are_the_checkpoints) {
    struct run *run = &((struct run_fixture *)*state)->run;
    assert_ok(resume(run, own, 2, &failure));
    assert_true(run->plan.has_restored);
    assert_int_equal(run->plan.restored.step, 7);
    assert_int_equal(run->plan.layout->num_partitions, 5);
}

TEST(a_run_may_resume_with_another_limit_of_rows) {
    struct run *run = &((struct run_fixture *)*state)->run;
    struct table tables[] = {own[0], own[1]};
    tables[1].max_rows = 1 << 21;
    assert_ok(resume(run, tables, 2, &failure));
    assert_int_equal(run->plan.layout->tables[1].max_rows, 1 << 21);
}

TEST(the_first_difference_of_tables_is_named) {
    struct run *run = &((struct run_fixture *)*state)->run;
    struct {
        const char *text;
        struct table table; /* in place of "e2" */
        uint32_t count;
    } cases[] = {
        {"table \"e2\" has dim 3 there, 4 here", own[1], 2},
        {"features.e2.init_range", own[1], 2},
        {"table \"e2\" has admit 0 there, 3 here", own[1], 2},
        {"table \"e2\" has expire 0 there, 900 here", own[1], 2},
        {"table 1 is \"e2\" there, \"e3\" here", own[2], 2},
        {"table \"e2\" is there only", own[1], 1},
        {"table \"e3\" is not there", own[1], 3},
    };
    cases[0].table.dim = 4;
    cases[1].table.init_bound = 0.5f;
    cases[2].table.admit = 3;
    cases[3].table.expire = 900;
    run->job->features = (char *)"{\"e2\": {\"type\": \"embedding\"}}";
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct table tables[] = {own[0], cases[i].table, own[2]};
        assert_error(resume(run, tables, cases[i].count, &failure),
                     FAILURE_CHECKPOINT_INCOMPATIBLE);
        assert_contains(failure.text, cases[i].text);
    }
}

TEST(the_first_parameter_that_differs_is_named) {
    struct run *run = &((struct run_fixture *)*state)->run;
    struct parameter *bias = &run->plan.layout->parameters[1], whole = *bias;
    static const char *const says[] = {
        "tensor number 1 is \"layer0.bias\" [300] float32 trained of group 0 "
        "there, \"scale\" [300] float32",
        "tensor number 1 is \"layer0.bias\" [300] float32 trained of group 0 "
        "there, \"layer0.bias\" [301] float32",
        "trained of group 0 here, with other initial values: ",
        "tensor number 2 is \"layer1.weight\" [100, 300] float32 trained of "
        "group 0 there, none here: ",
    };
    for (int i = 0; i < 4; i++) {
        *bias = whole;
        if (i == 0)
            strcpy(bias->name, "scale");
        bias->dims[0] += i == 1;
        bias->init_bound += i == 2;
        run->plan.layout->num_parameters -= i == 3;
        assert_error(resume(run, own, 2, &failure),
                     FAILURE_CHECKPOINT_INCOMPATIBLE);
        assert_contains(failure.text, says[i]);
    }
    run->plan.layout->num_parameters++;
}

/* By the key that gave the table its initial values. */
TEST(other_initial_rows_are_named_by_their_key) {
    static const char *const cases[][2] = {
        {"{\"e2\": {\"init\": \"ones\"}}", "features.e2.init has"},
        {"{\"e2\": {\"dim\": 3}}", "features.e2.init_range has"},
        {NULL, "init_range of table \"e2\" has"}};
    struct run *run = &((struct run_fixture *)*state)->run;
    for (int i = 0; i < 3; i++) {
        struct table tables[] = {own[0], own[1]};
        tables[1].init_kind = INITIALIZER_NORMAL;
        run->job->features = (char *)cases[i][0];
        assert_error(resume(run, tables, 2, &failure),
                     FAILURE_CHECKPOINT_INCOMPATIBLE);
        assert_contains(failure.text, cases[i][1]);
    }
}

TEST(a_job_without_the_tables_does_not_resume) {
    struct run *run = &((struct run_fixture *)*state)->run;
    assert_error(resume(run, own, 0, &failure),
                 FAILURE_CHECKPOINT_INCOMPATIBLE);
    assert_contains(failure.text, "\"e1\" is there only");
}

/* Deltas have the checkpoint as their base, if it is none itself. */
TEST(a_resumed_run_continues_its_checkpoint_by_the_same_seed_and_state) {
    struct run *run = &((struct run_fixture *)*state)->run;
    assert_ok(resume(run, own, 2, &failure));
    assert_true(run->checkpoints.has_base);
    assert_int_equal(run->checkpoints.base.step, 7);
    assert_true(run->checkpoints.base.hash == run->plan.restored.hash);
    run->job->optimizer.amsgrad = true;
    assert_error(resume(run, own, 2, &failure),
                 FAILURE_CHECKPOINT_INCOMPATIBLE);
    assert_contains(failure.text, "the job says Adam with 3: ");
    run->job->optimizer.amsgrad = false;
    run->job->seed++;
    assert_error(resume(run, own, 2, &failure),
                 FAILURE_CHECKPOINT_INCOMPATIBLE);
    assert_contains(failure.text, "has seed ");
}
