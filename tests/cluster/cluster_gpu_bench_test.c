/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_bench on a device that is the CPU (tests/gpu/fake_device.h), on the
 * emulated GPU (tests/gpu/cuda_on_cpu.h), on the CPU itself, and where there is
 * none. */
#include "tests/cluster/cluster_fixture.h"
#include "tests/cluster/cluster_run.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <math.h>
#include <unistd.h>

enum { DEADLINE = 4 * CLUSTER_RUN_DEADLINE, BUSY = 37 /* nvml_on_cpu.c */ };

/* The measuring program, the folder of the fake plugin, and the program beside
 * the emulated GPU's. */
static char bench[PATH_MAX + 16], libraries[PATH_MAX + 32];
static char emulated[PATH_MAX + 32];

static int find_programs(void **state) {
    (void)state;
    char built[PATH_MAX];
    (void)build_folder_find(built);
    snprintf(bench, sizeof bench, "%s/bench/gpu_bench", built);
    snprintf(libraries, sizeof libraries, "LD_LIBRARY_PATH=%s/fake", built);
    snprintf(emulated, sizeof emulated, "%s/emulated/capstan", built);
    (void)build_folder_use("fake");
    return 0;
}

GROUP(find_programs, NULL);

static struct cluster_process *measure(struct cluster_run *run,
                                       const char *const *arguments,
                                       const char *device, int code) {
    cluster_run_job(run, "{\"checkpoint\": null}");
    struct cluster_process *process = cluster_run_program(
        run, "bench", bench, arguments, WORDS(device, libraries));
    cluster_run_expect(process, code, DEADLINE);
    return process;
}

static double number(const json_t *object, const char *part, const char *key) {
    const json_t *value =
        json_object_get(part ? json_object_get(object, part) : object, key);
    if (!json_is_number(value))
        fail_msg("no number \"%s\" of \"%s\"", key, part ? part : "");
    return json_number_value(value);
}

static void expect_precision(const json_t *row, const char *precision,
                             double eager, double graph) {
    assert_string_equal(json_string_value(json_object_get(row, "precision")),
                        precision);
    assert_true(number(row, NULL, "batch") == 1);
    assert_true(number(row, "alone", "with_sgd_us") > 0);
    assert_true(number(row, "alone", "eager_us") == eager);
    assert_true(number(row, "alone", "graph_us") == graph);
}

static bool near(double a, double b) {
    return fabs(a - b) <= 1e-6 * fabs(b);
}

/* Each is measured, and what follows from it is what the table says. */
static void expect_run(const json_t *row, const char *lane, double wire) {
    double step = number(row, lane, "step_us");
    double copies = number(row, lane, "copies_us");
    double bound = fmax(number(row, "alone", "median_us"), fmax(copies, wire));
    assert_true(step > 0);
    assert_true(copies > 0);
    assert_true(number(row, lane, "update_us") > 0);
    assert_true(number(row, lane, "input_us") >= 0);
    assert_true(number(row, lane, "waiting_us") > 0);
    assert_true(near(number(row, lane, "bound_us"), bound));
    assert_true(near(number(row, lane, "reached_percent"), bound / step * 100));
    assert_true(near(number(row, lane, "gpu_used_percent"), BUSY));
}

