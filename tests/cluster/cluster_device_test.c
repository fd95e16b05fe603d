/* SPDX-License-Identifier: Apache-2.0 */
/* Real processes that compute on a GPU: a fake one (tests/gpu/fake_device.h),
 * which lies as a plugin beside a copy of the program. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_clicks.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/cluster/cluster_run.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <limits.h>
#include <math.h>

enum { EXIT_CONFIG = 2, EXIT_RETRY = 138, DEADLINE = 2 * CLUSTER_RUN_DEADLINE };

/* Fourteen blocks, momentum, an evaluation each epoch. */
static const char job[] =
    "{\"model\": {\"layers\": [64, 512, 256, 10]}, \"steps\": 40,"
    " \"gradient_accumulation_steps\": 2, \"optimizer\": {\"type\": \"SGD\","
    " \"params\": {\"lr\": 0.02, \"momentum\": 0.9}}}";

/* `capstan local` with two workers on GPUS ("devices=2", NULL: the CPU); its
 * checkpoints go to FOLDER/DIR. */
static struct cluster_process *start(struct cluster_run *run, const char *dir,
                                     const char *num_ps, const char *gpus,
                                     const char *strategy) {
    const char *folder = textf("checkpoint.dir=%s", dir);
    return cluster_run_start(
        run, dir,
        WORDS("local", "--ps", num_ps, "--workers", "2", "--set", folder,
              "--set", gpus ? "device=cuda" : "device=cpu", "--set", strategy,
              "job.json"),
        WORDS(textf("CAPSTAN_FAKE_DEVICE=%s", gpus ? gpus : "")));
}

GROUP(build_folder_use_fake, NULL);

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(gpus_with_ps_end_in_the_bits_of_the_cpu) {
    static const char *const gpus[] = {"devices=2,order=0", "devices=2,order=1",
                                       "devices=2,order=2",
                                       "devices=2,order=3,seed=9"};
    static const char ps[] = "strategy.type=ps";
    cluster_run_job(run, job);
    cluster_run_expect(start(run, "cpu", "1", NULL, ps), 0, DEADLINE);
    for (int i = 0; i < 4; i++) {
        const char *dir = textf("gpu%d", i);
        struct cluster_process *local = start(run, dir, "1", gpus[i], ps);
        cluster_run_expect(local, 0, DEADLINE);
        assert_true(
            cluster_fixture_has_logged(local, "device cuda 0 of 2: Fake GPU"));
        assert_true(
            cluster_fixture_has_logged(local, "device cuda 1 of 2: Fake GPU"));
        assert_false(cluster_fixture_has_logged(local, "they share them"));
        cluster_fixture_expect_same_checkpoints(run, "cpu", dir);
    }
}

TEST(gpus_in_all_reduce_end_in_the_bits_of_the_cpu) {
    static const char allreduce[] = "strategy.type=allreduce";
    cluster_run_job(run, job);
    struct cluster_process *cpu = start(run, "cpu", "0", NULL, allreduce);
    cluster_run_expect(cpu, 0, DEADLINE);
    struct cluster_process *gpu =
        start(run, "gpu", "0", "devices=2,order=3", allreduce);
    cluster_run_expect(gpu, 0, DEADLINE);
    cluster_fixture_expect_logged(
        cpu, "all-reduce by gloo (auto: worker 0 computes in host memory)");
    cluster_fixture_expect_logged(
        gpu, "all-reduce by gloo (auto: nccl, at worker 0: ");
    cluster_fixture_expect_same_checkpoints(run, "cpu", "gpu");
}

/* Weights and batches are read once more during the backward pass. */
TEST(gpus_that_recompute_end_in_the_bits_of_the_cpu) {
    static const char *const kept[] = {"0", "1", "2"};
    static const char *const gpus[] = {NULL, "devices=2,order=0",
                                       "devices=2,order=3,seed=5"};
    for (int i = 0; i < 3; i++) {
        const char *deep =
            textf("{\"model\": {\"layers\": [64, 96, 130, 70, 200, 64, 10]},"
                  " \"steps\": 30, \"gradient_accumulation_steps\": 2,"
                  " \"activation_checkpointing\":"
                  " {\"number_checkpoints\": %s}}",
                  kept[i]);
        const char *dir = textf("kept%s", kept[i]);
        cluster_run_job(run, deep);
        cluster_run_expect(start(run, dir, "1", gpus[i], "strategy.type=ps"), 0,
                           DEADLINE);
        cluster_fixture_expect_same_checkpoints(run, "kept0", dir);
    }
}

