/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct metrics_fixture *measured

#include "chief/report/metrics.h"

#include "chief/shutdown.h"
#include "core/base/time.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/metrics_fixture.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char folder[] = "/tmp/measures-test-XXXXXX";

static void shows(struct metrics_fixture *measured, double seconds,
                  double loss) {
    metrics_show(&measured->run, (int64_t)(seconds * (double)TIME_S));
    assert_true(fabs(measured->run.metrics.shown_loss - loss) <= 1e-12);
    assert_true(fabs(measured->run.metrics.shown_rate - 2) <= 1e-12);
}

/* After the beat of STEPS and LOSS_SUM it shows LOSS at SECONDS. */
static void heartbeat_and_show(struct metrics_fixture *measured, uint64_t steps,
                               double loss_sum, double seconds, double loss) {
    metrics_fixture_heartbeat(measured, steps, loss_sum);
    shows(measured, seconds, loss);
}

TEST_WITH(metrics_fixture_setup, metrics_fixture_teardown,
          the_shown_loss_includes_the_newest_heartbeat) {
    heartbeat_and_show(measured, 100, 200, 10, 2);
    heartbeat_and_show(measured, 200, 250, 10.5, 1.25);
    heartbeat_and_show(measured, 300, 280, 10.9, 280.0 / 300);
}

TEST_WITH(metrics_fixture_setup, metrics_fixture_teardown,
          samples_shown_a_second_ago_no_longer_count) {
    heartbeat_and_show(measured, 100, 200, 10, 2);
    heartbeat_and_show(measured, 200, 250, 11, 0.5);
    heartbeat_and_show(measured, 300, 280, 11.5, 0.4);
    shows(measured, 12, 0.3);
}

TEST_WITH(metrics_fixture_setup, metrics_fixture_teardown,
          without_a_new_sample_the_last_loss_is_kept) {
    heartbeat_and_show(measured, 100, 200, 10, 2);
    shows(measured, 11, 2);
    shows(measured, 12, 2);
    heartbeat_and_show(measured, 200, 250, 12.1, 0.5);
}

/* What the chief tells at NOW of METRIC. */
static double sample_at(struct metrics_fixture *measured, int64_t now,
                        enum metric metric) {
    struct health *health = health_open("chief", HEALTH_NONE);
    struct health_report *report = health_begin(health, now);
    metrics_add_samples(&measured->run, report, now);
    double value = health_sample(report, metric);
    health_end(health);
    health_close(&health);
    return value;
}

/* Also while one after the other fails. */
TEST_WITH(metrics_fixture_setup, metrics_fixture_teardown,
          a_checkpoint_that_is_asked_for_makes_none_younger) {
    struct run *run = &measured->run;
    struct layout layout = {.elements = 1};
    int64_t now = time_now() + 100 * TIME_S;
    run->plan.layout = &layout;
    measured->job.checkpoint.dir = folder;
    run_enter_phase(run, RUN_TRAINING);
    run->checkpoints.saved_at = now - 10 * TIME_S; /* its request */
    double age = sample_at(measured, now, METRIC_CHECKPOINT_AGE);
    assert_true(age > 99 && age <= 100);
    run->checkpoints.complete_at = now - 5 * TIME_S;
    assert_true(sample_at(measured, now, METRIC_CHECKPOINT_AGE) == 5);
}

static struct metric_point taken[64];
static unsigned num_taken;

static void take_point(void *self, const struct metric_point *point) {
    (void)self;
    assert_in_range(num_taken, 0, sizeof taken / sizeof *taken - 1);
    taken[num_taken++] = *point;
}

/* "10:2.5 20:2 ": METRIC of the points so far, until the next call. */
static const char *taken_text(enum metric metric) {
    static char text[1024];
    int length = 0;
    text[0] = '\0';
    for (unsigned i = 0; i < num_taken; i++)
        if (isfinite(taken[i].values[metric]))
            length += snprintf(text + length, sizeof text - (size_t)length,
                               "%llu:%g ", (unsigned long long)taken[i].step,
                               taken[i].values[metric]);
    return text;
}

/* A second trainer, and an outlet. */
static void adds_trainer(struct metrics_fixture *measured) {
    num_taken = 0;
    measured->run.metrics.outlets.list[0].write = take_point;
    measured->run.roster.num_ranks = 2;
    measured->run.roster.slots[1] =
        (struct roster_slot){.state = ROSTER_HELD, .rank = 1};
    measured->trainers[0].from = measured->trainers[1].from = 1;
    metrics_begin(&measured->run, measured->run.plan.schedule.start);
}

/* Trainer RANK has reached STEP: 4 samples of LOSS each since its last; NAN:
 * none of a finite loss. */
