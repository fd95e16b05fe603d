/* SPDX-License-Identifier: Apache-2.0 */
/* capstan-nccl.so and capstan-cuda.so themselves where there is no GPU: kernels
 * run on the CPU, which plays CUDA's libraries and NCCL
 * (tests/gpu/cuda_runtime_on_cpu.cc, nccl_on_cpu.cc). */
#include "tests/cluster/cluster_fixture.h"
#include "tests/cluster/cluster_run.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/skip.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RETRY = 138, DEADLINE = 2 * CLUSTER_RUN_DEADLINE };

#define GPU "strategy.type=allreduce", "device=cuda"

static bool is_built; /* the program beside those plugins */

static bool find_program(void) {
    char folder[PATH_MAX], plugin[PATH_MAX + 32];
    (void)build_folder_find(folder);
    snprintf(plugin, sizeof plugin, "%s/emulated/capstan-nccl.so", folder);
    return build_folder_use("emulated") && access(plugin, R_OK) == 0;
}

static void skip_without_headers(void) {
    if (!is_built)
        skip_test("built where CUDA's and NCCL's headers are");
}

static void write_job(struct cluster_run *run, int stage, const char *rule) {
    char changes[512];
    snprintf(changes, sizeof changes,
             "{\"model\": {\"layers\": [64, 129, 33, 10]}, \"steps\": 12,"
             " \"gradient_clipping\": 0.3, \"zero_optimization\":"
             " {\"stage\": %d, \"reduce_bucket_size\": 5000},"
             " \"optimizer\": {\"type\": \"%s\","
             " \"params\": {\"lr\": 0.01}}}",
             stage, rule);
    cluster_run_job(run, changes);
}

/* By Gloo sums, rule and norm are the processor's: the same products, made
 * there, go another way. */
static void updates_on_the_device_have_the_bits_of_the_host(void **state) {
    static const char *const rules[] = {"Adam", "SGD", "RMSprop"};
    struct cluster_run *run = *state;
    skip_without_headers();
    for (int stage = 0; stage < 3; stage++) {
        char host[32], device[32];
        snprintf(host, sizeof host, "checkpoint.dir=host%d", stage);
        snprintf(device, sizeof device, "checkpoint.dir=device%d", stage);
        write_job(run, stage, rules[stage]);
        CLUSTER_FIXTURE_RUN(run, 0, 2, 0, GPU, "strategy.backend=gloo", host);
        CLUSTER_FIXTURE_RUN(run, 0, 2, 0, GPU, "strategy.backend=nccl", device);
        cluster_fixture_expect_same_checkpoints(run, strchr(host, '=') + 1,
                                                strchr(device, '=') + 1);
    }
}

/* Gradients are brought to the host first, and NCCL takes them to the device
 * and back. */
static void updates_with_state_on_the_host_have_the_same_bits(void **state) {
    static const char offload[] =
        "zero_optimization.offload_optimizer.device=cpu";
    struct cluster_run *run = *state;
    skip_without_headers();
    for (int stage = 0; stage < 3; stage++) {
        char gloo[32], nccl[32];
        snprintf(gloo, sizeof gloo, "checkpoint.dir=gloo%d", stage);
        snprintf(nccl, sizeof nccl, "checkpoint.dir=nccl%d", stage);
        write_job(run, stage, "Adam");
        CLUSTER_FIXTURE_RUN(run, 0, 2, 0, GPU, "strategy.backend=gloo", offload,
                            gloo);
        CLUSTER_FIXTURE_RUN(run, 0, 2, 0, GPU, "strategy.backend=nccl", offload,
                            nccl);
        cluster_fixture_expect_same_checkpoints(run, strchr(gloo, '=') + 1,
                                                strchr(nccl, '=') + 1);
    }
}

static void in_fp16_overflows_are_found_on_the_device(void **state) {
    static const char scale[] =
        "fp16={\"enabled\": true, \"hysteresis\": 1,"
        " \"initial_scale_power\": 28, \"loss_scale_window\": 5}";
    struct cluster_run *run = *state;
    skip_without_headers();
    write_job(run, 1, "SGD");
    CLUSTER_FIXTURE_RUN(run, 0, 2, 0, GPU, "strategy.backend=gloo", scale,
                        "checkpoint.dir=host");
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(run, 0, 2, 0, GPU, "strategy.backend=nccl", scale,
                            "checkpoint.dir=device"),
        "step 1 is skipped");
    cluster_fixture_expect_same_checkpoints(run, "host", "device");
}

static void a_run_resumes_from_a_checkpoint_of_devices(void **state) {
    struct cluster_run *run = *state;
    skip_without_headers();
    write_job(run, 2, "Adam");
    CLUSTER_FIXTURE_RUN(run, 0, 2, 0, GPU, "strategy.backend=nccl",
                        "checkpoint.dir=whole");
    CLUSTER_FIXTURE_RUN(run, 0, 2, 0, GPU, "strategy.backend=nccl", "steps=5");
    write_job(run, 0, "Adam");
    cluster_fixture_expect_logged(
        CLUSTER_FIXTURE_RUN(run, 0, 2, 0, GPU, "strategy.backend=nccl"),
        "checkpoint/step-000000005");
    cluster_fixture_expect_same_checkpoints(run, "whole", "checkpoint");
}

/* NCCL does not tell who is gone: the chief does. */
static void a_killed_rank_ends_all_with_138_and_is_named(void **state) {
    struct cluster_fixture fixture;
    struct cluster_run *run = *state;
    skip_without_headers();
    cluster_run_job(run, "{\"steps\": 10000000, \"device\": \"cuda\","
                         " \"strategy\": {\"type\": \"allreduce\","
                         " \"backend\": \"nccl\"}, \"timeouts\": {\"peer\": 3},"
                         " \"steps_per_epoch\": 10000000}");
    cluster_fixture_describe(&fixture, run, 0, 0, 2);
    cluster_fixture_start_all(&fixture);
    cluster_run_await(fixture.tasks[0].process, "steps 0 to",
                      CLUSTER_RUN_DEADLINE);
    cluster_fixture_sleep(1);
    cluster_run_signal(fixture.tasks[1].process, SIGKILL);
    cluster_fixture_expect(&fixture, 1, RETRY, DEADLINE);
    cluster_fixture_expect_logged(fixture.tasks[0].process, "worker 1 on host");
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name)                                                             \
    cmocka_unit_test_setup_teardown(name, cluster_run_setup,                   \
                                    cluster_run_teardown)
        TEST(updates_on_the_device_have_the_bits_of_the_host),
        TEST(updates_with_state_on_the_host_have_the_same_bits),
        TEST(in_fp16_overflows_are_found_on_the_device),
        TEST(a_run_resumes_from_a_checkpoint_of_devices),
        TEST(a_killed_rank_ends_all_with_138_and_is_named),
    };
    is_built = find_program();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