TEST(gpus_with_tables_and_dropout_end_in_the_bits_of_the_cpu) {
    static const char *const gpus[] = {"devices=2,order=0", "devices=2,order=1",
                                       "devices=2,order=3,seed=4"};
    static const char ps[] = "strategy.type=ps";
    cluster_clicks_write(run);
    cluster_run_job(
        run,
        "{" CLUSTER_CLICKS_DATA
        "\"model\": {\"type\": \"wide_deep\", \"wide\": [\"cross\"],"
        " \"deep\": [\"e_user\", \"e_item\", \"weight\"],"
        " \"hidden\": [16, 8], \"activation\": \"tanh\","
        " \"dropout\": 0.3},"
        " \"gradient_accumulation_steps\": 2, \"epochs\": 1,"
        " \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.02}}}");
    cluster_run_expect(start(run, "cpu", "1", NULL, ps), 0, DEADLINE);
    for (int i = 0; i < 3; i++) {
        const char *dir = textf("gpu%d", i);
        cluster_run_expect(start(run, dir, "1", gpus[i], ps), 0, DEADLINE);
        cluster_fixture_expect_same_checkpoints(run, "cpu", dir);
        cluster_clicks_expect_same_rows(run, "cpu", dir, "e_user");
    }
}

/* The test images as floats, from 0 to 1: one more type of IDX. */
static void write_float_images(const struct cluster_run *run) {
    enum { HEADER = 16, FLOATS = 0x0d };
    FILE *bytes = fopen(cluster_run_path(run, "test-images"), "r"),
         *floats = cluster_run_create(run, "floats");
    assert_non_null(bytes);
    for (int at = 0, byte; (byte = fgetc(bytes)) != EOF; at++) {
        float pixel = (float)byte / 255.0f;
        uint32_t bits;
        memcpy(&bits, &pixel, sizeof bits);
        if (at < HEADER)
            fputc(at == 2 ? FLOATS : byte, floats);
        for (int shift = 24; at >= HEADER && shift >= 0; shift -= 8)
            fputc((int)(bits >> shift & 255), floats);
    }
    fclose(bytes);
    assert_int_equal(fclose(floats), 0);
}

static double test_loss_on(struct cluster_run *run, const char *device,
                           const char *test) {
    struct cluster_process *local =
        cluster_run_start(run, device,
                          WORDS("local", "--json", "--workers", "1", "--set",
                                textf("device=%s", device), "--set", test,
                                "--set", "checkpoint={}", "job.json"),
                          WORDS("CAPSTAN_FAKE_DEVICE=devices=1,order=2"));
    cluster_run_expect(local, 0, DEADLINE);
    const json_t *summary = cluster_run_json(local);
    double loss = json_real_value(json_object_get(summary, "test_loss"));
    return loss;
}

/* Pixels go up as bytes where all data have them as bytes. */
TEST(images_of_any_type_are_evaluated_as_on_the_cpu) {
    static const char *const tests[] = {
        "data.test=[\"test-images\",\"test-labels\"]",
        "data.test=[\"floats\",\"test-labels\"]"};
    cluster_run_job(run, job);
    write_float_images(run);
    double first = test_loss_on(run, "cpu", tests[0]);
    assert_true(first > 0);
    for (int i = 0; i < 2; i++) {
        assert_true(test_loss_on(run, "cpu", tests[i]) == first);
        assert_true(test_loss_on(run, "cuda", tests[i]) == first);
    }
}

/* It stops within a pass, whose rows' gradients are awaited. */
TEST(a_pass_over_rows_may_take_as_long_as_a_step) {
    cluster_clicks_write(run);
    cluster_run_job(run, "{" CLUSTER_CLICKS_DEEPFM
                         ", \"steps\": 1000, \"timeouts\": {\"step\": 2}}");
    struct cluster_process *local = start(
        run, "gpu", "1", "devices=2,order=1,hang=200", "strategy.type=ps");
    cluster_run_expect(local, EXIT_RETRY, DEADLINE);
    assert_true(cluster_fixture_has_logged(
        local, "has not finished its work for 2 s (timeouts.step)"));
    assert_false(cluster_fixture_has_logged(local, "is lost"));
}

