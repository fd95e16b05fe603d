/* SPDX-License-Identifier: Apache-2.0 */
/* All-reduce whose gradients and state stay on GPUs: fake ones
 * (tests/gpu/fake_device.h), over a collective that joins their streams
 * (tests/gpu/fake_nccl.c), both plugins beside a copy of the program. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_fixture.h"
#include "tests/cluster/cluster_run.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/test.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RETRY = 138, DEADLINE = 2 * CLUSTER_RUN_DEADLINE, MAXIMUM = 64 };

#define ALLREDUCE "strategy.type=allreduce"
#define GPU ALLREDUCE, "device=cuda"
#define CPU ALLREDUCE, "device=cpu"
#define BY_NCCL "all-reduce by nccl (auto: each trainer has a device of its own"

/* Buckets that cut parameters and some that hold several. */
static const char job[] =
    "{\"model\": {\"layers\": [64, 128, 96, 10]}, \"steps\": 40,"
    " \"gradient_accumulation_steps\": 2, \"gradient_clipping\": 0.3,"
    " \"zero_optimization\": {\"stage\": %d, \"reduce_bucket_size\": 5000},"
    " \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.01}}}";

static void write_job(struct cluster_run *run, int stage) {
    char changes[sizeof job + 16];
    snprintf(changes, sizeof changes, job, stage);
    cluster_run_job(run, changes);
}

static void arrange(const char *gpus) {
    setenv("CAPSTAN_FAKE_DEVICE", gpus, 1);
}

GROUP(build_folder_use_fake, NULL);

/* Without an order of its own a clip waits for all that there is. */
TEST(gpus_end_in_the_bits_of_the_cpu_in_every_stage) {
    static const char *const gpus[] = {"devices=3,order=0,nccl",
                                       "devices=3,order=1,nccl",
                                       "devices=3,order=3,seed=5,nccl"};
    write_job(run, 0);
    CLUSTER_FIXTURE_RUN(run, 0, 3, 0, CPU, "checkpoint.dir=cpu");
    for (int stage = 0; stage < 3; stage++) {
        char dir[64];
        snprintf(dir, sizeof dir, "checkpoint.dir=stage%d", stage);
        write_job(run, stage);
        arrange(gpus[stage]);
        cluster_fixture_expect_logged(
            CLUSTER_FIXTURE_RUN(run, 0, 3, 0, GPU, dir), BY_NCCL);
        cluster_fixture_expect_same_checkpoints(run, "cpu",
                                                strchr(dir, '=') + 1);
    }
}

TEST(gpus_without_clipping_or_overlap_end_in_the_same_bits) {
    static const char *const changes[][2] = {
        {"gradient_clipping=0", "steps=41"},
        {"gradient_clipping=0", "zero_optimization.overlap_comm=false"}};
    for (int i = 0; i < 2; i++) {
        char cpu[64], gpu[64];
        snprintf(cpu, sizeof cpu, "checkpoint.dir=cpu%d", i);
        snprintf(gpu, sizeof gpu, "checkpoint.dir=gpu%d", i);
        write_job(run, 2 * i);
        CLUSTER_FIXTURE_RUN(run, 0, 2, 0, CPU, cpu, changes[i][0],
                            changes[i][1]);
        arrange(i ? "devices=2,order=2,nccl"
                  : "devices=2,order=3,seed=11,nccl");
        CLUSTER_FIXTURE_RUN(run, 0, 2, 0, GPU, gpu, changes[i][0],
                            changes[i][1]);
        cluster_fixture_expect_same_checkpoints(run, strchr(cpu, '=') + 1,
                                                strchr(gpu, '=') + 1);
    }
}

/* The first steps overflow, which is found on the device. */
TEST(in_fp16_gpus_skip_the_steps_that_the_cpu_skips) {
    static const char scale[] =
        "fp16={\"enabled\": true, \"hysteresis\": 1,"
        " \"initial_scale_power\": 28, \"loss_scale_window\": 9}";
    write_job(run, 1);
    CLUSTER_FIXTURE_RUN(run, 0, 2, 0, CPU, scale, "checkpoint.dir=cpu");
    arrange("devices=2,order=3,nccl");
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(run, 0, 2, 0, GPU, scale, "checkpoint.dir=gpu"),
        "step 1 is skipped");
    cluster_fixture_expect_same_checkpoints(run, "cpu", "gpu");
}

/* The device's memory, the host's and the device's again, against the host's
 * alone; the stages change on the way. */
TEST(a_run_moves_from_gpus_to_the_cpu_and_back) {
    arrange("devices=2,order=3,seed=3,nccl");
    write_job(run, 0);
    CLUSTER_FIXTURE_RUN(run, 0, 2, 0, CPU, "checkpoint.dir=cpu");
    CLUSTER_FIXTURE_RUN(run, 0, 2, 0, GPU, "steps=13");
    write_job(run, 2);
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(run, 0, 2, 0, CPU, "steps=27"),
        "checkpoint/step-000000013");
    cluster_fixture_expect_logged(CLUSTER_FIXTURE_RUN(run, 0, 2, 0, GPU),
                                  "checkpoint/step-000000027");
    cluster_fixture_expect_same_checkpoints(run, "cpu", "checkpoint");
}

