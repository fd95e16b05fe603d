/* SPDX-License-Identifier: Apache-2.0 */
/* Whole comparisons by a way that makes no runs: in which order it is asked, of
 * what, and what becomes of its answers. */
#define STATE struct fake *fake

#include "commands/measure/compare_runs.h"

#include "tests/lib/assert_fails.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

enum { MAXIMUM = 64 };

struct fake {
    struct compare_arguments_request request[MAXIMUM];
    unsigned count, replicas;
    struct compare_batch batch; /* as it is known before any run */
    int impossible;             /* the mode that cannot be, or -1 */
    int fails_from;             /* runs from this one on fail, or -1 */
    double first_loss;          /* of the run of one step */
    bool external, has_samples, has_loss; /* a caller's model */
    bool ends_early, ends_at_once;        /* by itself */
    double gbits[2]; /* measured by all-reduce, by ps and all its workers */
    int end_at;      /* this run ends the comparison, or -1 */
    enum failure_code end; /* with this */
};

static json_t *object(void) {
    return json_pack("{s:i,s:f,s:f,s:f,s:f,s:i,s:f,s:f,s:{s:f,s:f,s:f,s:f,s:f}"
                     "}",
                     "steps", 20, "steps_per_second", 10.0,
                     "examples_per_second", 640.0, "train_loss", 0.5,
                     "test_accuracy", 0.75, "parameters", 1000, "wire_bytes",
                     4000.0, "bytes_per_step", 16000.0, "seconds_per_step",
                     "input", 0.0, "compute", 0.05, "waiting_for_weights", 0.05,
                     "waiting_for_gradients", 0.0, "update", 0.001);
}

static enum status check(void *context,
                         const struct compare_arguments_request *request,
                         struct failure *why) {
    const struct fake *fake = context;
    return (int)request->spec.mode == fake->impossible
               ? status_fail(why, FAILURE_JOB_INVALID, "no such mode")
               : STATUS_OK;
}

static enum status make(void *context,
                        const struct compare_arguments_request *request,
                        struct compare_runs_outcome *outcome,
                        struct failure *why) {
    struct fake *fake = context;
    int now = (int)fake->count;
    assert_true(fake->count < MAXIMUM);
    fake->request[fake->count++] = *request;
    if (now == fake->end_at)
        return status_fail(why, fake->end, "worker 1 is gone");
    if (fake->fails_from >= 0 && now >= fake->fails_from) {
        outcome->code = STATUS_FAILED;
        snprintf(outcome->problem, sizeof outcome->problem,
                 "worker 0: the loss is nan at step 7");
        return STATUS_OK;
    }
    bool ring = request->spec.mode == COST_MODEL_RING;
    outcome->object = object();
    if (request->steps == 1)
        json_object_set_new(outcome->object, "train_loss",
                            json_real(fake->first_loss));
    if (fake->external) {
        json_object_set_new(outcome->object, "replicas", json_integer(2));
        if (!fake->ends_early)
            json_object_set_new(outcome->object, "steps",
                                json_integer((json_int_t)request->steps));
        if (!fake->has_samples)
            json_object_set_new(outcome->object, "examples_per_second",
                                json_real(0));
        if (!fake->has_loss)
            json_object_set_new(outcome->object, "train_loss", json_null());
        if (fake->ends_at_once)
            json_object_set_new(outcome->object, "steps_per_second",
                                json_null());
    }
    if (fake->replicas) {
        json_object_set_new(outcome->object, "replicas",
                            json_integer(fake->replicas));
        json_object_set_new(outcome->object, "micro_batch", json_integer(8));
        json_object_set_new(outcome->object, "accumulation", json_integer(3));
    }
    if (fake->gbits[0] > 0)
        json_object_set_new(outcome->object, "link_gbits",
                            json_real(fake->gbits[!ring]));
    if (fake->gbits[0] > 0 && !ring)
        json_object_set_new(outcome->object, "ps_link_gbits",
                            json_real(fake->gbits[1]));
    return STATUS_OK;
}

static int setup(void **state) {
    static struct fake fake;
    fake = (struct fake){.impossible = -1,
                         .fails_from = -1,
                         .end_at = -1,
                         .first_loss = 1,
                         .batch = {16, 2}};
    *state = &fake;
    return 0;
}

FIXTURE(setup, NULL);

/* 2 workers and 1 ps: 3 cases, 2 laps and that of equal time, and a step. */
static enum status compare(struct fake *fake, unsigned members, json_t **result,
                           struct failure *why) {
    static char *const words[] = {"python", "train.py", NULL};
    struct options flags;
    struct job job = {.model.type = fake->external ? JOB_EXTERNAL : JOB_MLP};
    struct compare_runs_runner runner = {check, make, fake};
    struct compare_runs_settings options = {.flags = &flags,
                                            .job = &job,
                                            .batch = fake->batch,
                                            .runner = &runner,
                                            .members = members,
                                            .local = !members};
    options_open(&flags, CLI_COMMAND_COMPARE);
    flags.job = fake->external ? NULL : "job.json";
    flags.command = fake->external ? words : NULL;
    flags.steps = 20;
    flags.repeats = 2;
    return compare_runs(result, &options, why);
}