TEST(more_workers_than_devices_share_them) {
    cluster_run_job(run, job);
    cluster_run_expect(start(run, "cpu", "1", NULL, "strategy.type=ps"), 0,
                       DEADLINE);
    struct cluster_process *local =
        start(run, "gpu", "1", "devices=1,order=1", "strategy.type=ps");
    cluster_run_expect(local, 0, DEADLINE);
    assert_true(
        cluster_fixture_has_logged(local, "more trainers than devices here"));
    cluster_fixture_expect_same_checkpoints(run, "cpu", "gpu");
}

/* The two of one device are slower than two of their own. */
TEST(a_comparison_says_that_workers_share_a_gpu) {
    static const char *const arguments[] = {
        "compare",     "--steps",  "5",    "--repeats", "1",
        "--workers",   "2",        "--ps", "1",         "--set",
        "device=cuda", "job.json", NULL};
    cluster_run_job(run, job);
    struct cluster_process *one = cluster_run_start(
        run, "one", arguments, WORDS("CAPSTAN_FAKE_DEVICE=devices=1"));
    cluster_run_expect(one, 0, 2 * DEADLINE);
    assert_contains(cluster_run_output(one),
                    "\nup to 2 workers share 1 GPU and slow");
    struct cluster_process *two = cluster_run_start(
        run, "two", arguments, WORDS("CAPSTAN_FAKE_DEVICE=devices=2"));
    cluster_run_expect(two, 0, 2 * DEADLINE);
    assert_null(strstr(cluster_run_output(two), "GPU"));
}

/* The first steps overflow: gradients are all here before any leaves. */
TEST(in_fp16_gpus_skip_the_steps_that_the_cpu_skips) {
    static const char *const strategies[][2] = {
        {"1", "strategy.type=ps"}, {"0", "strategy.type=allreduce"}};
    const char *scaled =
        textf("%.*s, \"fp16\": {\"enabled\": true, \"hysteresis\": 1,"
              " \"initial_scale_power\": 28, \"loss_scale_window\": 9}}",
              (int)strlen(job) - 1, job);
    for (int i = 0; i < 2; i++) {
        const char *cpu = textf("cpu%d", i);
        const char *gpu = textf("gpu%d", i);
        cluster_run_job(run, scaled);
        const char *num_ps = strategies[i][0], *strategy = strategies[i][1];
        cluster_run_expect(start(run, cpu, num_ps, NULL, strategy), 0,
                           DEADLINE);
        struct cluster_process *local =
            start(run, gpu, num_ps, "devices=2,order=3", strategy);
        cluster_run_expect(local, 0, DEADLINE);
        assert_true(cluster_fixture_has_logged(local, "step 1 is skipped"));
        cluster_fixture_expect_same_checkpoints(run, cpu, gpu);
    }
}

static bool has_opened(const struct cluster_process *process,
                       const char *name) {
    char line[PATH_MAX + 128];
    bool found = false;
    FILE *maps = fopen(textf("/proc/%d/maps", cluster_run_pid(process)), "r");
    assert_non_null(maps);
    while (!found && fgets(line, sizeof line, maps))
        found = strstr(line, name) != NULL;
    fclose(maps);
    return found;
}

TEST(a_lost_device_ends_the_run_with_its_cause_for_all) {
    static const char text[] = "device cuda 1 (Fake GPU) is lost";
    cluster_run_job(run, "{\"steps\": 100000, \"device\": \"cuda\"}");
    cluster_run_describe(run, 0, 1, 2);
    setenv("CAPSTAN_FAKE_DEVICE", "devices=2,lose=3000,loser=1", 1);
    struct cluster_process *leader =
        cluster_run_task(run, "worker", 0, WORDS("job.json"));
    struct cluster_process *loser = cluster_run_task(run, "worker", 1, NULL);
    cluster_run_await_soon(loser, "device cuda 1 of 2");
    assert_true(has_opened(loser, "capstan-cuda.so"));
    /* without a ps nothing was computed, so that nobody has ended before */
    struct cluster_process *ps = cluster_run_task(run, "ps", 0, NULL);
    cluster_run_await_soon(ps, "listening on port");
    assert_false(has_opened(ps, "capstan-cuda.so"));
    cluster_run_expect(loser, EXIT_RETRY, DEADLINE);
    cluster_run_expect(leader, EXIT_RETRY, DEADLINE);
    cluster_run_expect(ps, EXIT_RETRY, DEADLINE);
    unsetenv("CAPSTAN_FAKE_DEVICE");
    assert_true(cluster_fixture_has_logged(loser, text));
    assert_true(cluster_fixture_has_logged(leader, text));
    assert_true(cluster_fixture_has_logged(ps, text));
    assert_true(
        cluster_fixture_has_logged(loser, "device as the job says: cuda or"));
    assert_true(cluster_fixture_has_logged(ps, "device cpu ("));
}

