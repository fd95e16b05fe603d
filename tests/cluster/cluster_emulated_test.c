/* SPDX-License-Identifier: Apache-2.0 */
/* capstan-cuda.so itself where there is no GPU: its kernels run on the CPU
 * (tests/gpu/cuda_on_cpu.h), and the CPU plays CUDA's libraries. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_clicks.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/cluster/cluster_run.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <unistd.h>

enum { DEADLINE = 2 * CLUSTER_RUN_DEADLINE };

/* Widths that are multiples of nothing, and a short last batch. */
static const char job[] =
    "{\"model\": {\"layers\": [64, 129, 33, 10], \"activation\": \"tanh\"},"
    " \"steps\": 40, \"optimizer\": {\"type\": \"SGD\","
    " \"params\": {\"lr\": 0.02, \"momentum\": 0.9}}}";

static bool is_built;                /* the program beside that plugin */
static char ops_test[PATH_MAX + 16]; /* tests of a device's operations */

static int find_programs(void **state) {
    (void)state;
    char folder[PATH_MAX];
    (void)build_folder_find(folder);
    snprintf(ops_test, sizeof ops_test, "%s/tests/ops_test", folder);
    is_built = build_folder_use("emulated");
    return 0;
}

GROUP(find_programs, NULL);

static void skip_without_headers(void) {
    if (!is_built)
        skip_test("built where CUDA's headers are");
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(every_operation_agrees_with_double) {
    skip_without_headers();
    const char *const nothing[] = {NULL};
    struct cluster_process *process =
        cluster_run_program(run, "ops", ops_test, nothing, NULL);
    cluster_run_expect(process, 0, DEADLINE);
    assert_null(strstr(cluster_run_output(process), "without a GPU"));
    assert_null(strstr(cluster_run_errors(process), "without a GPU"));
}

/* The mean loss of the training on DEVICE, with CHANGE. */
static double loss_on(struct cluster_run *run, const char *device,
                      const char *change) {
    char set[64];
    const char *name = textf("%s-%.4s", device, change);
    snprintf(set, sizeof set, "device=%s", device);
    struct cluster_process *local = cluster_run_start(
        run, name,
        WORDS("local", "--json", "--workers", "1", "--set", set, "--set",
              textf("checkpoint.dir=%s", name), "--set", change, "job.json"),
        NULL);
    cluster_run_expect(local, 0, DEADLINE);
    const json_t *summary = cluster_run_json(local);
    double loss = json_real_value(json_object_get(summary, "train_loss"));
    return loss;
}

static void check_training(struct cluster_run *run, const char *of_job,
                           const char *change, double tolerance) {
    cluster_run_job(run, of_job);
    double cpu = loss_on(run, "cpu", change);
    double gpu = loss_on(run, "cuda", change);
    if (!(fabs(gpu - cpu) <= tolerance * cpu))
        fail_msg("the CPU's loss is %.9g, the GPU's %.9g", cpu, gpu);
}

TEST(in_float32_the_emulated_gpu_learns_what_the_cpu_learns) {
    skip_without_headers();
    check_training(run, job, "bf16.enabled=false", 1e-3);
}

/* The CPU computes in float32. */
TEST(in_tf32_the_emulated_gpu_learns_about_what_the_cpu_learns) {
    skip_without_headers();
    cluster_run_job(run, job);
    double cpu = loss_on(run, "cpu", "bf16.enabled=false");
    double gpu = loss_on(run, "cuda", "tf32=true");
    double whole = loss_on(run, "cuda", "bf16.enabled=false");
    if (!(fabs(gpu - cpu) <= 1e-2 * cpu) || gpu == whole)
        fail_msg("the CPU's loss is %.9g, the GPU's %.9g, in TF32 %.9g", cpu,
                 whole, gpu);
}

TEST(in_bf16_the_emulated_gpu_learns_about_what_the_cpu_learns) {
    skip_without_headers();
    check_training(run, job, "bf16.enabled=true", 1e-2);
}

TEST(in_fp16_the_emulated_gpu_learns_about_what_the_cpu_learns) {
    skip_without_headers();
    check_training(run, job, "fp16.enabled=true", 1e-2);
}

/* Other masks, or a pair left out, would leave another loss by far. */
TEST(with_tables_and_dropout_the_emulated_gpu_learns_the_same) {
    static const char *const jobs[][2] = {
        {"{" CLUSTER_CLICKS_DEEPFM ", \"steps\": 60}", "model.dropout=0.4"},
        {"{" CLUSTER_CLICKS_DATA "\"model\": {\"type\": \"dlrm\", \"dense\":"
         " [\"weight\"], \"embeddings\": [\"e_user\", \"e_item\"],"
         " \"bottom\": [8], \"top\": [16]}, \"steps\": 60, \"optimizer\":"
         " {\"type\": \"Adagrad\", \"params\": {\"lr\": 0.1}}}",
         "gradient_accumulation_steps=2"}};
    skip_without_headers();
    for (int i = 0; i < 2; i++) {
        run = cluster_fixture_reset(state);
        cluster_clicks_write(run);
        check_training(run, jobs[i][0], jobs[i][1], 1e-5);
    }
}

/* What a process's plugin said of its calls of CUDA. */
struct calls {
    unsigned long long all, graphs, launches, up, pageable;
};

static struct calls calls_of(const struct cluster_process *process) {
    struct calls calls = {0};
    const char *said = strstr(cluster_run_errors(process), "emulated: ");
    if (!said || sscanf(said,
                        "emulated: %llu calls of CUDA, %llu graphs, %llu "
                        "launches of them, %llu bytes up, %llu",
                        &calls.all, &calls.graphs, &calls.launches, &calls.up,
                        &calls.pageable) != 5)
        fail_msg("no count in:\n%s", cluster_run_errors(process));
    return calls;
}

/* One trainer on the emulated GPU, with CHANGES, to FOLDER/DIR. */
static struct cluster_process *train(struct cluster_run *run, const char *dir,
                                     const char *emulated, const char *num_ps,
                                     const char *change) {
    struct cluster_process *local = cluster_run_start(
        run, dir,
        WORDS("local", "--json", "--ps", num_ps, "--workers", "1", "--set",
              textf("checkpoint.dir=%s", dir), "--set", change, "--set",
              "device=cuda", "--set",
              num_ps[0] == '0' ? "strategy.type=allreduce" : "strategy.type=ps",
              "job.json"),
        WORDS(emulated));
    cluster_run_expect(local, 0, DEADLINE);
    return local;
}

/* A batch of 64 and a rest of 24 each epoch, and an evaluation. */
static const char deep[] =
    "{\"model\": {\"layers\": [64, 33, 65, 30, 10], \"activation\": \"tanh\"},"
    " \"train_micro_batch_size_per_gpu\": 64, \"data\": {\"drop_last\": false},"
    " \"epochs\": 5, \"optimizer\": {\"type\": \"SGD\","
    " \"params\": {\"lr\": 0.02, \"momentum\": 0.9}}}";

/* JOB in the folders graphs and none; returns the launches of graphs. */
static unsigned long long check_bits(struct cluster_run *run,
                                     const char *of_job, const char *num_ps,
                                     const char *change) {
    static unsigned seed;
    cluster_run_job(run, of_job);
    struct cluster_process *graphs = train(
        run, "graphs", textf("CAPSTAN_EMULATED=order=2,seed=%u,count", ++seed),
        num_ps, change);
    struct cluster_process *none =
        train(run, "none", "CAPSTAN_EMULATED=order=1,refuse=capture,count",
              num_ps, change);
    cluster_fixture_expect_same_checkpoints(run, "graphs", "none");
    assert_int_equal(calls_of(none).launches, 0);
    assert_false(
        cluster_fixture_has_logged(graphs, "no CUDA graph can be made"));
    assert_true(cluster_fixture_has_logged(none, "no CUDA graph can be made"));
    return calls_of(graphs).launches;
}

TEST(graphs_change_no_bits) {
    static const char *const changes[] = {
        "bf16.enabled=false",
        "bf16.enabled=true",
        "tf32=true",
        "fp16={\"enabled\":true,\"initial_scale_power\":26,"
        "\"loss_scale_window\":7,\"hysteresis\":2}",
        "gradient_accumulation_steps=3",
        "activation_checkpointing.number_checkpoints=1",
        "gradient_clipping=0.01",
    };
    skip_without_headers();
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        for (int ps = 0; ps < 2; ps++)
            assert_true(check_bits(cluster_fixture_reset(state), deep,
                                   ps ? "1" : "0", changes[i]) > 50);
    }
}