static const json_t *case_at(const json_t *result, size_t index) {
    return json_array_get(json_object_get(result, "cases"), index);
}

TEST(cases_take_turns_and_then_use_the_test_set) {
    static const enum cost_model_mode modes[] = {COST_MODEL_RING, COST_MODEL_PS,
                                                 COST_MODEL_PS_ASYNC};
    json_t *result;
    assert_ok(compare(fake, 0, &result, &failure));
    assert_int_equal(fake->count, 10);
    assert_int_equal(fake->request[9].steps, 1);
    assert_int_equal(fake->request[9].batch.micro, 16);
    assert_int_equal(fake->request[9].batch.accumulation, 64);
    for (unsigned i = 0; i < 9; i++) {
        assert_int_equal(fake->request[i].spec.mode, modes[i % 3]);
        assert_int_equal(fake->request[i].tests, i >= 6);
        assert_int_equal(fake->request[i].steps, i < 6 && i % 3 == 2 ? 40 : 20);
    }
    assert_true(json_is_null(json_object_get(result, "members")));
    assert_true(json_is_integer(json_object_get(result, "cores")));
    assert_int_equal(
        json_integer_value(json_object_get(case_at(result, 1), "processes")),
        3);
    json_decref(result);
}

/* So a chief can tell its members whether to stay. */
TEST(each_run_knows_whether_others_follow) {
    json_t *result;
    assert_ok(compare(fake, 4, &result, &failure));
    for (unsigned i = 0; i < 10; i++) {
        assert_int_equal(fake->request[i].continues[true], i < 9);
        assert_int_equal(fake->request[i].continues[false], i < 9);
    }
    assert_int_equal(json_integer_value(json_object_get(result, "members")), 4);
    assert_true(json_is_null(json_object_get(result, "cores")));
    json_decref(result);
}

TEST(a_failure_of_the_last_remaining_case_ends_the_comparison) {
    json_t *result;
    fake->fails_from = 0;
    assert_error(compare(fake, 4, &result, &failure), FAILURE_COMPARE_FAILED);
    assert_null(result);
    assert_contains(failure.text, "the loss is nan");
    assert_int_equal(fake->count, 3);
    assert_true(fake->request[1].continues[false]);
    assert_false(fake->request[2].continues[false]);
    assert_true(fake->request[2].continues[true]);
}

TEST(a_failed_case_is_reported_and_not_repeated) {
    json_t *result;
    fake->fails_from = 5;
    assert_ok(compare(fake, 4, &result, &failure));
    /* The third case's last is not run, and fails_from meets the others' */
    assert_int_equal(fake->count, 8);
    assert_string_equal(
        json_string_value(json_object_get(case_at(result, 2), "error")),
        "worker 0: the loss is nan at step 7");
    assert_true(json_is_true(json_object_get(case_at(result, 2), "diverged")));
    assert_int_equal(
        json_integer_value(json_object_get(case_at(result, 2), "runs")), 1);
    json_decref(result);
}

TEST(an_impossible_case_is_never_run) {
    json_t *result;
    fake->impossible = COST_MODEL_RING;
    assert_ok(compare(fake, 4, &result, &failure));
    assert_int_equal(fake->count, 7);
    assert_string_equal(
        json_string_value(json_object_get(case_at(result, 0), "error")),
        "no such mode");
    assert_true(fake->request[5].continues[true]);
    assert_false(fake->request[6].continues[true]);
    json_decref(result);
}

TEST(a_lost_member_ends_the_comparison) {
    json_t *result;
    fake->end_at = 4;
    fake->end = FAILURE_PEER_LOST;
    assert_error(compare(fake, 4, &result, &failure), FAILURE_PEER_LOST);
    assert_null(result);
    assert_int_equal(fake->count, 5);
    assert_string_equal(failure.text, "worker 1 is gone");
}

TEST(a_signal_reports_the_progress) {
    json_t *result;
    fake->end_at = 4;
    fake->end = FAILURE_TERMINATED;
    assert_error(compare(fake, 4, &result, &failure), FAILURE_TERMINATED);
    assert_string_equal(failure.text, "ended by signal 15 after 4 of 10 runs");
}

