/* SPDX-License-Identifier: Apache-2.0 */
/* capstan-nccl.so and capstan-cuda.so: two ranks on the first GPU. Where there
 * is none, kernels run on the CPU, which plays CUDA's libraries and NCCL
 * (tests/gpu/cuda_runtime_on_cpu.cc, nccl_on_cpu.cc). */
#define STATE struct cluster_run *run

#include "core/base/plugin.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/cluster/cluster_run.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"
#include "worker/collective/collective.h"

#include <limits.h>
#include <signal.h>
#include <unistd.h>

enum {
    RETRY = 138,
    DEADLINE = 2 * CLUSTER_RUN_DEADLINE,
    ARGUMENTS = 24,
    MAXIMUM = 64
};

#define GPU "strategy.type=allreduce", "device=cuda"

static bool is_built; /* the program beside those plugins */
static bool has_gpu;  /* and they are the real ones */

static bool works_here(const char *plugin) {
    const void *table;
    enum status status = plugin_load(&table, plugin, COLLECTIVE_SYMBOL,
                                     COLLECTIVE_ABI, &failure);
    const struct plugin_head *head = table;
    return !status && !head->check(&failure);
}

static int find_program(void **state) {
    (void)state;
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    setenv("NCCL_IB_DISABLE", "1", 0);
    char folder[PATH_MAX], plugin[PATH_MAX + 32];
    (void)build_folder_find(folder);
    snprintf(plugin, sizeof plugin, "%s/capstan-nccl.so", folder);
    is_built = has_gpu = works_here(plugin);
    if (has_gpu)
        return 0;
    snprintf(plugin, sizeof plugin, "%s/emulated/capstan-nccl.so", folder);
    is_built = build_folder_use("emulated") && access(plugin, R_OK) == 0;
    return 0;
}

GROUP(find_program, NULL);

static void skip_without_headers(void) {
    if (!is_built)
        skip_test("built where CUDA's and NCCL's headers are");
}

static void skip_on_a_gpu(void) {
    skip_without_headers();
    if (has_gpu)
        skip_test("the NCCL that the CPU plays does what this needs");
}

/* Starts RANK: NCCL refuses two ranks of one host on a GPU. */
static struct cluster_process *start_rank(struct cluster_run *run,
                                          unsigned rank, const char *program,
                                          const char *const *arguments) {
    char host[16];
    snprintf(host, sizeof host, "rank%u", rank);
    setenv("NCCL_HOSTID", host, 1);
    return cluster_run_task_program(run, "worker", rank, program, arguments);
}

/* SIZE ranks, up to two, with CHANGES of job.json, to their end: rank 0. */
static struct cluster_process *run_ranks(struct cluster_run *run, unsigned size,
                                         const char *const *changes) {
    const char *arguments[ARGUMENTS] = {"job.json", "--json"};
    for (unsigned count = 2; *changes; changes++) {
        assert_true(count + 2 < ARGUMENTS);
        arguments[count++] = "--set";
        arguments[count++] = *changes;
    }
    if (!run->cluster)
        cluster_run_describe(run, 0, 0, size);
    struct cluster_process *zero = start_rank(run, 0, NULL, arguments);
    if (size > 1)
        cluster_run_expect(start_rank(run, 1, NULL, NULL), 0, DEADLINE);
    cluster_run_expect(zero, 0, DEADLINE);
    return zero;
}

#define RUN_TWO(run, ...) run_ranks(run, 2, (const char *[]){__VA_ARGS__, NULL})

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

static int teardown(void **state) {
    unsetenv("CAPSTAN_EMULATED");
    return cluster_run_teardown(state);
}

FIXTURE(cluster_run_setup, teardown);

/* By Gloo sums, rule and norm are the processor's: the same products, made
 * there, go another way. */
TEST(updates_on_the_device_have_the_bits_of_the_host) {
    static const char *const rules[] = {"Adam", "SGD", "RMSprop"};
    static const char *const orders[] = {"order=0", "order=1",
                                         "order=2,seed=5"};
    skip_without_headers();
    for (int stage = 0; stage < 3; stage++) {
        char host[32], device[32];
        setenv("CAPSTAN_EMULATED", orders[stage], 1);
        snprintf(host, sizeof host, "checkpoint.dir=host%d", stage);
        snprintf(device, sizeof device, "checkpoint.dir=device%d", stage);
        write_job(run, stage, rules[stage]);
        RUN_TWO(run, GPU, "strategy.backend=gloo", host);
        RUN_TWO(run, GPU, "strategy.backend=nccl", device);
        cluster_fixture_expect_same_checkpoints(run, strchr(host, '=') + 1,
                                                strchr(device, '=') + 1);
    }
}