/* Of another batch, too. */
static void write_torch(const struct cluster_run *run) {
    FILE *file = cluster_run_create(run, "torch.json");
    fputs("{\"256\": {\"fp32 eager\": 1, \"fp32 graph\": 2}, \"1\":"
          " {\"fp32 eager\": 90, \"fp32 graph\": 50, \"tf32 eager\": 80,"
          " \"tf32 graph\": 40}}",
          file);
    assert_int_equal(fclose(file), 0);
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

/* Many weights and one sample, so that it is not the computing that takes
 * longest. One device is measured, whatever else is there: of two the batch
 * would be another. */
TEST(a_gpu_has_every_documented_figure) {
    static const char *const arguments[] = {"--json",
                                            "--batches",
                                            "1",
                                            "--seconds",
                                            "0.3",
                                            "--set",
                                            "model.layers=[64, 4096, 10]",
                                            "--set",
                                            "train_batch_size=1",
                                            "--torch",
                                            "torch.json",
                                            "job.json",
                                            NULL};
    write_torch(*state);
    struct cluster_process *process =
        measure(*state, arguments, "CAPSTAN_FAKE_DEVICE=devices=2", 0);
    const json_t *object = cluster_run_json(process);
    const json_t *rows = json_object_get(object, "batches");
    const json_t *row = json_array_get(rows, 0),
                 *tf32 = json_array_get(rows, 1);
    assert_int_equal(json_array_size(rows), 2);
    expect_precision(row, "float32", 90, 50);
    expect_precision(tf32, "tf32", 80, 40);
    assert_string_equal(json_string_value(json_object_get(object, "device")),
                        "cuda 0 (Fake GPU)");
    double bytes = 4 * number(object, NULL, "parameters");
    assert_true(bytes == 4 * (64 * 4096 + 4096 + 4096 * 10 + 10));
    assert_true(number(object, "copies", "up_gb_s") > 0);
    assert_true(number(object, "copies", "down_gb_s") > 0);
    assert_true(number(object, "copies", "both_gb_s") > 0);
    assert_true(number(object, "loopback", "both_ways_gbit_s") > 0);
    double middle = number(row, "alone", "median_us");
    assert_true(number(row, "alone", "min_us") <= middle);
    assert_true(number(row, "alone", "max_us") >= middle);
    double wire = bytes * 8e-3 / number(object, "loopback", "one_way_gbit_s");
    assert_true(near(number(row, "tcp", "wire_us"), wire));
    expect_run(row, "tcp", wire);
    expect_run(row, "auto", 0);
    expect_run(tf32, "auto", 0);
}

TEST(the_cpu_has_the_same_table_without_copies) {
    static const char *const arguments[] = {
        "--device",  "cpu",  "--batches", "20",
        "--seconds", "0.02", "job.json",  NULL};
    struct cluster_process *process =
        measure(*state, arguments, "CAPSTAN_FAKE_DEVICE=devices=1", 0);
    const char *table = cluster_run_output(process);
    assert_contains(table, "device: cpu; model of 1210 parameters");
    assert_contains(table, "GB/s: up -, down -");
    assert_contains(table, "computing alone");
    assert_contains(table, "\nbatch 20     float32 tcp ");
    assert_contains(table, "\nbatch 20     float32 auto ");
}

/* 600 samples are one batch of 400 and a rest of 200, which would be half of
 * the steps: 300 samples a step, or with an odd number of steps some more. */
TEST(each_step_has_the_samples_of_its_batch) {
    static const char *const arguments[] = {
        "--device",  "cpu",  "--batches", "400",
        "--seconds", "0.02", "job.json",  NULL};
    static const char *const rests[] = {
        "--device",  "cpu",  "--batches", "400",
        "--seconds", "0.02", "--set",     "data.drop_last=false",
        "job.json",  NULL};
    measure(*state, arguments, "CAPSTAN_FAKE_DEVICE=devices=1", 0);
    struct cluster_process *process =
        measure(cluster_fixture_reset(state), rests,
                "CAPSTAN_FAKE_DEVICE=devices=1", 1);
    assert_contains(cluster_run_errors(process), "gpu_bench: a step had 30");
}

TEST(without_a_gpu_the_bench_reports_it_and_exits_with_2) {
    static const char *const arguments[] = {"job.json", NULL};
    struct cluster_process *process =
        measure(*state, arguments, "CAPSTAN_FAKE_DEVICE=devices=0", 2);
    assert_contains(cluster_run_errors(process), "gpu_bench: device: \"cuda\": "
                                                 "there is no GPU");
    assert_string_equal(cluster_run_output(process), "");
}

TEST(wrong_arguments_print_the_usage) {
    static const char *const arguments[] = {"--batches", "1,x", NULL};
    struct cluster_process *process =
        measure(*state, arguments, "CAPSTAN_FAKE_DEVICE=devices=1", 2);
    assert_contains(cluster_run_errors(process), "Usage: gpu_bench");
}

/* Reads the products of the next handle: given in float32, and in TF32. */
static void expect_products(FILE *file, bool float32, bool tf32) {
    enum { WARM_UP = 1 };
    unsigned long long products[2];
    assert_int_equal(fscanf(file, "%llu %llu", &products[0], &products[1]), 2);
    assert_int_equal(products[0] > WARM_UP, float32);
    assert_int_equal(products[1] > WARM_UP, tf32);
}

/* A row's figures come of two runs on each lane. A device has two handles. */
TEST(the_rows_of_tf32_are_computed_in_tf32) {
    enum { HANDLES = 2, RUNS_OF_A_ROW = 4 * HANDLES, ROWS = 2 };
    static const char *const arguments[] = {
        "--json", "--batches", "20", "--seconds", "0.02", "job.json", NULL};
    char products[PATH_MAX + 64];
    if (access(emulated, X_OK))
        skip_test("built where CUDA's headers are");
    setenv("CAPSTAN", emulated, 1); /* this test is the last */
    const char *path = cluster_run_path(*state, "products");
    snprintf(products, sizeof products, "CAPSTAN_EMULATED=products=%s", path);
    measure(*state, arguments, products, 0);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (int i = 0; i < HANDLES; i++) /* alone, of one device */
        expect_products(file, true, true);
    for (int i = 0; i < ROWS * RUNS_OF_A_ROW; i++)
        expect_products(file, i < RUNS_OF_A_ROW, i >= RUNS_OF_A_ROW);
    assert_int_equal(fgetc(file), '\n');
    assert_int_equal(fgetc(file), EOF);
    assert_int_equal(fclose(file), 0);
}
