/* SPDX-License-Identifier: Apache-2.0 */
/* Disks that take long for a file of a checkpoint, or refuse it in the end. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/paused_file.h"
#include "tests/lib/test.h"

#include <limits.h>
#include <signal.h>

enum {
    PEER = 1,
    LONG = 3 * PEER,
    EXIT_FAILED = 1,
    EXIT_RETRY = 138,
    EXIT_TERMINATED = 143
};

/* 2 ps and 2 workers for STEPS steps, with a checkpoint each 20. */
static struct cluster_process *train(struct cluster_run *run,
                                     const char *steps) {
    const char *const changes[] = {"checkpoint.every_steps=20",
                                   "timeouts.peer=1", "timeouts.stop=1", steps,
                                   NULL};
    cluster_run_job(run, "{}");
    return cluster_fixture_local(run, 2, 2, changes);
}

/* The process that says WHO ("chief: ps 1 joined"), once it has begun. */
static pid_t find(struct cluster_process *local, const char *who) {
    const char *line = cluster_run_await_soon(local, who);
    const char *pid = strstr(line, "pid ");
    assert_non_null(pid);
    return (pid_t)atoi(pid + strlen("pid "));
}

/* Whether a whole one of STEP stands. What comes while another is written is
 * left out, so that of others nothing is said. */