static void reaches(struct metrics_fixture *measured, uint32_t rank,
                    uint64_t step, double loss) {
    uint64_t samples = isnan(loss) ? 0 : 4;
    double sum = isnan(loss) ? 0 : 4 * loss, seconds = (double)step / 2;
    Capstan__Points points = CAPSTAN__POINTS__INIT;
    points.n_step = points.n_loss_sum = points.n_samples = points.n_training_s =
        1;
    points.step = &step;
    points.loss_sum = &sum;
    points.samples = &samples;
    points.training_s = &seconds;
    metrics_receive_points(&measured->run, &measured->run.roster.slots[rank],
                           &points);
    metrics_show(&measured->run, 0);
}

static void expect_losses(const char *expected) {
    assert_string_equal(taken_text(METRIC_TRAIN_LOSS), expected);
}

TEST_WITH(metrics_fixture_setup, metrics_fixture_teardown,
          a_loss_that_is_none_takes_the_place_of_the_last) {
    struct layout layout = {.elements = 1};
    measured->run.plan.layout = &layout;
    measured->trainers[0].from = 1;
    metrics_begin(&measured->run, measured->run.plan.schedule.start);
    reaches(measured, 0, 10, 2);
    assert_true(sample_at(measured, time_now(), METRIC_TRAIN_LOSS) == 2);
    reaches(measured, 0, 20, NAN);
    assert_true(isinf(sample_at(measured, time_now(), METRIC_TRAIN_LOSS)));
    measured->job.model.type = JOB_EXTERNAL; /* which need not tell any */
    reaches(measured, 0, 30, NAN);
    assert_true(isnan(sample_at(measured, time_now(), METRIC_TRAIN_LOSS)));
}

TEST_WITH(metrics_fixture_setup, metrics_fixture_teardown,
          a_run_that_was_over_tells_of_no_rows_again) {
    struct table table = {.name = "t", .dim = 1};
    struct layout layout = {.elements = 1, .tables = &table, .num_tables = 1};
    struct run *run = &measured->run;
    run->plan.layout = &layout;
    run->plan.schedule.start = run->plan.schedule.total;
    metrics_begin(run, run->plan.schedule.start);
    metrics_end(run);
    assert_int_equal(run->metrics.latest.unix_ms, 0);
    run->plan.schedule.start = 0;
    metrics_end(run);
    assert_int_not_equal(run->metrics.latest.unix_ms, 0);
}

TEST(a_metric_is_the_mean_over_trainers_of_its_steps) {
    adds_trainer(measured);
    reaches(measured, 0, 10, 2);
    expect_losses("");
    reaches(measured, 0, 20, 1);
    reaches(measured, 1, 10, 3);
    expect_losses("10:2.5 ");
    reaches(measured, 1, 20, 1);
    expect_losses("10:2.5 20:1 ");
}

/* Its trainers have trained for 50 s before. */
TEST(a_run_that_is_adopted_has_the_rates_of_its_steps_since) {
    adds_trainer(measured);
    metrics_fixture_heartbeat(measured, 100, 1);
    metrics_begin(&measured->run, 100);
    reaches(measured, 0, 100, 9);
    for (uint32_t r = 0; r < 2; r++)
        reaches(measured, r, 110, 2);
    expect_losses("110:2 ");
    assert_string_equal(taken_text(METRIC_STEPS_PER_SECOND), "110:2 ");
    assert_string_equal(taken_text(METRIC_EXAMPLES_PER_SECOND), "110:1.6 ");
}

static void tells_use(struct metrics_fixture *measured, uint32_t rank,
                      uint32_t gpus, double percent) {
    Capstan__Heartbeat heartbeat = CAPSTAN__HEARTBEAT__INIT;
    heartbeat.gpus = gpus;
    heartbeat.gpu_utilization = percent;
    measured->trainers[rank].in_view = true;
    metrics_receive_heartbeat(&measured->run, &measured->run.roster.slots[rank],
                              &heartbeat, 0);
}

TEST(the_use_of_gpus_is_the_mean_and_the_least_of_the_trainers_in_the_loop) {
    adds_trainer(measured);
    reaches(measured, 0, 10, 2);
    reaches(measured, 1, 10, 2);
    assert_string_equal(taken_text(METRIC_GPU_UTILIZATION), "");
    tells_use(measured, 0, 1, 90);
    reaches(measured, 0, 20, 1);
    reaches(measured, 1, 20, 1);
    tells_use(measured, 1, 2, 0);
    reaches(measured, 0, 30, 1);
    reaches(measured, 1, 30, 1);
    roster_remove(&measured->run.roster.slots[1]);
    reaches(measured, 0, 40, 1);
    tells_use(measured, 0, 0, 0);
    reaches(measured, 0, 50, 1);
    assert_string_equal(taken_text(METRIC_GPU_UTILIZATION),
                        "20:90 30:45 40:90 ");
    assert_string_equal(taken_text(METRIC_GPU_UTILIZATION_LEAST),
                        "20:90 30:0 40:90 ");
}