TEST(a_requested_but_missing_gpu_is_exit_2) {
    cluster_run_job(run, job);
    struct cluster_process *local =
        start(run, "none", "1", "devices=0", "strategy.type=ps");
    cluster_run_expect(local, EXIT_CONFIG, DEADLINE);
    assert_true(
        cluster_fixture_has_logged(local, "device: \"cuda\": there is no GPU"));
    local = start(run, "older", "1", "devices=2,older", "strategy.type=ps");
    cluster_run_expect(local, EXIT_CONFIG, DEADLINE);
    assert_true(cluster_fixture_has_logged(local, "is older than this build"));
}

TEST(auto_falls_back_to_the_cpu_and_logs_why) {
    cluster_run_job(run, NULL);
    struct cluster_process *local = cluster_run_start(
        run, "auto", WORDS("local", "--workers", "1", "job.json"),
        WORDS("CAPSTAN_FAKE_DEVICE=devices=0", "NVIDIA_VISIBLE_DEVICES=all"));
    cluster_run_expect(local, 0, DEADLINE);
    assert_true(
        cluster_fixture_has_logged(local, "device cpu; cuda: there is no GPU"));
}

TEST(a_gpu_that_is_too_small_is_exit_2_at_planning) {
    cluster_run_job(run, job);
    struct cluster_process *local = start(
        run, "small", "1", "devices=2,memory=1048576", "strategy.type=ps");
    cluster_run_expect(local, EXIT_CONFIG, DEADLINE);
    assert_true(
        cluster_fixture_has_logged(local, "memory: the job takes 3.2 MB on "));
    assert_true(
        cluster_fixture_has_logged(local, "where there is 1 MB (free on device "
                                          "cuda "));
    local = start(run, "shared", "1", "devices=1,memory=4194304",
                  "strategy.type=ps");
    cluster_run_expect(local, EXIT_CONFIG, DEADLINE);
    assert_true(
        cluster_fixture_has_logged(local, "memory: the job takes 6.4 MB on "));
    assert_true(cluster_fixture_has_logged(local, "fewer of the 2 trainers"));
}

/* Seven eighths of what it takes are there: it is tried. */
TEST(a_gpu_without_memory_names_the_keys) {
    cluster_run_job(run, job);
    struct cluster_process *local =
        start(run, "full", "1", "devices=2,memory=3000000", "strategy.type=ps");
    cluster_run_expect(local, 1, DEADLINE);
    assert_true(cluster_fixture_has_logged(local, "no memory on device cuda"));
    assert_true(cluster_fixture_has_logged(
        local, "What needs less: "
               "train_micro_batch_size_per_gpu 5 "
               "with gradient_accumulation_steps 4"));
}

TEST(info_lists_each_device) {
    setenv("CAPSTAN_FAKE_DEVICE", "devices=2", 1);
    const json_t *info =
        cluster_run_json(cluster_fixture_tool(run, 0, WORDS("info", "--json")));
    unsetenv("CAPSTAN_FAKE_DEVICE");
    json_t *devices = json_object_get(info, "devices");
    assert_int_equal(json_array_size(devices), 4);
    for (size_t i = 0; i < 2; i++) {
        json_t *device = json_array_get(devices, 2 + i);
        assert_string_equal(json_string_value(json_object_get(device, "name")),
                            i ? "cuda 1" : "cuda 0");
        assert_true(json_is_true(json_object_get(device, "available")));
        assert_string_equal(
            json_string_value(json_object_get(device, "compute_capability")),
            "9.0");
        assert_int_equal(
            json_integer_value(json_object_get(device, "memory_bytes")),
            64 << 20);
    }
}