/* 640 examples a second, 24 of each of 6 replicas in a step. */
TEST(the_first_run_sets_a_batch_that_depends_on_devices) {
    json_t *result;
    fake->batch = (struct compare_batch){0};
    fake->replicas = 6;
    assert_ok(compare(fake, 4, &result, &failure));
    assert_int_equal(fake->request[0].batch.micro, 0);
    for (unsigned i = 1; i < 9; i++) {
        assert_int_equal(fake->request[i].batch.micro, 8);
        assert_int_equal(fake->request[i].batch.accumulation, 3);
    }
    assert_int_equal(
        json_integer_value(json_object_get(result, "samples_per_step")), 24);
    const json_t *one = case_at(result, 0);
    assert_int_equal(json_integer_value(json_object_get(one, "replicas")), 6);
    json_decref(result);
}

/* Each run's is 0.5. */
TEST(a_loss_above_that_at_the_start_is_marked) {
    static const double starts[] = {1, 0.496, 0.49};
    json_t *result;
    for (int i = 0; i < 3; i++) {
        setup(state);
        fake = *state;
        fake->first_loss = starts[i];
        assert_ok(compare(fake, 4, &result, &failure));
        const json_t *mark = json_object_get(case_at(result, 2), "diverged");
        assert_true(i == 2 ? json_is_true(mark) : json_is_false(mark));
        assert_true(json_real_value(json_object_get(result, "first_loss")) ==
                    starts[i]);
        json_decref(result);
    }
}

/* 640 a second in 10 steps of 2 workers, or asynchronously in 10 of one. */
TEST(a_commands_samples_are_those_that_it_reports) {
    json_t *result;
    fake->batch = (struct compare_batch){0};
    fake->external = fake->has_samples = fake->has_loss = true;
    fake->first_loss = 0.34;
    assert_ok(compare(fake, 0, &result, &failure));
    assert_int_equal(fake->count, 10);
    assert_true(json_is_null(json_object_get(result, "job")));
    assert_string_equal(json_string_value(json_object_get(result, "command")),
                        "python train.py");
    assert_string_equal(json_string_value(json_object_get(result, "unit")),
                        "examples");
    /* 32 and 64 */
    assert_true(json_is_null(json_object_get(result, "samples_per_step")));
    assert_true(json_is_false(json_object_get(case_at(result, 0), "diverged")));
    assert_int_equal(json_integer_value(json_object_get(result, "rounds")), 20);
    json_decref(result);
    fake->count = 0;
    fake->first_loss = 0.33;
    assert_ok(compare(fake, 0, &result, &failure));
    assert_true(json_is_true(json_object_get(case_at(result, 0), "diverged")));
    json_decref(result);
}

TEST(without_samples_a_command_s_steps_are_counted) {
    json_t *result;
    fake->external = fake->has_loss = true;
    assert_ok(compare(fake, 0, &result, &failure));
    assert_string_equal(json_string_value(json_object_get(result, "unit")),
                        "steps");
    assert_true(json_is_null(json_object_get(result, "samples_per_step")));
    for (size_t c = 0; c < 3; c++) {
        const json_t *rate =
            json_object_get(case_at(result, c), "examples_per_second");
        assert_true(json_real_value(json_object_get(rate, "median")) ==
                    (c < 2 ? 20 : 10));
    }
    json_decref(result);
}

/* After 20 steps, of 40 asynchronous ones. */
TEST(a_command_that_ends_itself_has_no_number_of_rounds) {
    json_t *result;
    fake->external = fake->ends_early = true;
    assert_ok(compare(fake, 0, &result, &failure));
    assert_true(json_is_null(json_object_get(result, "rounds")));
    json_decref(result);
}

TEST(without_a_loss_no_run_compares_it) {
    json_t *result;
    fake->external = fake->has_samples = true;
    assert_ok(compare(fake, 0, &result, &failure));
    assert_int_equal(fake->count, 6);
    assert_true(json_is_null(json_object_get(result, "equal_seconds")));
    assert_true(json_is_null(json_object_get(result, "first_loss")));
    assert_true(json_is_null(json_object_get(case_at(result, 0), "diverged")));
    json_decref(result);
}

TEST(a_command_that_makes_no_step_fails) {
    json_t *result;
    fake->external = fake->ends_at_once = true;
    assert_error(compare(fake, 0, &result, &failure), FAILURE_COMPARE_FAILED);
    assert_contains(failure.text, "it ended before its first step");
}

/* The runs by ps have seen a tenth of what workers pass among themselves. */
TEST(measurements_identify_the_slower_link) {
    json_t *result;
    fake->gbits[0] = 1e-3;
    fake->gbits[1] = 1e-4;
    assert_ok(compare(fake, 4, &result, &failure));
    const json_t *by_ps = case_at(result, 1);
    assert_string_equal(json_string_value(json_object_get(by_ps, "limit")),
                        "ps link");
    assert_true(json_real_value(json_object_get(by_ps, "link_gbits")) == 1e-4);
    assert_true(json_real_value(json_object_get(by_ps, "worker_link_gbits")) ==
                1e-3);
    assert_true(json_real_value(
                    json_object_get(case_at(result, 0), "link_gbits")) == 1e-3);
    json_decref(result);
}