TEST(dead_and_departed_trainers_are_not_waited_for) {
    adds_trainer(measured);
    reaches(measured, 0, 10, 2);
    roster_remove(&measured->run.roster.slots[1]);
    reaches(measured, 0, 20, 1);
    expect_losses("10:2 20:1 ");
    measured->run.roster.slots[1].state = ROSTER_HELD;
    measured->trainers[1].finished = true;
    reaches(measured, 0, 30, 1);
    expect_losses("10:2 20:1 30:1 ");
}

/* A joiner takes part from a round on; before that nobody waits for it. */
TEST(a_returning_trainer_is_waited_for_from_its_first_step) {
    adds_trainer(measured);
    measured->trainers[1].from = 15;
    reaches(measured, 0, 10, 2);
    reaches(measured, 0, 20, 2);
    expect_losses("10:2 ");
    reaches(measured, 1, 20, 4);
    expect_losses("10:2 20:3 ");
}

TEST(the_last_step_has_a_metric) {
    measured->run.plan.schedule.total = 13;
    adds_trainer(measured);
    for (uint32_t rank = 0; rank < 2; rank++) {
        reaches(measured, rank, 10, 2);
        reaches(measured, rank, 13, 1);
    }
    expect_losses("10:2 13:1 ");
}

TEST(steps_outside_the_run_are_ignored) {
    measured->run.plan.schedule.start = 40;
    adds_trainer(measured);
    for (uint32_t rank = 0; rank < 2; rank++) {
        reaches(measured, rank, 40, 2);
        reaches(measured, rank, 1001, 2);
        reaches(measured, rank, UINT64_MAX, 2);
    }
    expect_losses("");
}

/* Its heartbeat may be lost with a connection; its end is sent again. */
TEST_WITH(metrics_fixture_setup, metrics_fixture_teardown,
          a_trainer_that_ends_early_has_reached_its_last_step) {
    struct run *run = &((struct metrics_fixture *)measured)->run;
    Capstan__Finished finished = CAPSTAN__FINISHED__INIT;
    run->phase = RUN_FINISHING;
    metrics_fixture_heartbeat(measured, 2, 0);
    finished.clock = 3;
    finished.early = true;
    shutdown_receive_finished(run, &run->roster.slots[0], &finished);
    assert_int_equal(run_step(run), 3);
}

/* Trainer 1 stands still while 0 goes on: room ends some time. */
TEST(a_trainer_far_behind_counts_toward_a_later_metric) {
    measured->job.steps_per_print = 1;
    measured->run.plan.schedule.total = 2 * RUN_POINTS;
    measured->run.plan.schedule.epoch_batches =
        measured->run.plan.schedule.total;
    adds_trainer(measured);
    for (uint64_t step = 1; step <= RUN_POINTS + 2; step++)
        reaches(measured, 0, step, 2);
    expect_losses("1:2 2:2 ");
    reaches(measured, 1, 1, 4);
    reaches(measured, 1, 3, 4);
    expect_losses("1:2 2:2 3:3.33333 ");
}

/* Of the run that is interrupted the next one takes them again. */
TEST(steps_after_the_checkpoint_have_no_metrics) {
    adds_trainer(measured);
    measured->run.shutdown.interrupted = FAILURE_TERMINATED;
    measured->run.checkpoints.has_saved = true;
    measured->run.checkpoints.saved = 25;
    for (uint64_t step = 10; step <= 30; step += 10)
        for (uint32_t rank = 0; rank < 2; rank++)
            reaches(measured, rank, step, 2);
    expect_losses("");
    metrics_end(&measured->run);
    expect_losses("10:2 20:2 ");
}

/* The line of an epoch's result comes before those of the next. */
TEST(an_epoch_has_its_result_before_the_next_epochs_metrics) {
    struct evaluation_split_result result = {.count = 1};
    measured->run.plan.schedule.epoch_batches = 15;
    measured->run.plan.test_samples = 1;
    adds_trainer(measured);
    for (uint64_t step = 10; step <= 20; step += 10)
        for (uint32_t rank = 0; rank < 2; rank++)
            reaches(measured, rank, step, 2);
    expect_losses("10:2 ");
    metrics_report_evaluation(&measured->run, 15, &result,
                              &(struct binary_scores){0});
    metrics_show(&measured->run, 0);
    expect_losses("10:2 20:2 ");
}

static int setup_folder(void **state) {
    strcpy(folder + strlen(folder) - 6, "XXXXXX");
    return !mkdtemp(folder) || metrics_fixture_setup(state) ? -1 : 0;
}

static int teardown_folder(void **state) {
    struct metrics_fixture *measured = *state;
    point_outlets_close(&measured->run.metrics.outlets);
    checkpoint_fixture_remove(folder);
    return metrics_fixture_teardown(state);
}

FIXTURE(setup_folder, teardown_folder);
