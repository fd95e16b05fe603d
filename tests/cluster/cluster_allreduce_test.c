/* SPDX-License-Identifier: Apache-2.0 */
/* Training without ps by real processes: what it computes, what it leaves, and
 * how it ends. */
#define STATE struct cluster_run *run

#include "core/base/time.h"
#include "core/store/tensor_file.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/test.h"

#include <math.h>
#include <signal.h>

enum { CONFIG = 2, RETRY = 138, MAXIMUM = 64 };

static const double tolerance = 1e-5;

#define ALLREDUCE "strategy={\"type\":\"allreduce\"}"
#define HALVES "strategy.algorithm=halving_doubling"
#define STAGE(n)                                                               \
    "zero_optimization={\"stage\":" #n ",\"reduce_bucket_size\":300}"
#define ADAM "optimizer={\"type\":\"Adam\",\"params\":{\"lr\":0.01}}"

static void read_tensors(const struct cluster_run *run, const char *name,
                         float floats[4][64 * 16]) {
    static const struct parameter parameters[4] = {
        {.name = "layer0.weight",
         .num_dims = 2,
         .dims = {16, 64},
         .elements = 1024},
        {.name = "layer0.bias", .num_dims = 1, .dims = {16}, .elements = 16},
        {.name = "layer1.weight",
         .num_dims = 2,
         .dims = {10, 16},
         .elements = 160},
        {.name = "layer1.bias", .num_dims = 1, .dims = {10}, .elements = 10}};
    struct tensor_file *file;
    assert_ok(tensor_file_open(&file, cluster_run_path(run, name), &failure));
    for (int p = 0; p < 4; p++)
        assert_ok(tensor_file_read(file, &parameters[p], floats[p], &failure));
    tensor_file_close(&file);
}

static void expect_close(const struct cluster_run *run, const char *a,
                         const char *b) {
    static float left[4][64 * 16], right[4][64 * 16];
    double size = 0;
    memset(left, 0, sizeof left);
    memset(right, 0, sizeof right);
    read_tensors(run, a, left);
    read_tensors(run, b, right);
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 64 * 16; i++) {
            double gap = fabs((double)left[p][i] - (double)right[p][i]);
            size += fabs((double)left[p][i]);
            if (!(gap <= tolerance))
                fail_msg("%s and %s: tensor %d, element %d: %g and %g", a, b, p,
                         i, (double)left[p][i], (double)right[p][i]);
        }
    assert_true(size > 1);
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(two_runs_of_a_job_end_in_the_same_bits) {
    cluster_run_job(run, NULL);
    CLUSTER_FIXTURE_RUN(run, 0, 3, 0, ALLREDUCE, "checkpoint.dir=a");
    CLUSTER_FIXTURE_RUN(run, 0, 3, 0, ALLREDUCE, "checkpoint.dir=b");
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
}

TEST(ranks_on_one_host_share_memory_unless_tcp_is_requested) {
    static const char said[] = "all-reduce: over shared memory";
    cluster_run_job(run, NULL);
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(run, 0, 3, 0, ALLREDUCE, "checkpoint.dir=a"), said);
    setenv("CAPSTAN_LANE", "tcp", 1);
    struct cluster_process *tcp =
        CLUSTER_FIXTURE_RUN(run, 0, 3, 0, ALLREDUCE, "checkpoint.dir=b");
    unsetenv("CAPSTAN_LANE");
    assert_false(cluster_fixture_has_logged(tcp, said));
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
}

/* 3 workers of 10 samples, 1 worker of 30. */
TEST(the_weights_are_those_of_ps_and_of_one_process) {
    cluster_run_job(run, "{\"train_micro_batch_size_per_gpu\": 10,"
                         " \"data\": {\"shuffle\": false}}");
    CLUSTER_FIXTURE_RUN(run, 0, 3, 0, ALLREDUCE, "checkpoint.dir=a",
                        "export.path=a.safetensors");
    CLUSTER_FIXTURE_RUN(run, 2, 3, 0, "checkpoint.dir=b",
                        "export.path=b.safetensors");
    CLUSTER_FIXTURE_RUN(run, 1, 1, 0, "checkpoint.dir=c",
                        "export.path=c.safetensors",
                        "train_micro_batch_size_per_gpu=30");
    expect_close(run, "a.safetensors", "b.safetensors");
    expect_close(run, "a.safetensors", "c.safetensors");
}

