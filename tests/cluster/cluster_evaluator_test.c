/* SPDX-License-Identifier: Apache-2.0 */
/* An evaluator beside a run: it joins nobody and follows the checkpoints. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_clicks.h"
#include "tests/lib/test.h"

#include <unistd.h>

#include <math.h>
#include <signal.h>

static const char *const tf_config =
    "TF_CONFIG={\"cluster\": {\"chief\": [\"localhost:1\"],"
    " \"ps\": [\"localhost:2\"], \"worker\": [\"localhost:3\"]},"
    " \"task\": {\"type\": \"evaluator\", \"index\": 0}}";

static struct cluster_process *start_evaluator(struct cluster_run *run,
                                               const char *join_timeout) {
    return cluster_run_start(run, "evaluator",
                             WORDS("run", "--checkpoint-dir", "checkpoint",
                                   "--join-timeout", join_timeout, "--json"),
                             WORDS(tf_config));
}

/* An evaluator that has followed TRAINING, a run, to its end. */
static struct cluster_process *follow_run(struct cluster_run *run,
                                          struct cluster_process **training) {
    struct cluster_process *evaluator = start_evaluator(run, "60");
    cluster_run_await_soon(evaluator, "following");
    *training = cluster_run_start(
        run, "run",
        WORDS("local", "--ps", "2", "--workers", "2", "job.json", "--json"),
        NULL);
    cluster_run_expect_soon(*training, 0);
    cluster_run_expect_soon(evaluator, 0);
    return evaluator;
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(an_evaluator_follows_a_run_to_its_last_checkpoint) {
    cluster_run_job(run, "{\"checkpoint\": {\"every_steps\": 30}}");
    struct cluster_process *training, *evaluator = follow_run(run, &training);

    const json_t *summary = cluster_run_json(training);
    const json_t *last = cluster_run_json(evaluator);
    double wanted = json_real_value(json_object_get(summary, "test_accuracy"));
    double found = json_real_value(json_object_get(last, "test_accuracy"));
    double loss = json_real_value(json_object_get(last, "test_loss"));
    assert_true(fabs(found - wanted) <= 0.005);
    assert_true(found > 0.5);
    assert_true(loss > 0 && loss < 2.3);
    assert_int_equal(json_integer_value(json_object_get(last, "step")), 90);
    assert_true(json_is_true(json_object_get(last, "final")));
    assert_contains(json_string_value(json_object_get(last, "checkpoint")),
                    "checkpoint/step-000000090");
    assert_contains(
        cluster_run_errors(evaluator),
        "step 90 is final, and no run uses checkpoint: the end (a run that "
        "resumes from it needs an evaluator started after its chief)");
    assert_contains(cluster_run_errors(evaluator), "step 90: test accuracy ");
    assert_contains(cluster_run_errors(evaluator), ", test loss ");
}

/* Its rows come from the files of a checkpoint, the run's from its ps. */
TEST(an_evaluator_with_tables_finds_what_the_run_does) {
    static const char *const keys[] = {"test_loss", "test_auc", "test_logloss",
                                       "test_accuracy"};
    cluster_clicks_write(run);
    cluster_run_job(run, "{" CLUSTER_CLICKS_DEEPFM ", \"epochs\": 4,"
                         " \"checkpoint\": {\"every_steps\": 100}}");
    struct cluster_process *training, *evaluator = follow_run(run, &training);
    const json_t *summary = cluster_run_json(training);
    const json_t *last = cluster_run_json(evaluator);
    for (int i = 0; i < 4; i++) {
        double found = json_real_value(json_object_get(last, keys[i]));
        double wanted = json_real_value(json_object_get(summary, keys[i]));
        if (!(wanted > 0) || !(fabs(found - wanted) <= 1e-6 * wanted))
            fail_msg("%s: the evaluator found %.9g, the run %.9g", keys[i],
                     found, wanted);
    }
    assert_true(json_real_value(json_object_get(last, "test_auc")) > 0.9);
    assert_contains(cluster_run_errors(evaluator), ", logloss ");
}

/* The same words may stand in the commands of all tasks. */
TEST(the_directory_option_is_that_of_the_job_too) {
    cluster_run_job(run, "{\"steps\": 10, \"checkpoint\": {\"dir\": "
                         "\"other\"}}");
    cluster_run_expect_soon(
        cluster_run_start(run, "run",
                          WORDS("run", "--checkpoint-dir", "given", "job.json"),
                          NULL),
        0);
    assert_int_equal(
        access(cluster_run_path(run, "given/step-000000010"), F_OK), 0);
    assert_int_equal(access(cluster_run_path(run, "other"), F_OK), -1);
}

TEST(a_missing_directory_option_is_named) {
    struct cluster_process *evaluator =
        cluster_run_start(run, "evaluator", WORDS("run"), WORDS(tf_config));
    cluster_run_expect_soon(evaluator, 2);
    assert_contains(cluster_run_errors(evaluator), "--checkpoint-dir");
    assert_contains(cluster_run_errors(evaluator), "model_dir");
}

TEST(a_timeout_without_checkpoints_names_the_directory) {
    struct cluster_process *evaluator = start_evaluator(run, "0.2");
    cluster_run_expect_soon(evaluator, 138);
    assert_contains(cluster_run_errors(evaluator),
                    "no new checkpoint in checkpoint for");
}

static void expect_signal(struct cluster_run *run, int number, int code) {
    struct cluster_process *evaluator = start_evaluator(run, "600");
    cluster_run_await_soon(evaluator, "following");
    cluster_run_signal(evaluator, number);
    cluster_run_expect_soon(evaluator, code);
}

TEST(a_signal_ends_the_evaluator_with_its_number) {
    expect_signal(run, SIGTERM, 143);
    expect_signal(run, SIGINT, 130);
    expect_signal(run, SIGHUP, 129);
}
