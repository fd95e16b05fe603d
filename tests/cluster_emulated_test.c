/* capstan-cuda.so itself where there is no GPU: its kernels run on the CPU
 * (tests/cuda_on_cpu.h), and the CPU plays CUDA's libraries. */
#include "tests/cluster_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEADLINE = 2 * CLUSTER_RUN_DEADLINE };

/* Widths that are multiples of nothing, and a short last batch. */
static const char job[] =
    "{\"model\": {\"layers\": [64, 129, 33, 10], \"activation\": \"tanh\"},"
    " \"steps\": 40, \"optimizer\": {\"type\": \"SGD\","
    " \"params\": {\"lr\": 0.02, \"momentum\": 0.9}}}";

/* The program beside that plugin, and the tests of a device's operations. */
static char program[PATH_MAX + 16], ops_test[PATH_MAX + 16];

static void find_programs(void) {
    const char *given = getenv("CAPSTAN");
    char built[PATH_MAX];
    if (!realpath(given ? given : "build/capstan", built))
        return;
    char *slash = strrchr(built, '/');
    int folder = (int)(slash - built);
    snprintf(program, sizeof program, "%.*s/emulated/capstan", folder, built);
    snprintf(ops_test, sizeof ops_test, "%.*s/tests/ops_test", folder, built);
    if (access(program, X_OK) == 0)
        setenv("CAPSTAN", program, 1);
    else
        program[0] = 0;
}

static void skip_without_headers(void) {
    if (!program[0]) {
        print_message("skipped: built where CUDA's headers are\n");
        skip();
    }
}

static void every_operation_agrees_with_double(void **state) {
    struct cluster_run *run = *state;
    skip_without_headers();
    const char *const nothing[] = {NULL};
    struct cluster_process *process =
        cluster_run_program(run, "ops", ops_test, nothing, NULL);
    cluster_run_expect(process, 0, DEADLINE);
    assert_null(strstr(cluster_run_output(process), "without a GPU"));
    assert_null(strstr(cluster_run_errors(process), "without a GPU"));
}

/* The mean loss of the training on DEVICE, with the halves of PRECISION. */
static double loss_on(struct cluster_run *run, const char *device,
                      const char *precision) {
    char name[64], set[64], folder[96];
    snprintf(name, sizeof name, "%s-%.4s", device, precision);
    snprintf(set, sizeof set, "device=%s", device);
    snprintf(folder, sizeof folder, "checkpoint.dir=%s", name);
    const char *const arguments[] = {"local", "--json",  "--workers", "1",
                                     "--set", set,       "--set",     folder,
                                     "--set", precision, "job.json",  NULL};
    struct cluster_process *local =
        cluster_run_start(run, name, arguments, NULL);
    cluster_run_expect(local, 0, DEADLINE);
    json_t *summary = cluster_run_json(local);
    double loss = json_real_value(json_object_get(summary, "train_loss"));
    json_decref(summary);
    return loss;
}

static void check_training(struct cluster_run *run, const char *precision,
                           double tolerance) {
    skip_without_headers();
    cluster_run_job(run, job);
    double cpu = loss_on(run, "cpu", precision);
    double gpu = loss_on(run, "cuda", precision);
    if (!(fabs(gpu - cpu) <= tolerance * cpu))
        fail_msg("the CPU's loss is %.9g, the GPU's %.9g", cpu, gpu);
}

static void in_float32_it_learns_what_the_cpu_learns(void **state) {
    check_training(*state, "bf16.enabled=false", 1e-3);
}

static void in_bf16_it_learns_about_what_the_cpu_learns(void **state) {
    check_training(*state, "bf16.enabled=true", 1e-2);
}

static void in_fp16_it_learns_about_what_the_cpu_learns(void **state) {
    check_training(*state, "fp16.enabled=true", 1e-2);
}

#define TEST(f)                                                                \
    cmocka_unit_test_setup_teardown(f, cluster_run_setup, cluster_run_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(every_operation_agrees_with_double),
        TEST(in_float32_it_learns_what_the_cpu_learns),
        TEST(in_bf16_it_learns_about_what_the_cpu_learns),
        TEST(in_fp16_it_learns_about_what_the_cpu_learns),
    };
    find_programs();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