TEST(halving_doubling_ends_in_the_same_weights) {
    static const char said[] = "gloo's halving and doubling algorithm";
    cluster_run_job(run, NULL);
    CLUSTER_FIXTURE_RUN(run, 0, 4, 0, ALLREDUCE, "checkpoint.dir=a",
                        "export.path=a.safetensors");
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(run, 0, 4, 0, ALLREDUCE, HALVES, "checkpoint.dir=b",
                            "export.path=b.safetensors"),
        said);
    CLUSTER_FIXTURE_RUN(run, 0, 4, 0, ALLREDUCE, HALVES, "checkpoint.dir=c");
    cluster_fixture_expect_same_checkpoints(run, "b", "c");
    expect_close(run, "a.safetensors", "b.safetensors");
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(run, 0, 3, 0, ALLREDUCE, HALVES,
                            "checkpoint.dir=d"),
        "gloo's ring algorithm (halving and doubling takes");
}

TEST(clipping_matches_that_of_ps) {
    cluster_run_job(run, "{\"gradient_clipping\": 0.1}");
    CLUSTER_FIXTURE_RUN(run, 0, 2, 0, ALLREDUCE, "checkpoint.dir=a",
                        "export.path=a.safetensors");
    CLUSTER_FIXTURE_RUN(run, 2, 2, 0, "checkpoint.dir=b",
                        "export.path=b.safetensors");
    expect_close(run, "a.safetensors", "b.safetensors");
}

/* Weights and state, which every rank then holds a part of. */
TEST(every_stage_of_zero_ends_in_the_same_bits) {
    cluster_run_job(run, NULL);
    CLUSTER_FIXTURE_RUN(run, 0, 3, 0, ALLREDUCE, ADAM, STAGE(0),
                        "checkpoint.dir=stage-0");
    CLUSTER_FIXTURE_RUN(run, 0, 3, 0, ALLREDUCE, ADAM, STAGE(1),
                        "checkpoint.dir=stage-1");
    cluster_fixture_expect_logged(CLUSTER_FIXTURE_RUN(run, 0, 3, 0, ALLREDUCE,
                                                      ADAM, STAGE(2),
                                                      "checkpoint.dir=stage-2"),
                                  "by gloo or nccl, ZeRO stage 2");
    cluster_fixture_expect_same_checkpoints(run, "stage-0", "stage-1");
    cluster_fixture_expect_same_checkpoints(run, "stage-0", "stage-2");
}

TEST(a_resumed_run_ends_in_the_same_bits) {
    static const char *const stages[] = {STAGE(0), STAGE(2)};
    for (int s = 0; s < 2; s++) {
        cluster_run_job(run, NULL);
        CLUSTER_FIXTURE_RUN(run, 0, 2, 0, ALLREDUCE, ADAM, stages[s],
                            "checkpoint.dir=undisturbed",
                            "checkpoint.resume=never");
        CLUSTER_FIXTURE_RUN(run, 0, 2, 0, ALLREDUCE, ADAM, stages[s],
                            "epochs=null", "steps=40",
                            "checkpoint.resume=never");
        cluster_fixture_expect_logged(
            CLUSTER_FIXTURE_RUN(run, 0, 2, 0, ALLREDUCE, ADAM, stages[s]),
            "checkpoint/step-000000040, epoch 2");
        cluster_fixture_expect_same_checkpoints(run, "checkpoint",
                                                "undisturbed");
    }
}

/* ps, all-reduce, ps: against ps alone. */
TEST(a_run_switches_between_ps_and_all_reduce) {
    cluster_run_job(run, "{\"data\": {\"shuffle\": false}}");
    CLUSTER_FIXTURE_RUN(run, 2, 2, 0, ADAM, "checkpoint.dir=alone",
                        "export.path=alone.safetensors");
    CLUSTER_FIXTURE_RUN(run, 2, 2, 0, ADAM, "epochs=1");
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(run, 0, 2, 0, ALLREDUCE, ADAM, "epochs=2"),
        "checkpoint/step-000000030, epoch 2");
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(run, 1, 2, 0, ADAM, "epochs=3",
                            "export.path=both.safetensors"),
        "checkpoint/step-000000060, epoch 3");
    expect_close(run, "alone.safetensors", "both.safetensors");
}

