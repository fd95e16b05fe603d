/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/time.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/json_number.h"
#include "tests/lib/test.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>

enum { FAILED = 1, CONFIG = 2, MAXIMUM = 64 };

/* The steps listed are EXPECT, which ends with 0; a checkpoint that was due
 * while another was being written may be missing, if that was said. */
static void expect_steps(struct cluster_run *run, const char *dir,
                         const struct cluster_process *process,
                         const uint64_t *expect) {
    uint64_t steps[MAXIMUM];
    unsigned count = cluster_fixture_checkpoints(run, dir, steps, MAXIMUM),
             at = 0;
    char text[64];
    for (; *expect; expect++) {
        snprintf(text, sizeof text, "no checkpoint of step %llu",
                 (unsigned long long)*expect);
        if (at < count && steps[at] == *expect)
            at++;
        else
            cluster_fixture_expect_logged(process, text);
    }
    assert_int_equal(at, count);
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(checkpoints_are_saved_by_steps_and_by_epochs) {
    cluster_run_job(*state, NULL);
    expect_steps(*state, "by-steps",
                 CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "checkpoint.dir=by-steps",
                                     "epochs=null", "steps=100",
                                     "checkpoint.every_steps=40"),
                 (const uint64_t[]){40, 80, 100, 0});
    expect_steps(*state, "by-epochs",
                 CLUSTER_FIXTURE_RUN(*state, 2, 2, 0,
                                     "checkpoint.dir=by-epochs", "epochs=5",
                                     "checkpoint.every_epochs=2"),
                 (const uint64_t[]){60, 120, 150, 0});
}

/* The earliest is due that much after the run has begun, and so is each after
 * the one before: however late their lines are read, not more have come. */
TEST(checkpoints_are_saved_by_seconds) {
    enum { SEEN = 4 };
    struct cluster_run *run = *state;
    uint64_t steps[MAXIMUM];
    int64_t begun = time_now();
    cluster_run_job(run, "{\"steps\": 1000000, \"steps_per_epoch\": 1000000}");
    const char *changes[] = {"checkpoint.every_seconds=0.4", NULL};
    struct cluster_process *local = cluster_fixture_local(run, 2, 2, changes);
    for (unsigned i = 0; i < SEEN; i++)
        cluster_run_await_soon(local, "checkpoint /");
    assert_true(time_now() - begun > time_from_seconds(SEEN * 0.4));
    cluster_run_signal(local, SIGTERM);
    cluster_run_expect_soon(local, 128 + SIGTERM);
    assert_true(
        cluster_fixture_checkpoints(run, "checkpoint", steps, MAXIMUM) >= SEEN);
}

TEST(the_job_limits_the_number_of_kept_checkpoints) {
    uint64_t steps[MAXIMUM];
    cluster_run_job(*state, "{\"checkpoint\": {\"keep\": 2}}");
    CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "checkpoint.every_steps=10");
    assert_int_equal(
        cluster_fixture_checkpoints(*state, "checkpoint", steps, MAXIMUM), 2);
    assert_int_equal(steps[1], 90);
}

static unsigned count_beginning(const struct cluster_run *run, const char *dir,
                                const char *beginning, char found[PATH_MAX]) {
    unsigned count = 0;
    DIR *folder = opendir(cluster_run_path(run, dir));
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));)
        if (!strncmp(entry->d_name, beginning, strlen(beginning))) {
            snprintf(found, PATH_MAX, "%s/%s", dir, entry->d_name);
            count++;
        }
    closedir(folder);
    return count;
}

TEST(with_resume_never_a_run_starts_over_and_moves_old_steps_aside) {
    uint64_t steps[MAXIMUM];
    char aside[PATH_MAX];
    cluster_run_job(*state, NULL);
    CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "checkpoint.every_steps=30");
    struct cluster_process *local = CLUSTER_FIXTURE_RUN(
        *state, 2, 2, 0, "epochs=2", "seed=2", "checkpoint.resume=never");
    cluster_fixture_expect_logged(local, "were moved to");
    assert_false(cluster_fixture_has_logged(local, "resuming from"));
    assert_int_equal(
        cluster_fixture_checkpoints(*state, "checkpoint", steps, MAXIMUM), 1);
    assert_int_equal(steps[0], 60);
    assert_int_equal(count_beginning(*state, "checkpoint", "aside-", aside), 1);
    unsigned old = cluster_fixture_checkpoints(*state, aside, steps, MAXIMUM);
    assert_true(old > 0);
    assert_int_equal(steps[old - 1], 90);
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "epochs=2", "seed=2"),
        "checkpoint/step-000000060, epoch 2");
}

