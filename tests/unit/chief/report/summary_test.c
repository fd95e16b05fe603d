/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct metrics_fixture *measured

#include "chief/report/summary.h"

#include "chief/report/metrics.h"
#include "core/base/time.h"
#include "tests/lib/metrics_fixture.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What the summary prints on standard output and says on standard error. */
static char *summary_of(struct metrics_fixture *measured) {
    static char text[4096];
    FILE *kept = tmpfile();
    struct log log;
    assert_non_null(kept);
    fflush(stdout);
    int out = dup(STDOUT_FILENO), error = dup(STDERR_FILENO);
    dup2(fileno(kept), STDOUT_FILENO);
    dup2(fileno(kept), STDERR_FILENO);
    log_open(&log, "chief", -1);
    measured->run.log = &log;
    summary_print(&measured->run, true);
    measured->run.log = NULL;
    dup2(out, STDOUT_FILENO);
    dup2(error, STDERR_FILENO);
    close(out);
    close(error);
    rewind(kept);
    text[fread(text, 1, sizeof text - 1, kept)] = 0;
    fclose(kept);
    return text;
}

FIXTURE(metrics_fixture_setup, metrics_fixture_teardown);

TEST(the_object_is_also_written_to_a_file) {
    char path[] = "/tmp/capstan-summary-XXXXXX";
    struct log log;
    int file = mkstemp(path);
    assert_true(file >= 0);
    metrics_fixture_heartbeat(measured, 100, 150);
    log_open(&log, "chief", -1);
    measured->run.log = &log;
    assert_int_equal(write(file, "old and longer than nothing", 27), 27);
    summary_save(&measured->run, path);
    measured->run.log = NULL;
    json_t *object = json_load_file(path, 0, NULL);
    assert_true(json_is_number(json_object_get(object, "steps_per_second")));
    json_decref(object);
    close(file);
    unlink(path);
}

/* An epoch had ended before it: that one's loss is not its own. */
TEST(a_resumed_run_within_an_epoch_has_the_loss_of_its_steps) {
    measured->run.metrics.epochs_ended = 1;
    metrics_fixture_heartbeat(measured, 100, 150);
    char *said = summary_of(measured);
    assert_contains(said, "\"train_loss\":1.5,");
    measured->run.metrics.epoch_loss = 1.25;
    said = summary_of(measured);
    assert_contains(said, "\"train_loss\":1.25,");
}

static void expect_summary(struct metrics_fixture *measured, const char *part,
                           bool there) {
    char *said = summary_of(measured);
    if (!strstr(said, part) == there)
        fail_msg("\"%s\" is%s in: %s", part, there ? " not" : "", said);
}

/* 10 steps in 5 seconds, of which TRAINERS have waited 2 for weights. */
static void waits(struct metrics_fixture *measured, uint32_t trainers) {
    measured->run.roster.num_ranks = trainers;
    metrics_fixture_heartbeat(measured, 10, 10);
    measured->trainers[0].heartbeat.wire_s = 2;
}

TEST(the_suggested_key_is_one_of_the_job) {
    measured->job.batch_key = "train_batch_size";
    waits(measured, 2);
    expect_summary(measured,
                   "waiting for weights (wire, ps and other trainers), 40 %; "
                   "key: train_batch_size (larger), or strategy.staleness with "
                   "a smaller rate\n",
                   true);
    measured->job.staleness = JOB_STALENESS_INF;
    expect_summary(measured, "key: train_batch_size (larger)\n", true);
}

/* Nothing is on a wire, and there is nobody else to wait for. */
TEST(a_single_process_gets_advice_for_its_own_ps) {
    measured->run.ps_inproc = "ps";
    measured->job.batch_key = "train_micro_batch_size_per_gpu";
    waits(measured, 1);
    expect_summary(measured,
                   "waiting for weights (the ps of this process), 40 %; key: "
                   "train_micro_batch_size_per_gpu (larger)\n",
                   true);
}

TEST(a_silent_peer_is_named_without_a_key) {
    measured->job.batch_key = "train_batch_size";
    waits(measured, 2);
    measured->run.stall.lost = (struct run_wait_loss){1.2, 1.2, "worker 1"};
    expect_summary(measured,
                   "largest cause of lost time: waiting for worker 1, which "
                   "was silent for 1.2 s, 24 %\n",
                   true);
    measured->run.stall.lost.seconds = 0.9;
    expect_summary(measured, "other trainers), 22 %; key:", true);
}

TEST(failed_peers_are_no_cause_of_lost_time) {
    measured->job.batch_key = "train_batch_size";
    waits(measured, 2);
    measured->run.code = FAILURE_PEER_LOST;
    expect_summary(measured, "; not complete", true);
    expect_summary(measured, "lost time", false);
    measured->run.code = measured->run.shutdown.interrupted =
        FAILURE_TERMINATED;
    expect_summary(measured, "key: train_batch_size (larger)", true);
}

/* Two trainers without rounds whose losses were FIRST in the first step, and
 * BEFORE and AFTER the mean of the first and the last half of the tenths. */
static struct metrics_fixture *learns(struct metrics_fixture *measured,
                                      double first, double before,
                                      double after) {
    measured->run.metrics.began = true;
    measured->run.roster.num_ranks = 2;
    measured->job.staleness = JOB_STALENESS_INF;
    measured->job.schedule.lr = 0.1;
    measured->job.batch_key = "train_batch_size";
    for (int i = 0; i < 2; i++)
        measured->trainers[i].heartbeat.first_loss = first;
    for (int i = 0; i < RUN_DECILES; i++)
        measured->run.metrics.deciles[i] = (struct run_point){
            .loss = 10 * (i < RUN_DECILES / 2 ? before : after), .samples = 10};
    return measured;
}

TEST(a_learning_rate_too_large_is_reported_with_one_to_try) {
    learns(measured, 2.3, 4, 2.25);
    expect_summary(measured,
                   "warning: the run has diverged: train loss 2.3 at first, 4 "
                   "at its highest, 2.25 at the end. With staleness each push "
                   "of the 2 trainers is an update of its own, while a "
                   "synchronous run averages them: try optimizer.params.lr "
                   "0.05, which is 0.1 over 2\n",
                   true);
    learns(measured, 2.3, 0.5, 0.8)->job.schedule =
        (struct schedule){.type = SCHEDULE_WARMUP_DECAY, .warmup_max_lr = 0.2};
    expect_summary(measured,
                   "train loss 0.5 at its lowest, 0.8 at its highest, 0.8 at "
                   "the end. ",
                   true);
    expect_summary(measured,
                   "try scheduler.params.warmup_max_lr 0.1, which is 0.2 over "
                   "2\n",
                   true);
    learns(measured, 2.3, 2.2, 1)->run.metrics.diverged = true;
    expect_summary(measured, "diverged: the loss is NaN. With", true);
}

TEST(a_decreasing_loss_has_not_diverged) {
    learns(measured, 2.3, 2.4, 1);
    expect_summary(measured, "diverged", false);
    learns(measured, 2.3, 2.3, 2.2); /* little, but nothing went wrong */
    expect_summary(measured, "diverged", false);
    learns(measured, 0.15, 0.2, 0.2)->run.plan.has_restored = true;
    expect_summary(measured, "diverged", false);
}

/* There the rate is no other than elsewhere. */
TEST(synchronous_and_single_runs_get_no_advice_about_pushes) {
    learns(measured, 2.3, 4, 4)->job.staleness = 0;
    expect_summary(measured, "diverged", false);
    learns(measured, 2.3, 4, 4)->run.roster.num_ranks = 1;
    expect_summary(measured, "diverged", false);
}