TEST(checkpoints_are_saved_as_the_job_says) {
    uint64_t steps[MAXIMUM];
    cluster_run_job(run, NULL);
    CLUSTER_FIXTURE_RUN(run, 0, 2, 0, ALLREDUCE, "epochs=null", "steps=100",
                        "checkpoint.every_steps=50");
    assert_true(
        cluster_fixture_checkpoints(run, "checkpoint", steps, MAXIMUM) >= 1);
    CLUSTER_FIXTURE_RUN(run, 0, 2, 0, ALLREDUCE, "epochs=null", "steps=0",
                        "checkpoint.dir=first");
    assert_int_equal(cluster_fixture_checkpoints(run, "first", steps, MAXIMUM),
                     1);
    assert_int_equal(steps[0], 0);
    CLUSTER_FIXTURE_RUN(run, 0, 2, 0, ALLREDUCE, ADAM, STAGE(2), "epochs=null",
                        "steps=0", "checkpoint.dir=second");
    assert_int_equal(cluster_fixture_checkpoints(run, "second", steps, MAXIMUM),
                     1);
}

TEST(a_run_starts_from_a_file_of_weights) {
    cluster_run_job(run, NULL);
    CLUSTER_FIXTURE_RUN(run, 1, 2, 0, "checkpoint.dir=a",
                        "export.path=a.safetensors");
    CLUSTER_FIXTURE_RUN(run, 0, 2, 0, ALLREDUCE, "checkpoint.dir=b",
                        "init=a.safetensors", "epochs=null", "steps=0",
                        "export.path=b.safetensors");
    expect_close(run, "a.safetensors", "b.safetensors");
}

TEST(several_trainers_without_ps_select_all_reduce_and_log_it) {
    struct cluster_fixture fixture;
    cluster_run_job(run, NULL);
    cluster_fixture_describe(&fixture, run, 1, 0, 2);
    cluster_fixture_start_all(&fixture);
    cluster_fixture_expect_soon(&fixture, CLUSTER_FIXTURE_TASKS, 0);
    cluster_fixture_expect_logged(
        fixture.tasks[0].process,
        "all-reduce: 3 trainers (no ps is listed), by gloo");
}

TEST(listed_ps_hold_no_blocks_and_end_with_the_others) {
    struct cluster_process *local;
    cluster_run_job(run, NULL);
    local = CLUSTER_FIXTURE_RUN(run, 2, 2, 0, ALLREDUCE);
    cluster_fixture_expect_logged(local, "the listed ps hold nothing");
}

/* Deadlines of the job are far longer than this test may take. */
TEST(a_killed_rank_ends_all_with_138_and_is_named) {
    struct cluster_fixture fixture;
    cluster_run_job(run, "{\"steps\": 10000000, \"epochs\": null}");
    for (unsigned victim = 1; victim < 3; victim++) {
        cluster_fixture_describe(&fixture, cluster_fixture_reset(state), 1, 0,
                                 2);
        cluster_run_job(run, "{\"steps\": 10000000,"
                             " \"steps_per_epoch\": 10000000,"
                             " \"strategy\": {\"recovery\": \"end\"}}");
        cluster_fixture_start_all(&fixture);
        cluster_run_await_soon(fixture.tasks[0].process, "steps 0 to");
        cluster_fixture_sleep(1);
        cluster_run_signal(fixture.tasks[victim].process, SIGKILL);
        cluster_fixture_expect(&fixture, victim, RETRY, 10);
        const char *name = textf("worker %u on host", victim - 1);
        for (unsigned i = 0; i < fixture.count; i++)
            if (i != victim)
                cluster_fixture_expect_logged(fixture.tasks[i].process, name);
    }
}

/* The file is large enough to be still under way when it is seen, and nothing
 * else is waited for at the end. Among other tests, ranks of this size have
 * stood still for 7 s. */
TEST(rank_0_killed_at_the_last_checkpoint_is_named) {
    struct cluster_fixture fixture;
    cluster_run_job(run, "{\"chief\": \"coordinate\", \"steps\": 2,"
                         " \"epochs\": null, \"data\": {\"test\": null},"
                         " \"strategy\": {\"recovery\": \"end\"},"
                         " \"model\": {\"layers\": [64, 4096, 4096, 10]},"
                         " \"optimizer\": {\"type\": \"Adam\"},"
                         " \"timeouts\": {\"peer\": 10}}");
    cluster_fixture_describe(&fixture, run, 1, 0, 2);
    cluster_fixture_start_all(&fixture);
    cluster_fixture_await_file(run, "checkpoint/step-*/*",
                               CLUSTER_RUN_DEADLINE);
    cluster_run_signal(fixture.tasks[1].process, SIGKILL);
    cluster_fixture_expect_soon(&fixture, 1, RETRY);
    cluster_fixture_expect_logged(fixture.tasks[2].process, "worker 0 on host");
}