/* Three graphs a step, for each of the two batches on the device, from their
 * second time on. */
TEST(each_dropout_mask_comes_of_the_same_graph) {
    enum { STEPS = 40, GRAPHS = 3, BATCHES = 2 };
    static const char dropping[] = "{" CLUSTER_CLICKS_DEEPFM ", \"steps\": 40}";
    skip_without_headers();
    cluster_clicks_write(run);
    assert_true(check_bits(run, dropping, "1", "model.dropout=0.4") >=
                GRAPHS * (STEPS - BATCHES));
    cluster_clicks_expect_same_rows(run, "graphs", "none", "user/factors");
}

static double train_loss(struct cluster_process *process) {
    const json_t *summary = cluster_run_json(process);
    double loss = json_real_value(json_object_get(summary, "train_loss"));
    return loss;
}

/* Each thread computes at its own device: a stream takes nothing else. */
TEST(three_devices_learn_what_one_learns) {
    static const char *const several[] = {
        "CAPSTAN_EMULATED=devices=3,order=2,seed=5,count",
        "CAPSTAN_EMULATED=devices=3,order=1,refuse=capture,count"};
    skip_without_headers();
    cluster_run_job(run, "{\"model\": {\"layers\": [64, 33, 20, 10],"
                         " \"activation\": \"tanh\"},"
                         " \"train_micro_batch_size_per_gpu\": null,"
                         " \"train_batch_size\": 60, \"epochs\": 3}");
    double one = train_loss(train(run, "one", "CAPSTAN_EMULATED=order=1,count",
                                  "1", "gradient_accumulation_steps=1"));
    for (int i = 0; i < 2; i++) {
        struct cluster_process *three =
            train(run, textf("three%d", i), several[i], "1",
                  "gradient_accumulation_steps=1");
        assert_true(cluster_fixture_has_logged(
            three, "replicas: 3 (1 worker x 3 devices)"));
        assert_true(i || calls_of(three).launches > 50);
        if (!(fabs(train_loss(three) - one) <= 1e-5 * one))
            fail_msg("one device's loss is %.9g, that of three %.9g", one,
                     train_loss(three));
    }
    cluster_fixture_expect_same_checkpoints(run, "three0", "three1");
}

