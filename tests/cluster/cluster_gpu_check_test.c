/* SPDX-License-Identifier: Apache-2.0 */
/* deploy/gpu-check.sh and gpu-bench.sh: what they run, where, and how they end.
 * The folder of what was built holds stand-ins for most of it. */
#include "tests/cluster/cluster_run.h"
#include "tests/lib/build_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEADLINE = 2 * CLUSTER_RUN_DEADLINE, NOT_ALL = 77 };

/* The scripts, and the folder of what was really built. */
static char deploy[PATH_MAX], built[PATH_MAX];

static void find_scripts(void) {
    if (realpath("deploy", deploy))
        (void)build_folder_find(built);
}

static void write_script(const struct cluster_run *run, const char *name,
                         const char *text) {
    char path[PATH_MAX];
    cluster_run_path(run, name, path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "#!/bin/sh\n%s\n", text);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, 0755), 0);
}

/* FOLDER/b with a program that sees the fake GPU, or one that tells of none,
 * tests of one line, and a compute-sanitizer whose racecheck finds something
 * where RACE is set. */
static void arrange(const struct cluster_run *run, bool gpu) {
    static const char *const folders[] = {"b", "b/gpu", "b/tests", "bin"};
    char path[PATH_MAX], target[PATH_MAX + 16];
    for (int i = 0; i < 4; i++) {
        cluster_run_path(run, folders[i], path);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    snprintf(target, sizeof target, "%s/fake/capstan", built);
    cluster_run_path(run, "b/capstan", path);
    if (gpu)
        assert_int_equal(symlink(target, path), 0);
    else
        write_script(
            run, "b/capstan",
            "printf '{\"name\":\"cuda\",\"available\":false,"
            "\"reason\":\"none here, with %s\"}' \"$LD_LIBRARY_PATH\"");
    write_script(run, "b/tests/ops_test", "echo ok 1 - ops");
    write_script(run, "b/gpu/cuda_one_test", "echo ok 1 - one");
    write_script(run, "bin/compute-sanitizer",
                 "[ \"$1 $3 $5\" = '--tool --error-exitcode "
                 "--target-processes' ] || exit 1\n"
                 "tool=$2 code=$4\n"
                 "shift 6\n"
                 "\"$@\" || exit\n"
                 "[ \"$RACE\" ] && [ $tool = racecheck ] && exit $code\n"
                 "exit 0");
}

static struct cluster_process *check(struct cluster_run *run,
                                     const char *setting, int code) {
    char script[PATH_MAX + 32], folder[PATH_MAX], path[3 * PATH_MAX];
    cluster_run_path(run, "bin", folder);
    snprintf(path, sizeof path, "PATH=%s:%s", folder, getenv("PATH"));
    cluster_run_path(run, "b", folder);
    snprintf(script, sizeof script, "%s/gpu-check.sh", deploy);
    const char *const arguments[] = {folder, NULL};
    const char *const environment[] = {
        path, "GPU_CHECK_TOOLS=memcheck racecheck", setting, NULL};
    struct cluster_process *process =
        cluster_run_program(run, "check", script, arguments, environment);
    cluster_run_expect(process, code, DEADLINE);
    return process;
}

static void with_a_gpu_every_test_runs_under_each_tool(void **state) {
    struct cluster_run *run = *state;
    arrange(run, true);
    const char *said = cluster_run_output(check(run, "RACE=", 0));
    assert_non_null(strstr(said, "memcheck_cuda_one_test "));
    assert_non_null(strstr(said, "racecheck_cuda_one_test "));
    assert_non_null(strstr(said, "memcheck_training "));
    assert_non_null(strstr(said, "ran: the kernels' tests and a training under "
                                 "memcheck racecheck\n6 passed, 0 failed\n"));
    assert_null(strstr(said, "did not run"));
}

static void compute_sanitizer_findings_are_failures(void **state) {
    struct cluster_run *run = *state;
    arrange(run, true);
    const char *said = cluster_run_output(check(run, "RACE=1", 1));
    assert_non_null(strstr(said, "5 passed, 2 failed\n"));
}

static void without_a_gpu_the_skipped_tests_are_listed(void **state) {
    struct cluster_run *run = *state;
    arrange(run, false);
    const char *said = cluster_run_output(check(run, "RACE=", NOT_ALL));
    assert_non_null(strstr(said, "did not run: all that needs a GPU: no GPU: "
                                 "none here, with "));
    assert_non_null(strstr(said, "did not run: compute-sanitizer\n"
                                 "1 passed, 0 failed\n"));
}

static void without_a_gpu_nothing_is_measured(void **state) {
    struct cluster_run *run = *state;
    char script[PATH_MAX + 32], folder[PATH_MAX];
    arrange(run, false);
    cluster_run_path(run, "b", folder);
    snprintf(script, sizeof script, "%s/gpu-bench.sh", deploy);
    const char *const arguments[] = {folder, NULL};
    struct cluster_process *process =
        cluster_run_program(run, "bench", script, arguments, NULL);
    cluster_run_expect(process, NOT_ALL, DEADLINE);
    assert_non_null(strstr(cluster_run_output(process),
                           "gpu-bench: nothing was measured. No GPU: "));
}

/* Where PyPI's packages put them, and where a variable says. */
static void gpu_check_finds_the_cuda_libraries(void **state) {
    static const char *const folders[] = {"site", "site/nvidia",
                                          "site/nvidia/cu99",
                                          "site/nvidia/cu99/lib", "given"};
    struct cluster_run *run = *state;
    char path[PATH_MAX], setting[PATH_MAX + 32];
    arrange(run, false);
    for (int i = 0; i < 5; i++) {
        cluster_run_path(run, folders[i], path);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    write_script(run, "b/capstan-cuda.so", "libcudart.so.99");
    write_script(run, "bin/python3", "echo \"${0%/bin/python3}/site\"");
    write_script(run, "site/nvidia/cu99/lib/libcudart.so.99", "");
    write_script(run, "given/libcublas.so.99", "");
    cluster_run_path(run, "given", path);
    snprintf(setting, sizeof setting, "CAPSTAN_CUDA_LIBS=%s", path);
    struct cluster_process *process = check(run, setting, NOT_ALL);
    const char *said = cluster_run_errors(process);
    assert_non_null(strstr(said, "/site/nvidia/cu99/lib/libcudart.so.99\n"));
    assert_non_null(strstr(said, "cuBLAS: /"));
    assert_non_null(strstr(said, "/given/libcublas.so.99\n"));
    said = cluster_run_output(process);
    assert_non_null(strstr(said, "/given:"));
    assert_non_null(strstr(said, "/site/nvidia/cu99/lib"));
}

#define TEST(f)                                                                \
    cmocka_unit_test_setup_teardown(f, cluster_run_setup, cluster_run_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(with_a_gpu_every_test_runs_under_each_tool),
        TEST(compute_sanitizer_findings_are_failures),
        TEST(without_a_gpu_the_skipped_tests_are_listed),
        TEST(without_a_gpu_nothing_is_measured),
        TEST(gpu_check_finds_the_cuda_libraries),
    };
    find_scripts();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