TEST(a_killed_chief_ends_all_with_138) {
    struct cluster_fixture fixture;
    cluster_run_job(run, "{\"steps\": 10000000,"
                         " \"steps_per_epoch\": 10000000,"
                         " \"timeouts\": {\"peer\": 3, \"chief\": 0}}");
    cluster_fixture_describe(&fixture, run, 1, 0, 2);
    cluster_fixture_start_all(&fixture);
    cluster_run_await_soon(fixture.tasks[0].process, "steps 0 to");
    cluster_fixture_sleep(1);
    cluster_run_signal(fixture.tasks[0].process, SIGKILL);
    cluster_fixture_expect_soon(&fixture, 0, RETRY);
}

/* At any trainer, and at the one that leads. */
TEST(a_signal_saves_and_ends_all) {
    for (unsigned at = 0; at < 2; at++) {
        struct cluster_fixture fixture;
        uint64_t steps[MAXIMUM];
        run = cluster_fixture_reset(state);
        cluster_run_job(
            run, textf("{\"steps\": 10000000, \"steps_per_epoch\": 10000000,"
                       " \"zero_optimization\": {\"stage\": %d},"
                       " \"optimizer\": {\"type\": \"Adam\"}}",
                       at ? 2 : 0));
        cluster_fixture_describe(&fixture, run, 1, 0, 2);
        cluster_fixture_start_all(&fixture);
        cluster_run_await_soon(fixture.tasks[0].process, "steps 0 to");
        cluster_fixture_sleep(1);
        cluster_run_signal(fixture.tasks[at].process, SIGTERM);
        cluster_run_expect_soon(fixture.tasks[at].process, 128 + SIGTERM);
        cluster_fixture_expect_soon(&fixture, at, RETRY);
        assert_int_equal(
            cluster_fixture_checkpoints(run, "checkpoint", steps, MAXIMUM), 1);
        assert_true(steps[0] > 0);
    }
}

TEST(checkpoints_are_saved_by_seconds) {
    uint64_t steps[MAXIMUM];
    cluster_run_job(run, "{\"steps\": 10000000, \"steps_per_epoch\": 10000000,"
                         " \"zero_optimization\": {\"stage\": 1}}");
    const char *changes[] = {ALLREDUCE, "checkpoint.every_seconds=0.4", NULL};
    struct cluster_process *local = cluster_fixture_local(run, 0, 2, changes);
    for (unsigned i = 0; i < 3; i++)
        cluster_run_await_soon(local, "checkpoint /");
    cluster_run_signal(local, SIGTERM);
    cluster_run_expect_soon(local, 128 + SIGTERM);
    assert_true(
        cluster_fixture_checkpoints(run, "checkpoint", steps, MAXIMUM) >= 3);
}

/* The program alone in a folder, without the plugins beside it; libraries that
 * lie beside the program under test it is shown. */
TEST(one_trainer_needs_no_plugin) {
    char folder[PATH_MAX];
    assert_true(build_folder_find(folder));
    const char *path = cluster_run_path(run, "bare");
    assert_int_equal(system(textf("cp '%s/capstan' '%s'", folder, path)), 0);
    const char *libraries = textf("LD_LIBRARY_PATH=%s/lib", folder);
    cluster_run_job(run, NULL);
    struct cluster_process *alone = cluster_run_program(
        run, "alone", path, WORDS("run", "--set", ALLREDUCE, "job.json"),
        WORDS(libraries));
    cluster_run_expect_soon(alone, 0);
    cluster_fixture_expect_logged(alone,
                                  "all-reduce: 1 trainer, without peers");
}

TEST(settings_that_need_ps_are_an_error) {
    cluster_run_job(run, NULL);
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(run, 0, 2, CONFIG,
                            "strategy={\"staleness\":\"inf\"}"),
        "staleness");
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(run, 0, 2, CONFIG, "wire=bf16"), "bf16");
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(run, 0, 2, CONFIG, ALLREDUCE, HALVES, STAGE(1)),
        "halving_doubling");
}

TEST(info_reports_that_gloo_works) {
    const json_t *info =
        cluster_run_json(cluster_fixture_tool(run, 0, WORDS("info", "--json")));
    json_t *gloo = json_array_get(json_object_get(info, "collectives"), 0);
    assert_string_equal(json_string_value(json_object_get(gloo, "name")),
                        "gloo");
    assert_true(json_is_true(json_object_get(gloo, "available")));
}