enum { FEW = 40, MANY = 60 };

/* What MANY - FEW more steps take. */
static struct calls calls_between(struct cluster_run *run, const char *model,
                                  const char *num_ps, const char *emulated) {
    struct calls few, many;
    char steps[32];
    cluster_run_job(run, model);
    snprintf(steps, sizeof steps, "steps=%d", FEW);
    few = calls_of(train(run, "few", emulated, num_ps, steps));
    snprintf(steps, sizeof steps, "steps=%d", MANY);
    many = calls_of(train(run, "many", emulated, num_ps, steps));
    return (struct calls){.all = many.all - few.all,
                          .up = many.up - few.up,
                          .pageable = many.pageable - few.pageable};
}

static double calls_a_step(struct cluster_run *run, const char *model,
                           const char *num_ps, const char *emulated) {
    return (double)calls_between(run, model, num_ps, emulated).all /
           (MANY - FEW);
}

/* Of images of 64 bytes, with labels of 4; beside them the weights come up. */
TEST(images_come_up_as_bytes) {
    enum { BATCH = 100, WEIGHTS = 40 * 65 + 10 * 41 };
    static const char flat[] = "{\"model\": {\"layers\": [64, 40, 10]},"
                               " \"train_micro_batch_size_per_gpu\": 100,"
                               " \"data\": {\"test\": null}}";
    skip_without_headers();
    struct calls calls =
        calls_between(run, flat, "1", "CAPSTAN_EMULATED=order=1,count");
    assert_int_equal(calls.up,
                     (uint64_t)(MANY - FEW) * (BATCH * (64 + 4) + 4 * WEIGHTS));
    assert_int_equal(calls.pageable, 0);
}