static bool is_complete(struct cluster_run *run, uint64_t step) {
    uint64_t steps[8];
    unsigned count = cluster_fixture_checkpoints(run, "checkpoint", steps, 8);
    while (count > 0 && steps[count - 1] != step)
        count--;
    return count > 0;
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(a_chief_that_writes_is_not_declared_dead) {
    struct paused_file manifest;
    paused_file_open(&manifest, run, "step-000000020", "manifest");
    struct cluster_process *local = train(run, "steps=60");
    paused_file_await(&manifest);
    cluster_fixture_sleep(LONG);
    paused_file_resume(&manifest, true);
    cluster_run_await_soon(local, "step-000000020: ");
    cluster_run_await_soon(local, "step-000000060: ");
    cluster_run_expect_soon(local, 0);
    assert_true(is_complete(run, 20));
    assert_true(is_complete(run, 60));
}

TEST(a_failed_manifest_write_loses_only_its_checkpoint) {
    struct paused_file manifest;
    paused_file_open(&manifest, run, "step-000000020", "manifest");
    struct cluster_process *local = train(run, "steps=60");
    paused_file_await(&manifest);
    paused_file_resume(&manifest, false);
    cluster_run_await_soon(local, "no checkpoint of step 20");
    cluster_run_expect_soon(local, 0);
    assert_false(is_complete(run, 20));
    assert_true(is_complete(run, 60));
}

/* PROCESS has ended because of REASON, with a checkpoint of step 20. */
static void expect_resumable(const struct cluster_run *run,
                             const struct cluster_process *process,
                             const char *reason) {
    cluster_fixture_expect_logged(
        process, textf("%s; the same command resumes from %s\n", reason,
                       cluster_run_path(run, "checkpoint/step-000000020")));
}

/* Nobody trains any more when its manifest is there: the run ends at its
 * step. */
TEST(a_stopping_chief_logs_which_write_it_waits_for) {
    struct paused_file manifest;
    paused_file_open(&manifest, run, "step-000000020", "manifest");
    cluster_run_job(run, NULL);
    struct cluster_process *local = cluster_fixture_local(
        run, 2, 2,
        WORDS("checkpoint.every_steps=20", "timeouts.peer=1", "timeouts.stop=1",
              "steps=20", "strategy.recovery=end"));
    pid_t ps = find(local, "chief: ps 1 joined");
    paused_file_await(&manifest);
    assert_int_equal(kill(ps, SIGKILL), 0);
    cluster_run_await_soon(
        local, "has not completed the checkpoint of step 20 within 1");
    paused_file_resume(&manifest, true);
    cluster_run_expect_soon(local, EXIT_RETRY);
    const json_t *summary = cluster_run_json(local);
    assert_int_equal(json_integer_value(json_object_get(summary, "steps")), 20);
    assert_contains(json_string_value(json_object_get(summary, "checkpoint")),
                    "000020");
    expect_resumable(run, local, ", and its weights with it");
    assert_true(is_complete(run, 20));
}

TEST(a_late_checkpoint_is_named_at_the_end) {
    struct paused_file manifest;
    paused_file_open(&manifest, run, "step-000000020", "manifest");
    cluster_run_job(run, "{\"steps\": 20, \"checkpoint\": {\"every_steps\":"
                         " 20}, \"timeouts\": {\"grace\": 1}}");
    struct cluster_process *local = cluster_fixture_local(run, 2, 2, NULL);
    pid_t worker = find(local, "chief: worker 1 joined");
    paused_file_await(&manifest);
    cluster_run_signal(local, SIGTERM);
    while (!kill(worker, 0)) /* it ends when the chief has given up */
        cluster_fixture_sleep(0.01);
    paused_file_resume(&manifest, true);
    cluster_run_expect_soon(local, EXIT_TERMINATED);
    expect_resumable(run, local,
                     "error: ended by a signal; its checkpoint was not written "
                     "within 1 s (timeouts.grace)");
}

static unsigned count_logged(const char *said, const char *text) {
    unsigned count = 0;
    while ((said = strstr(said, text))) {
        said += strlen(text);
        count++;
    }
    return count;
}

/* All have trained and wait for it when the signal comes. */
TEST(a_signal_does_not_repeat_a_checkpoint_in_progress) {
    struct paused_file manifest;
    paused_file_open(&manifest, run, "step-000000020", "manifest");
    struct cluster_process *local = train(run, "steps=20");
    paused_file_await(&manifest);
    cluster_run_signal(local, SIGTERM);
    cluster_run_await_soon(local, "a signal: one checkpoint");
    cluster_fixture_sleep(PEER / 2.0);
    paused_file_resume(&manifest, true);
    cluster_run_expect_soon(local, EXIT_TERMINATED);
    assert_int_equal(
        count_logged(cluster_run_errors(local), "step-000000020: "), 1);
    expect_resumable(run, local, "error: ended by a signal");
    assert_true(is_complete(run, 20));
}

/* One ps cannot write its part of the last checkpoint while the other still
 * writes: when both have ended it is taken again. */
TEST(the_last_checkpoint_is_retried_after_a_failed_shard) {
    struct paused_file first, second;
    paused_file_open(&first, run, "step-000000020", "ps-0");
    paused_file_open(&second, run, "step-000000020", "ps-1");
    struct cluster_process *local = train(run, "steps=20");
    paused_file_await(&first);
    paused_file_await(&second);
    paused_file_resume(&first, false);
    cluster_fixture_sleep(PEER / 2.0);
    paused_file_resume(&second, true);
    cluster_run_await_soon(local, "no checkpoint of step 20");
    cluster_run_await_soon(local, "step-000000020: ");
    cluster_run_expect_soon(local, 0);
    assert_true(is_complete(run, 20));
}

/* The part of a ps of the last one is refused while the manifest of the one
 * before is written, and that is refused too. */
TEST(the_last_checkpoint_is_retried_after_two_failures) {
    struct paused_file manifest, part;
    paused_file_open(&manifest, run, "step-000000020", "manifest");
    paused_file_open(&part, run, "step-000000040", "ps-0");
    struct cluster_process *local = train(run, "steps=40");
    paused_file_await(&manifest);
    paused_file_await(&part);
    paused_file_resume(&part, false);
    cluster_run_await_soon(local, "no checkpoint of step 40");
    paused_file_resume(&manifest, false);
    cluster_run_await_soon(local, "no checkpoint of step 20");
    cluster_run_await_soon(local, "step-000000040: ");
    cluster_run_expect_soon(local, 0);
    assert_false(is_complete(run, 20));
    assert_true(is_complete(run, 40));
}

/* Its number in the messages is none of a step. */
TEST(a_requested_part_that_fails_is_named_by_its_step) {
    struct paused_file manifest, part, again;
    paused_file_open(&manifest, run, "step-000000020", "manifest");
    paused_file_open(&part, run, "step-000000040", "ps-0");
    struct cluster_process *local = train(run, "steps=40");
    paused_file_await(&manifest);
    paused_file_await(&part);
    paused_file_resume(&part, false);
    cluster_run_await_soon(local, "no checkpoint of step 40");
    paused_file_open(&again, run, "step-000000040", "ps-0");
    paused_file_resume(&manifest, true);
    paused_file_await(&again);
    paused_file_resume(&again, false);
    cluster_run_expect_soon(local, EXIT_FAILED);
    assert_int_equal(count_logged(cluster_run_errors(local),
                                  "ps 0: error: this process's part of the "
                                  "checkpoint of step 40 was not written"),
                     2);
}