TEST(updates_without_clipping_or_overlap_have_the_same_bits) {
    static const char *const changes[] = {
        "gradient_clipping=0", "zero_optimization.overlap_comm=false"};
    skip_without_headers();
    setenv("CAPSTAN_EMULATED", "order=2,seed=11", 1);
    for (int i = 0; i < 2; i++) {
        char gloo[32], nccl[32];
        snprintf(gloo, sizeof gloo, "checkpoint.dir=gloo%d", i);
        snprintf(nccl, sizeof nccl, "checkpoint.dir=nccl%d", i);
        write_job(run, 2 * i, "Adam");
        RUN_TWO(run, GPU, "gradient_clipping=0", "strategy.backend=gloo",
                changes[i], gloo);
        RUN_TWO(run, GPU, "gradient_clipping=0", "strategy.backend=nccl",
                changes[i], nccl);
        cluster_fixture_expect_same_checkpoints(run, strchr(gloo, '=') + 1,
                                                strchr(nccl, '=') + 1);
    }
}

/* Gradients are brought to the host first, and NCCL takes them to the device
 * and back. */
TEST(updates_with_state_on_the_host_have_the_same_bits) {
    static const char offload[] =
        "zero_optimization.offload_optimizer.device=cpu";
    skip_without_headers();
    for (int stage = 0; stage < 3; stage++) {
        char gloo[32], nccl[32];
        snprintf(gloo, sizeof gloo, "checkpoint.dir=gloo%d", stage);
        snprintf(nccl, sizeof nccl, "checkpoint.dir=nccl%d", stage);
        write_job(run, stage, "Adam");
        RUN_TWO(run, GPU, "strategy.backend=gloo", offload, gloo);
        RUN_TWO(run, GPU, "strategy.backend=nccl", offload, nccl);
        cluster_fixture_expect_same_checkpoints(run, strchr(gloo, '=') + 1,
                                                strchr(nccl, '=') + 1);
    }
}

TEST(in_fp16_overflows_are_found_on_the_device) {
    static const char scale[] =
        "fp16={\"enabled\": true, \"hysteresis\": 1,"
        " \"initial_scale_power\": 28, \"loss_scale_window\": 5}";
    skip_without_headers();
    write_job(run, 1, "SGD");
    RUN_TWO(run, GPU, "strategy.backend=gloo", scale, "checkpoint.dir=host");
    cluster_fixture_expect_logged(RUN_TWO(run, GPU, "strategy.backend=nccl",
                                          scale, "checkpoint.dir=device"),
                                  "step 1 is skipped");
    cluster_fixture_expect_same_checkpoints(run, "host", "device");
}

/* Devices keep weights and state, the host does, and devices again. */
TEST(a_run_resumes_from_a_checkpoint_of_devices) {
    skip_without_headers();
    write_job(run, 2, "Adam");
    RUN_TWO(run, GPU, "strategy.backend=nccl", "checkpoint.dir=whole");
    RUN_TWO(run, GPU, "strategy.backend=nccl", "steps=5");
    write_job(run, 0, "Adam");
    cluster_fixture_expect_logged(
        RUN_TWO(run, GPU, "strategy.backend=gloo", "steps=8"),
        "checkpoint/step-000000005");
    cluster_fixture_expect_logged(RUN_TWO(run, GPU, "strategy.backend=nccl"),
                                  "checkpoint/step-000000008");
    cluster_fixture_expect_same_checkpoints(run, "whole", "checkpoint");
}