/* Of a deepfm over two ids with rows of 8 and a sum: a batch has 32 labels, 32
 * sums and 512 values of rows. Beside them the weights come up: a bias and the
 * layers 16 x 16 and 16 x 1. */
TEST(rows_come_up_once_in_pinned_memory) {
    enum { BATCH = 32, WEIGHTS = 1 + 16 * 16 + 16 + 16 + 1 };
    static const char deepfm[] = "{" CLUSTER_CLICKS_DEEPFM "}";
    skip_without_headers();
    cluster_clicks_write(run);
    struct calls calls =
        calls_between(run, deepfm, "1", "CAPSTAN_EMULATED=order=1,count");
    assert_int_equal(calls.up, (uint64_t)(MANY - FEW) * sizeof(float) *
                                   (BATCH * (1 + 1 + 16) + WEIGHTS));
    assert_int_equal(calls.pageable, 0);
}

/* Three layers: a graph for each of the first two, which begin when their
 * weights are there, and one for the rest of the pass, gradients that leave
 * among it. Beside them 6 parameters and 2 arrays of samples come up, with an
 * event and a wait for each layer, and a kernel for the pixels and 2 of each
 * for the samples: all that a second micro batch takes, with a launch. */
TEST(a_step_makes_few_host_calls) {
    static const char wide[] = "{\"model\": {\"layers\": [64, 40, 40, 10]},"
                               " \"train_micro_batch_size_per_gpu\": 100,"
                               " \"data\": {\"test\": null}}";
    static const char twice[] = "{\"model\": {\"layers\": [64, 40, 40, 10]},"
                                " \"train_micro_batch_size_per_gpu\": 100,"
                                " \"gradient_accumulation_steps\": 2,"
                                " \"data\": {\"test\": null}}";
    static const char graphs[] = "CAPSTAN_EMULATED=order=1,count";
    static const char none[] = "CAPSTAN_EMULATED=order=1,refuse=capture,count";
    skip_without_headers();
    double with = calls_a_step(cluster_fixture_reset(state), wide, "1", graphs);
    double without =
        calls_a_step(cluster_fixture_reset(state), wide, "1", none);
    double both =
        calls_a_step(cluster_fixture_reset(state), twice, "1", graphs);
    assert_true(with == 22);
    assert_true(without == 65);
    assert_true(both == 22 + 8);
}

/* 40 steps of one micro batch; what plays the profiler counts. */
TEST(passes_are_ranges_of_nvidias_profilers) {
    char folder[PATH_MAX];
    skip_without_headers();
    assert_true(build_folder_find(folder));
    const char *profiler = textf("%s/nvtx_counter.so", folder);
    if (access(profiler, R_OK))
        skip_test("built where NVTX's header is");
    cluster_run_job(run, job);
    struct cluster_process *process = cluster_run_start(
        run, "run", WORDS("run", "job.json", "--set", "device=cuda"),
        WORDS("CAPSTAN_EMULATED=order=1",
              textf("NVTX_INJECTION64_PATH=%s", profiler)));
    cluster_run_expect(process, 0, DEADLINE);
    cluster_fixture_expect_logged(
        process,
        "ranges: forward 40 backward 40 sum 0 apply 0 others 0 open 0");
}