TEST(a_checkpoint_past_the_last_step_is_only_evaluated) {
    cluster_run_job(*state, NULL);
    CLUSTER_FIXTURE_RUN(*state, 1, 2, 0, "epochs=4");
    struct cluster_process *local =
        CLUSTER_FIXTURE_RUN(*state, 1, 2, 0, "epochs=2");
    cluster_fixture_expect_logged(
        local, "the checkpoint has completed 4 epochs and the "
               "job asks for 2: nothing is left to train");
    cluster_fixture_expect_logged(local, "chief: step 120: test accuracy");
    assert_false(cluster_fixture_has_logged(local, "epoch 4/2"));
}

TEST(a_run_extended_past_its_schedule_warns) {
    cluster_run_job(*state, "{\"scheduler\": {\"type\": \"WarmupDecayLR\","
                            " \"params\": {\"warmup_max_lr\": 0.05,"
                            " \"warmup_num_steps\": 10,"
                            " \"total_num_steps\": 60}}}");
    struct cluster_process *local =
        CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "epochs=2");
    assert_false(cluster_fixture_has_logged(local, "the scheduler ends"));
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "epochs=3"),
        "warning: the scheduler ends at step 60 "
        "(scheduler.params.total_num_steps), the run at step 90: the rate of "
        "the last steps is 0; set total_num_steps together with epochs or "
        "steps, to 90");
}

/* A supervisor that starts it again must not be told that it goes on. */
TEST(with_resume_never_no_signal_message_promises_a_resume) {
    cluster_run_job(*state, "{\"steps\": 1000000}");
    struct cluster_process *local = cluster_fixture_local(
        *state, 1, 1,
        WORDS("checkpoint.resume=never", "checkpoint.every_steps=50"));
    cluster_run_await_soon(local, "checkpoint /");
    cluster_run_signal(local, SIGTERM);
    cluster_run_expect_soon(local, 128 + SIGTERM);
    assert_false(cluster_fixture_has_logged(local, "the same command resumes"));
    cluster_fixture_expect_logged(
        local, "the same command starts over (checkpoint.resume "
               "is never); with --set checkpoint.resume=auto it "
               "resumes from /");
}

/* There a planned checkpoint is always being written. */
TEST(a_signal_ends_a_run_of_very_frequent_checkpoints) {
    cluster_run_job(*state,
                    "{\"steps\": 10000000, \"timeouts\": {\"grace\": 600}}");
    struct cluster_process *local = cluster_fixture_local(
        *state, 1, 1,
        WORDS("checkpoint.every_steps=2", "train_micro_batch_size_per_gpu=4"));
    for (int i = 0; i < 50; i++)
        cluster_run_await_soon(local, "checkpoint /");
    cluster_run_signal(local, SIGTERM);
    cluster_run_expect_soon(local, 128 + SIGTERM);
    cluster_fixture_expect_logged(local, "the same command resumes from /");
}

TEST(a_named_step_is_resumed_and_ends_in_the_same_bits) {
    cluster_run_job(*state, NULL);
    CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "checkpoint.dir=undisturbed");
    CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "epochs=1");
    CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "epochs=2");
    struct cluster_process *local =
        CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "checkpoint.resume=30");
    cluster_fixture_expect_logged(local, "checkpoint/step-000000030, epoch 2");
    cluster_fixture_expect_same_checkpoints(*state, "checkpoint",
                                            "undisturbed");
}

TEST(a_missing_step_is_an_error_and_deletes_nothing) {
    uint64_t steps[MAXIMUM];
    cluster_run_job(*state, NULL);
    CLUSTER_FIXTURE_RUN(*state, 1, 1, 0, "epochs=1");
    struct cluster_process *local =
        cluster_fixture_local(*state, 1, 1, WORDS("checkpoint.resume=17"));
    cluster_run_expect_soon(local, CONFIG);
    cluster_fixture_expect_logged(local,
                                  "checkpoint.resume: found 17, a step that "
                                  "has no checkpoint in /");
    cluster_fixture_expect_logged(local, "/checkpoint; allowed: 60, ");
    assert_int_equal(
        cluster_fixture_checkpoints(*state, "checkpoint", steps, MAXIMUM), 1);
}

TEST(another_number_of_ps_resumes_to_the_same_bits) {
    cluster_run_job(*state, "{\"optimizer\": {\"type\": \"Adam\","
                            " \"params\": {\"lr\": 0.01}}}");
    CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "checkpoint.dir=undisturbed");
    CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "epochs=null", "steps=40");
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(*state, 3, 2, 0, "epochs=null", "steps=70"),
        "checkpoint/step-000000040, epoch 2");
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(*state, 1, 2, 0, "epochs=3"),
        "checkpoint/step-000000070, epoch 3");
    cluster_fixture_expect_same_checkpoints(*state, "checkpoint",
                                            "undisturbed");
}