/* Without a checkpoint nothing else brings them to the host. */
TEST(weights_are_imported_and_exported_as_files) {
    char a[PATH_MAX], b[PATH_MAX], command[3 * PATH_MAX];
    arrange("devices=2,order=0,nccl");
    write_job(run, 1);
    CLUSTER_FIXTURE_RUN(run, 0, 2, 0, CPU, "checkpoint=null", "steps=5",
                        "export.path=first.safetensors");
    CLUSTER_FIXTURE_RUN(run, 0, 2, 0, CPU, "checkpoint=null",
                        "init=first.safetensors",
                        "export.path=cpu.safetensors");
    CLUSTER_FIXTURE_RUN(run, 0, 2, 0, GPU, "checkpoint=null",
                        "init=first.safetensors",
                        "export.path=gpu.safetensors");
    cluster_run_path(run, "cpu.safetensors", a);
    cluster_run_path(run, "gpu.safetensors", b);
    snprintf(command, sizeof command, "cmp -s '%s' '%s'", a, b);
    assert_int_equal(system(command), 0);
}

/* What nobody trains all hand over when the chief asks. */
TEST(a_run_of_zero_steps_is_saved) {
    arrange("devices=2,order=0,nccl");
    for (int stage = 0; stage < 3; stage += 2) {
        char cpu[64], gpu[64];
        snprintf(cpu, sizeof cpu, "checkpoint.dir=cpu%d", stage);
        snprintf(gpu, sizeof gpu, "checkpoint.dir=gpu%d", stage);
        write_job(run, stage);
        CLUSTER_FIXTURE_RUN(run, 0, 2, 0, CPU, cpu, "steps=0");
        CLUSTER_FIXTURE_RUN(run, 0, 2, 0, GPU, gpu, "steps=0");
        cluster_fixture_expect_same_checkpoints(run, strchr(cpu, '=') + 1,
                                                strchr(gpu, '=') + 1);
    }
}

TEST(one_trainer_alone_needs_no_collective) {
    write_job(run, 0);
    CLUSTER_FIXTURE_RUN(run, 0, 1, 0, CPU, "checkpoint.dir=cpu");
    arrange("devices=1,order=3,seed=2,nccl");
    CLUSTER_FIXTURE_RUN(run, 0, 1, 0, GPU, "checkpoint.dir=gpu");
    cluster_fixture_expect_same_checkpoints(run, "cpu", "gpu");
}

TEST(auto_falls_back_to_gloo_and_logs_why) {
    write_job(run, 0);
    CLUSTER_FIXTURE_RUN(run, 0, 2, 0, CPU, "checkpoint.dir=cpu");
    arrange("devices=1,nccl");
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(run, 0, 2, 0, GPU, "checkpoint.dir=shared"),
        "all-reduce by gloo (auto: worker 0 and worker 1 share a device)");
    cluster_fixture_expect_same_checkpoints(run, "cpu", "shared");
    arrange("devices=2,nccl");
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(
            run, 0, 2, 0, GPU, "checkpoint.dir=offloaded",
            "zero_optimization.offload_optimizer={\"device\": \"cpu\"}"),
        "all-reduce by gloo (auto: offload_optimizer keeps the state");
    cluster_fixture_expect_same_checkpoints(run, "cpu", "offloaded");
    arrange("devices=2");
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(run, 0, 2, 0, GPU, "checkpoint.dir=missing"),
        "all-reduce by gloo (auto: nccl, at worker 0: cannot work here: there "
        "is no fake NCCL)");
    cluster_fixture_expect_same_checkpoints(run, "cpu", "missing");
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(run, 0, 2, 0, CPU, "checkpoint.dir=host"),
        "all-reduce by gloo (auto: worker 0 computes in host memory)");
}

/* Deadlines of the job are far longer than this test may take. */
TEST(a_killed_rank_ends_all_with_138_and_is_named) {
    struct cluster_fixture fixture;
    arrange("devices=2,order=3,nccl");
    cluster_run_job(run, "{\"steps\": 10000000, \"device\": \"cuda\","
                         " \"steps_per_epoch\": 10000000}");
    cluster_fixture_describe(&fixture, run, 0, 0, 2);
    cluster_fixture_start_all(&fixture);
    cluster_run_await_soon(fixture.tasks[0].process, BY_NCCL);
    cluster_run_await_soon(fixture.tasks[0].process, "steps 0 to");
    cluster_fixture_sleep(1);
    cluster_run_signal(fixture.tasks[1].process, SIGKILL);
    cluster_fixture_expect(&fixture, 1, RETRY, 10);
    cluster_fixture_expect_logged(fixture.tasks[0].process, "worker 1 on host");
}

TEST(a_signal_saves_and_ends_all) {
    for (int stage = 0; stage < 3; stage += 2) {
        struct cluster_fixture fixture;
        uint64_t steps[MAXIMUM];
        run = cluster_fixture_reset(state);
        char changes[256];
        arrange("devices=2,order=0,nccl");
        snprintf(changes, sizeof changes,
                 "{\"steps\": 10000000, \"steps_per_epoch\": 10000000,"
                 " \"device\": \"cuda\","
                 " \"zero_optimization\": {\"stage\": %d},"
                 " \"optimizer\": {\"type\": \"Adam\"}}",
                 stage);
        cluster_run_job(run, changes);
        cluster_fixture_describe(&fixture, run, 0, 0, 2);
        cluster_fixture_start_all(&fixture);
        cluster_run_await_soon(fixture.tasks[0].process, "steps 0 to");
        cluster_fixture_sleep(1);
        unsigned at = stage / 2;
        cluster_run_signal(fixture.tasks[at].process, SIGTERM);
        cluster_run_expect_soon(fixture.tasks[at].process, 128 + SIGTERM);
        cluster_fixture_expect_soon(&fixture, at, RETRY);
        assert_int_equal(
            cluster_fixture_checkpoints(run, "checkpoint", steps, MAXIMUM), 1);
        assert_true(steps[0] > 0);
    }
}

static int teardown(void **state) {
    unsetenv("CAPSTAN_FAKE_DEVICE");
    return cluster_run_teardown(state);
}

FIXTURE(cluster_run_setup, teardown);