/* Without a checkpoint nothing else brings them to the host. */
TEST(weights_are_imported_and_exported_as_files) {
    static const char first[] = "init=first.safetensors";
    skip_without_headers();
    write_job(run, 1, "Adam");
    RUN_TWO(run, GPU, "strategy.backend=gloo", "checkpoint=null", "steps=5",
            "export.path=first.safetensors");
    RUN_TWO(run, GPU, "strategy.backend=gloo", "checkpoint=null", first,
            "export.path=gloo.safetensors");
    RUN_TWO(run, GPU, "strategy.backend=nccl", "checkpoint=null", first,
            "export.path=nccl.safetensors");
    assert_int_equal(system(textf("cmp -s '%s' '%s'",
                                  cluster_run_path(run, "gloo.safetensors"),
                                  cluster_run_path(run, "nccl.safetensors"))),
                     0);
}

/* What nobody trains all hand over when the chief asks. */
TEST(a_run_of_zero_steps_is_saved) {
    skip_without_headers();
    for (int stage = 0; stage < 3; stage += 2) {
        char gloo[32], nccl[32];
        snprintf(gloo, sizeof gloo, "checkpoint.dir=gloo%d", stage);
        snprintf(nccl, sizeof nccl, "checkpoint.dir=nccl%d", stage);
        write_job(run, stage, "Adam");
        RUN_TWO(run, GPU, "strategy.backend=gloo", "steps=0", gloo);
        RUN_TWO(run, GPU, "strategy.backend=nccl", "steps=0", nccl);
        cluster_fixture_expect_same_checkpoints(run, strchr(gloo, '=') + 1,
                                                strchr(nccl, '=') + 1);
    }
}

/* Its weights and state stay on the device all the same. */
TEST(one_trainer_alone_needs_no_collective) {
    skip_without_headers();
    write_job(run, 0, "Adam");
    run_ranks(run, 1,
              (const char *[]){GPU,
                               "zero_optimization.offload_optimizer.device=cpu",
                               "checkpoint.dir=host", NULL});
    run_ranks(run, 1, (const char *[]){GPU, "checkpoint.dir=device", NULL});
    cluster_fixture_expect_same_checkpoints(run, "host", "device");
}

TEST(auto_takes_nccl_or_logs_why_not) {
    static const char offload[] =
        "zero_optimization.offload_optimizer.device=cpu";
    skip_on_a_gpu();
    write_job(run, 0, "Adam");
    cluster_fixture_expect_logged(
        RUN_TWO(run, GPU, "checkpoint.dir=shared"),
        "all-reduce by gloo (auto: worker 0 and worker 1 share a device)");
    setenv("CAPSTAN_EMULATED", "devices=2", 1);
    cluster_fixture_expect_logged(
        RUN_TWO(run, GPU, "checkpoint.dir=own"),
        "all-reduce by nccl (auto: each trainer has a device of its own");
    cluster_fixture_expect_logged(
        RUN_TWO(run, GPU, offload, "checkpoint.dir=offloaded"),
        "all-reduce by gloo (auto: offload_optimizer keeps the state");
    cluster_fixture_expect_same_checkpoints(run, "shared", "own");
    cluster_fixture_expect_same_checkpoints(run, "shared", "offloaded");
}

struct pair {
    struct cluster_process *zero, *one;
};

/* Two ranks that train until they are stopped, with MORE of the job. */
static struct pair start_endless(struct cluster_run *run, const char *more) {
    static const char *const job[] = {"job.json", "--json", NULL};
    char changes[512];
    snprintf(changes, sizeof changes,
             "{\"steps\": 10000000, \"steps_per_print\": 100,"
             " \"device\": \"cuda\","
             " \"strategy\": {\"type\": \"allreduce\","
             " \"backend\": \"nccl\"}, %s, \"steps_per_epoch\": 10000000}",
             more);
    cluster_run_job(run, changes);
    cluster_run_describe(run, 0, 0, 2);
    struct pair pair = {start_rank(run, 0, NULL, job),
                        start_rank(run, 1, NULL, NULL)};
    cluster_run_await(pair.zero, "loss ", DEADLINE);
    return pair;
}

TEST(a_signal_saves_and_ends_all) {
    skip_without_headers();
    for (int stage = 0; stage < 3; stage += 2) {
        run = cluster_fixture_reset(state);
        uint64_t steps[MAXIMUM];
        char changes[128];
        snprintf(changes, sizeof changes,
                 "\"zero_optimization\": {\"stage\": %d},"
                 " \"optimizer\": {\"type\": \"Adam\"}",
                 stage);
        struct pair pair = start_endless(run, changes);
        cluster_run_signal(stage ? pair.one : pair.zero, SIGTERM);
        cluster_run_expect(pair.zero, stage ? RETRY : 128 + SIGTERM, DEADLINE);
        cluster_run_expect(pair.one, stage ? 128 + SIGTERM : RETRY, DEADLINE);
        assert_int_equal(
            cluster_fixture_checkpoints(run, "checkpoint", steps, MAXIMUM), 1);
        assert_true(steps[0] > 0);
    }
}

