/* SPDX-License-Identifier: Apache-2.0 */
/* capstan-nccl.so and capstan-cuda.so themselves where there is no GPU: kernels
 * run on the CPU, which plays CUDA's libraries and NCCL
 * (tests/gpu/cuda_runtime_on_cpu.cc, nccl_on_cpu.cc). */
#include "tests/cluster/cluster_play.h"
#include "tests/cluster/cluster_run.h"
#include "tests/lib/built.h"
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
    (void)built_folder(folder);
    snprintf(plugin, sizeof plugin, "%s/emulated/capstan-nccl.so", folder);
    return built_take("emulated") && access(plugin, R_OK) == 0;
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
static void on_the_device_updates_have_the_bits_of_the_hosts(void **state) {
    static const char *const rules[] = {"Adam", "SGD", "RMSprop"};
    struct cluster_run *run = *state;
    skip_without_headers();
    for (int stage = 0; stage < 3; stage++) {
        char host[32], device[32];
        snprintf(host, sizeof host, "checkpoint.dir=host%d", stage);
        snprintf(device, sizeof device, "checkpoint.dir=device%d", stage);
        write_job(run, stage, rules[stage]);
        CLUSTER_PLAY_RUN(run, 0, 2, 0, GPU, "strategy.backend=gloo", host);
        CLUSTER_PLAY_RUN(run, 0, 2, 0, GPU, "strategy.backend=nccl", device);
        cluster_play_same(run, strchr(host, '=') + 1, strchr(device, '=') + 1);
    }
}

/* Gradients are brought to the host first, and NCCL takes them to the device
 * and back. */
static void with_state_on_the_host_they_have_too(void **state) {
    static const char offload[] =
        "zero_optimization.offload_optimizer.device=cpu";
    struct cluster_run *run = *state;
    skip_without_headers();
    for (int stage = 0; stage < 3; stage++) {
        char gloo[32], nccl[32];
        snprintf(gloo, sizeof gloo, "checkpoint.dir=gloo%d", stage);
        snprintf(nccl, sizeof nccl, "checkpoint.dir=nccl%d", stage);
        write_job(run, stage, "Adam");
        CLUSTER_PLAY_RUN(run, 0, 2, 0, GPU, "strategy.backend=gloo", offload,
                         gloo);
        CLUSTER_PLAY_RUN(run, 0, 2, 0, GPU, "strategy.backend=nccl", offload,
                         nccl);
        cluster_play_same(run, strchr(gloo, '=') + 1, strchr(nccl, '=') + 1);
    }
}

static void in_fp16_overflows_are_found_on_the_device(void **state) {
    static const char scale[] =
        "fp16={\"enabled\": true, \"hysteresis\": 1,"
        " \"initial_scale_power\": 28, \"loss_scale_window\": 5}";
    struct cluster_run *run = *state;
    skip_without_headers();
    write_job(run, 1, "SGD");
    CLUSTER_PLAY_RUN(run, 0, 2, 0, GPU, "strategy.backend=gloo", scale,
                     "checkpoint.dir=host");
    cluster_play_expect_said(CLUSTER_PLAY_RUN(run, 0, 2, 0, GPU,
                                              "strategy.backend=nccl", scale,
                                              "checkpoint.dir=device"),
                             "step 1 is skipped");
    cluster_play_same(run, "host", "device");
}

static void a_run_goes_on_from_what_devices_have_saved(void **state) {
    struct cluster_run *run = *state;
    skip_without_headers();
    write_job(run, 2, "Adam");
    CLUSTER_PLAY_RUN(run, 0, 2, 0, GPU, "strategy.backend=nccl",
                     "checkpoint.dir=whole");
    CLUSTER_PLAY_RUN(run, 0, 2, 0, GPU, "strategy.backend=nccl", "steps=5");
    write_job(run, 0, "Adam");
    cluster_play_expect_said(
        CLUSTER_PLAY_RUN(run, 0, 2, 0, GPU, "strategy.backend=nccl"),
        "checkpoint/step-000000005");
    cluster_play_same(run, "whole", "checkpoint");
}

/* NCCL does not tell who is gone: the chief does. */
static void a_killed_rank_ends_all_with_138_and_is_named(void **state) {
    struct cluster_play play;
    struct cluster_run *run = *state;
    skip_without_headers();
    cluster_run_job(run, "{\"steps\": 10000000, \"device\": \"cuda\","
                         " \"strategy\": {\"type\": \"allreduce\","
                         " \"backend\": \"nccl\"}, \"timeouts\": {\"peer\": 3},"
                         " \"steps_per_epoch\": 10000000}");
    cluster_play_describe(&play, run, 0, 0, 2);
    cluster_play_start_all(&play);
    cluster_run_await(play.tasks[0].process, "steps 0 to",
                      CLUSTER_RUN_DEADLINE);
    cluster_play_pass(1);
    cluster_run_signal(play.tasks[1].process, SIGKILL);
    cluster_play_expect(&play, 1, RETRY, DEADLINE);
    cluster_play_expect_said(play.tasks[0].process, "worker 1 on host");
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name)                                                             \
    cmocka_unit_test_setup_teardown(name, cluster_run_setup,                   \
                                    cluster_run_teardown)
        TEST(on_the_device_updates_have_the_bits_of_the_hosts),
        TEST(with_state_on_the_host_they_have_too),
        TEST(in_fp16_overflows_are_found_on_the_device),
        TEST(a_run_goes_on_from_what_devices_have_saved),
        TEST(a_killed_rank_ends_all_with_138_and_is_named),
    };
    is_built = find_program();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