TEST(runs_on_one_and_three_ps_have_equal_checkpoints) {
    static const char *const kinds[][4] = {
        {"one", "1", NULL}, {"three", "3", NULL}, {"other", "1", "seed=8"}};
    cluster_run_job(*state, NULL);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        CLUSTER_FIXTURE_RUN(*state, (unsigned)atoi(kinds[i][1]), 2, 0,
                            textf("checkpoint.dir=%s", kinds[i][0]),
                            "epochs=null", "steps=20", kinds[i][2]);
    cluster_fixture_tool(*state, 0, WORDS("ckpt", "diff", "one", "three"));
    cluster_fixture_tool(
        *state, 0,
        WORDS("ckpt", "diff", "--step=20", "one", "three/step-000000020/"));
    cluster_fixture_tool(*state, FAILED, WORDS("ckpt", "diff", "one", "other"));
    cluster_fixture_tool(*state, CONFIG, WORDS("ckpt", "diff", "one", "none"));
}

/* As `ckpt ls` gives it for the newest. */
static uint64_t samples_of_newest(struct cluster_run *run) {
    const char *ls[] = {"ckpt", "ls", "--json", "checkpoint", NULL};
    const json_t *all = cluster_run_json(cluster_fixture_tool(run, 0, ls));
    json_t *list = json_object_get(all, "checkpoints");
    json_t *last = json_array_get(list, json_array_size(list) - 1);
    uint64_t samples =
        (uint64_t)json_integer_value(json_object_get(last, "samples"));
    return samples;
}

TEST(ckpt_ls_and_the_log_give_a_checkpoint_the_same_size) {
    const char *ls[] = {"ckpt", "ls", "checkpoint", NULL};
    char size[16], unit[8];
    cluster_run_job(*state, "{\"model\": {\"layers\":"
                            " [64, 9000, 10]}}");
    struct cluster_process *local =
        CLUSTER_FIXTURE_RUN(*state, 2, 1, 0, "steps=10", "epochs=null");
    const char *row =
        strstr(cluster_run_output(cluster_fixture_tool(*state, 0, ls)), "\n");
    assert_int_equal(sscanf(row, "%*d %*d %*d %15s %7s", size, unit), 2);
    assert_contains(cluster_run_errors(local),
                    textf("step-000000010: %s %s in ", size, unit));
}

/* 46 steps of 20 are an epoch of 600 and 320 samples of the next, which are 10
 * steps of 30, and 20 samples are read again; 4 steps more make 420. */
TEST(another_number_of_workers_resumes_at_a_whole_batch) {
    cluster_run_job(*state, NULL);
    CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "epochs=null", "steps=46");
    assert_int_equal(samples_of_newest(*state), 920);
    struct cluster_process *local =
        CLUSTER_FIXTURE_RUN(*state, 2, 3, 0, "epochs=null", "steps=50");
    cluster_fixture_expect_logged(local, "steps 46 to 50");
    assert_int_equal(samples_of_newest(*state), 1020);
}

TEST(a_mismatched_checkpoint_is_named_and_deletes_nothing) {
    static const struct {
        const char *change, *name;
    } cases[] = {
        {"model.layers=[64, 17, 10]", "model"},
        {"optimizer.type=Adagrad", "optimizer"},
        {"seed=7", "seed"},
    };
    cluster_run_job(*state, NULL);
    struct cluster_process *local =
        CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "checkpoint.every_steps=30");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cluster_fixture_expect_logged(
            CLUSTER_FIXTURE_RUN(*state, 2, 2, CONFIG, cases[i].change),
            cases[i].name);
        expect_steps(*state, "checkpoint", local,
                     (const uint64_t[]){30, 60, 90, 0});
    }
}

TEST(a_damaged_checkpoint_is_skipped_and_named) {
    cluster_run_job(*state, NULL);
    CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "checkpoint.dir=undisturbed");
    CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "epochs=1");
    CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "epochs=2");
    cluster_fixture_damage(*state, "checkpoint", 60);
    struct cluster_process *local =
        CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "epochs=3");
    cluster_fixture_expect_logged(local,
                                  "warning: checkpoint of step 60 passed over");
    cluster_fixture_expect_logged(local, "checkpoint/step-000000030, epoch 2");
    cluster_fixture_damage(*state, "checkpoint", 30);
    cluster_fixture_tool(*state, FAILED, WORDS("ckpt", "verify", "checkpoint"));
}