/* NCCL does not tell who is gone: the chief does. */
static void expect_end_after_a_kill(struct cluster_run *run, const char *text) {
    struct pair pair =
        start_endless(run, "\"timeouts\": {\"peer\": 3, \"recover\": 1}");
    cluster_run_signal(pair.one, SIGKILL);
    cluster_run_expect(pair.zero, RETRY, DEADLINE);
    cluster_fixture_expect_logged(pair.zero, text);
}

TEST(a_killed_rank_ends_all_with_138_and_is_named) {
    skip_without_headers();
    expect_end_after_a_kill(run, "worker 1 on host");
}

TEST(a_killed_rank_that_is_started_again_takes_its_place) {
    static const char *const sets[] = {"checkpoint.dir=whole",
                                       "checkpoint.dir=killed"};
    struct pair pair;
    skip_without_headers();
    write_job(run, 2, "Adam");
    cluster_run_describe(run, 0, 0, 2);
    for (int i = 0; i < 2; i++) {
        const char *const arguments[] = {"job.json",
                                         "--set",
                                         "steps=300",
                                         "--set",
                                         sets[i],
                                         "--set",
                                         "checkpoint.every_steps=10",
                                         "--set",
                                         "timeouts.peer=3",
                                         "--set",
                                         "strategy.backend=nccl",
                                         "--set",
                                         "strategy.type=allreduce",
                                         "--set",
                                         "device=cuda",
                                         NULL};
        pair.zero = start_rank(run, 0, NULL, arguments);
        pair.one = start_rank(run, 1, NULL, NULL);
        if (i) {
            cluster_run_await(pair.zero, "chief: checkpoint ", DEADLINE);
            cluster_run_signal(pair.one, SIGKILL);
            cluster_run_await(pair.zero, "the run goes back to its checkpoint",
                              DEADLINE);
            pair.one = start_rank(run, 1, NULL, NULL);
        }
        cluster_run_expect(pair.zero, 0, DEADLINE);
        cluster_run_expect(pair.one, 0, DEADLINE);
    }
    cluster_fixture_expect_logged(pair.zero, "the run goes on after step ");
    cluster_fixture_expect_same_checkpoints(run, "whole", "killed");
}

/* Nor does exit(3), which waits for NCCL then. */
TEST(an_abort_of_nccl_that_hangs_ends_with_138_too) {
    skip_on_a_gpu();
    setenv("NCCL_ON_CPU_ABORT_HANGS", "1", 1);
    expect_end_after_a_kill(run, "nccl has not closed its group of ranks");
    unsetenv("NCCL_ON_CPU_ABORT_HANGS");
}

/* Rank 1 of the caller is gone in step 10. */
TEST(an_abort_of_nccl_that_hangs_fails_a_call_of_the_library) {
    static const char *const gone[] = {"gone-3", NULL};
    char folder[PATH_MAX], caller[PATH_MAX + 32];
    skip_on_a_gpu();
    (void)build_folder_find(folder);
    snprintf(caller, sizeof caller, "%s/../tests/caller", folder);
    setenv("LD_LIBRARY_PATH", folder, 1);
    setenv("CAPSTAN_SET", "strategy.type=allreduce\nstrategy.backend=nccl", 1);
    setenv("NCCL_ON_CPU_ABORT_HANGS", "1", 1);
    cluster_run_describe(run, 0, 0, 2);
    struct cluster_process *zero = start_rank(run, 0, caller, gone);
    struct cluster_process *one = start_rank(run, 1, caller, gone);
    cluster_run_expect(one, 3, DEADLINE);
    cluster_run_expect(zero, RETRY, DEADLINE);
    cluster_fixture_expect_logged(zero, "COLLECTIVE_FAILED: nccl has not");
    unsetenv("NCCL_ON_CPU_ABORT_HANGS");
    unsetenv("CAPSTAN_SET");
    unsetenv("LD_LIBRARY_PATH");
}