TEST(with_all_checkpoints_damaged_the_run_does_not_start) {
    char found[PATH_MAX];
    cluster_run_job(*state, NULL);
    CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "epochs=1");
    CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "epochs=2");
    cluster_fixture_damage(*state, "checkpoint", 30);
    cluster_fixture_damage(*state, "checkpoint", 60);
    struct cluster_process *local =
        CLUSTER_FIXTURE_RUN(*state, 2, 2, FAILED, "epochs=3");
    cluster_fixture_expect_logged(local, "none of 2 checkpoints can be read");
    cluster_fixture_expect_logged(local,
                                  "restore a copy of one, or start a new run: "
                                  "--set checkpoint.resume=never");
    assert_int_equal(count_beginning(*state, "checkpoint", "step-", found), 2);
    CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "epochs=1", "checkpoint.resume=never");
}

TEST(an_asynchronous_run_is_saved_and_resumed) {
    uint64_t steps[MAXIMUM];
    cluster_run_job(*state, "{\"steps\": 8000, \"steps_per_epoch\": 100000,"
                            " \"strategy\": {\"type\": \"ps\","
                            " \"staleness\": \"inf\"}}");
    CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "checkpoint.every_steps=200",
                        "checkpoint.keep=60");
    unsigned count =
        cluster_fixture_checkpoints(*state, "checkpoint", steps, MAXIMUM);
    assert_true(count >= 2); /* one by steps, one at the end */
    assert_in_range(steps[count - 1], 8000, 8002);
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "steps=8100"),
        textf("checkpoint/step-%09llu, epoch",
              (unsigned long long)steps[count - 1]));
    count = cluster_fixture_checkpoints(*state, "checkpoint", steps, MAXIMUM);
    assert_in_range(steps[count - 1], 8100, 8102);
}

/* Longer than the data, which makes 30 steps; and of 25 pushes, whoever they
 * are of. */
TEST(epochs_of_steps_resume_where_they_were) {
    cluster_run_job(*state, "{\"steps_per_epoch\": 50}");
    CLUSTER_FIXTURE_RUN(*state, 1, 2, 0, "epochs=1", "checkpoint.dir=whole");
    CLUSTER_FIXTURE_RUN(*state, 1, 2, 0, "epochs=null", "steps=40");
    CLUSTER_FIXTURE_RUN(*state, 1, 2, 0, "epochs=1");
    cluster_fixture_expect_same_checkpoints(*state, "checkpoint", "whole");
    const char *const free_running[] = {
        "checkpoint.dir=free", "steps_per_epoch=25", "strategy.staleness=inf"};
    CLUSTER_FIXTURE_RUN(*state, 1, 2, 0, "epochs=2", free_running[0],
                        free_running[1], free_running[2]);
    uint64_t steps[MAXIMUM];
    CLUSTER_FIXTURE_RUN(*state, 1, 2, 0, "epochs=4", free_running[0],
                        free_running[1], free_running[2]);
    unsigned count =
        cluster_fixture_checkpoints(*state, "free", steps, MAXIMUM);
    assert_in_range(steps[count - 1], 100, 102);
}

TEST(a_run_of_zero_steps_leaves_a_resumable_checkpoint) {
    uint64_t steps[MAXIMUM];
    cluster_run_job(*state, NULL);
    CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "checkpoint.dir=undisturbed");
    CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "epochs=null", "steps=0");
    assert_int_equal(
        cluster_fixture_checkpoints(*state, "checkpoint", steps, MAXIMUM), 1);
    assert_int_equal(steps[0], 0);
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "epochs=3"),
        "checkpoint/step-000000000, epoch 1");
    cluster_fixture_expect_same_checkpoints(*state, "checkpoint",
                                            "undisturbed");
}

/* Rounds close without a worker now and then: what is planned for a round is
 * done all the same, and accuracies are those of snapshots. */
TEST(a_run_with_backup_workers_is_saved_evaluated_and_resumed) {
    cluster_run_job(*state, "{\"checkpoint\": {\"dir\": \"spare\"},"
                            " \"strategy\": {\"backup_workers\": 1}}");
    struct cluster_process *first = CLUSTER_FIXTURE_RUN(
        *state, 2, 3, 0, "epochs=600", "checkpoint.every_steps=5000");
    expect_steps(*state, "spare", first,
                 (const uint64_t[]){5000, 10000, 12000, 0});
    const char *evaluated =
        strstr(cluster_run_errors(first), ": test accuracy");
    assert_non_null(evaluated);
    assert_non_null(strstr(evaluated + 1, "epoch 600/600: test accuracy"));
    struct cluster_process *second =
        CLUSTER_FIXTURE_RUN(*state, 1, 2, 0, "epochs=640");
    cluster_fixture_expect_logged(second, "resuming from");
    const json_t *summary = cluster_run_json(second);
    assert_true(number_at(summary, "test_accuracy") > 0.9);
    assert_int_equal(json_array_size(json_object_get(summary, "late")), 2);
}
