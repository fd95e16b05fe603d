/* SPDX-License-Identifier: Apache-2.0 */
/* deploy/gpu-check.sh and gpu-bench.sh: what they run, where, and how they end.
 * The folder of what was built holds stand-ins for most of it. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_fixture.h"
#include "tests/cluster/cluster_run.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/test.h"

#include <sys/stat.h>
#include <unistd.h>

enum { DEADLINE = 4 * CLUSTER_RUN_DEADLINE, OUT_OF_TIME = 75, NOT_ALL = 77 };

/* The scripts, and the folder of what was really built. */
static char deploy[PATH_MAX], built[PATH_MAX];

static int find_scripts(void **state) {
    (void)state;
    if (realpath("deploy", deploy))
        (void)build_folder_find(built);
    return 0;
}

GROUP(find_scripts, NULL);

/* FOLDER/b with a program that sees the fake GPU, or one that tells of none,
 * tests of one line, and a compute-sanitizer whose racecheck finds something
 * where RACE is set. */
static void arrange(const struct cluster_run *run, bool gpu) {
    static const char *const folders[] = {"b", "b/gpu", "b/tests", "bin"};
    const char *path;
    char target[PATH_MAX + 16];
    for (int i = 0; i < 4; i++) {
        path = cluster_run_path(run, folders[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    snprintf(target, sizeof target, "%s/fake/capstan", built);
    path = cluster_run_path(run, "b/capstan");
    if (gpu)
        assert_int_equal(symlink(target, path), 0);
    else
        cluster_run_script(
            run, "b/capstan",
            "printf '{\"name\":\"cuda\",\"available\":false,"
            "\"reason\":\"none here, with %s\"}' \"$LD_LIBRARY_PATH\"");
    cluster_run_script(run, "b/tests/ops_test", "echo ok 1 - ops");
    cluster_run_script(run, "b/gpu/cuda_one_test", "echo ok 1 - one");
    cluster_run_script(
        run, "bin/compute-sanitizer",
        "[ \"$1 $2 $3 $5 $6 $7\" = '--report-api-errors no "
        "--error-exitcode --target-processes all --tool' ] || exit 1\n"
        "tool=$8 code=$4\n"
        "shift 8\n"
        "\"$@\" || exit\n"
        "[ \"$RACE\" ] && [ $tool = racecheck ] && exit $code\n"
        "exit 0");
}

/* A GPU program of FOLDER/b that ends once so many of them as FOLDER/JOBS says
 * have begun, and keeps in FOLDER/seen how many were under way. */
static void write_counted(const struct cluster_run *run, const char *name) {
    cluster_run_script(
        run, name,
        textf("cd %s; mkdir -p under-way; : > under-way/$$; : > begun.$$\n"
              "while [ $(ls begun.* | wc -l) -lt $JOBS ]; do sleep 0.01; done\n"
              "ls under-way | wc -l >> seen; rm under-way/$$\n"
              "echo ok 1 - met",
              cluster_run_path(run, ".")));
}

/* The most programs that were under way at once. */
static long most_at_once(struct cluster_run *run) {
    char line[32];
    long most = 0;
    FILE *file = fopen(cluster_run_path(run, "seen"), "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        most = strtol(line, NULL, 10) > most ? strtol(line, NULL, 10) : most;
    fclose(file);
    return most;
}

static struct cluster_process *check(struct cluster_run *run,
                                     const char *setting, const char *part,
                                     int code) {
    const char *folder = cluster_run_path(run, "bin");
    const char *path = textf("PATH=%s:%s", folder, getenv("PATH"));
    folder = cluster_run_path(run, "b");
    struct cluster_process *process = cluster_run_program(
        run, "check", textf("%s/gpu-check.sh", deploy), WORDS(folder, part),
        WORDS(path, "GPU_CHECK_TOOLS=memcheck racecheck", setting));
    cluster_run_expect(process, code, DEADLINE);
    return process;
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(with_a_gpu_every_part_runs_and_each_tool) {
    arrange(run, true);
    const char *said = cluster_run_output(check(run, "RACE=", NULL, 0));
    assert_contains(said, "memcheck_cuda_one_test ");
    assert_contains(said, "racecheck_cuda_one_test ");
    assert_contains(said, "memcheck_training ");
    assert_contains(said, "training_twice_resident ");
    assert_contains(said,
                    "ran: tests\nran: training\nran: sanitizers: "
                    "memcheck racecheck\n13 passed, 0 failed, 1 skipped\n");
    assert_null(strstr(said, "did not run"));
}

TEST(compute_sanitizer_findings_are_failures) {
    arrange(run, true);
    const char *said =
        cluster_run_output(check(run, "RACE=1", "sanitizers", 1));
    assert_contains(said, "3 passed, 2 failed\n");
}

/* Whatever the number of cores. */
TEST(four_programs_share_the_gpu_and_three_under_a_tool) {
    static const char *const parts[] = {"tests", "sanitizers"};
    static const char *const jobs[] = {"JOBS=4", "JOBS=3"};
    for (int i = 0; i < 2; i++) {
        run = cluster_fixture_reset(state);
        arrange(run, true);
        cluster_run_script(run, "bin/nproc", "echo 16");
        for (char *c = (char[]){"a"}; *c < 'g'; ++*c) {
            write_counted(run, textf("b/gpu/cuda_%s_test", c));
        }
        check(run, jobs[i], parts[i], 0);
        assert_int_equal(most_at_once(run), 4 - i);
    }
}

TEST(what_does_not_fit_into_the_time_is_named_as_not_run) {
    arrange(run, true);
    cluster_run_script(run, "b/tests/ops_test", "exec sleep 1000");
    cluster_run_script(
        run, "b/gpu/cuda_one_test",
        "trap 'echo not ok 1 - x: under way when the program was "
        "ended; exit 1' TERM\nsleep 1000 & wait");
    const char *said = cluster_run_output(
        check(run, "GPU_CHECK_SECONDS=2", NULL, OUT_OF_TIME));
    assert_contains(said, "training_twice not run: no time was left\n");
    assert_contains(said, "racecheck_cuda_one_test not run: ");
    assert_contains(said, "0 passed, 0 failed, 14 not run\n");
}

/* With the GPU's own check: a loss that is far from the CPU's. */
TEST(a_training_that_learns_something_else_fails) {
    arrange(run, true);
    const char *text =
        textf("case \" $* \" in *device=cuda*) set -- \"$@\" --set "
              "optimizer.params.lr=0.01;; esac\nexec '%s/fake/capstan' \"$@\"",
              built);
    assert_int_equal(unlink(cluster_run_path(run, "b/capstan")), 0);
    cluster_run_script(run, "b/capstan", text);
    const char *said = cluster_run_output(check(run, "RACE=", "training", 1));
    assert_contains(said, "the CPU's loss is ");
    assert_contains(said, "2 passed, 5 failed, 1 skipped\n");
}

TEST(without_a_gpu_the_skipped_tests_are_listed) {
    arrange(run, false);
    const char *said = cluster_run_output(check(run, "RACE=", NULL, NOT_ALL));
    assert_contains(said, "did not run: all that needs a GPU: no GPU: "
                          "none here, with ");
    assert_contains(said, "did not run: sanitizers\n"
                          "1 passed, 0 failed\n");
}

TEST(without_a_gpu_nothing_is_measured) {
    arrange(run, false);
    struct cluster_process *process =
        cluster_run_program(run, "bench", textf("%s/gpu-bench.sh", deploy),
                            WORDS(cluster_run_path(run, "b")), NULL);
    cluster_run_expect(process, NOT_ALL, DEADLINE);
    assert_contains(cluster_run_output(process),
                    "gpu-bench: nothing was measured. No GPU: ");
}

/* Where PyPI's packages put them, and where a variable says. */
TEST(gpu_check_finds_the_cuda_libraries) {
    static const char *const folders[] = {"site", "site/nvidia",
                                          "site/nvidia/cu99",
                                          "site/nvidia/cu99/lib", "given"};
    const char *path;
    arrange(run, false);
    for (int i = 0; i < 5; i++) {
        path = cluster_run_path(run, folders[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    cluster_run_script(run, "b/capstan-cuda.so", "libcudart.so.99");
    cluster_run_script(run, "bin/python3", "echo \"${0%/bin/python3}/site\"");
    cluster_run_script(run, "site/nvidia/cu99/lib/libcudart.so.99", "");
    cluster_run_script(run, "given/libcublas.so.99", "");
    cluster_run_script(run, "given/libcuda.so.1", "");
    path = cluster_run_path(run, "given");
    struct cluster_process *process =
        check(run, textf("CAPSTAN_CUDA_LIBS=%s", path), NULL, NOT_ALL);
    const char *said = cluster_run_errors(process);
    assert_contains(said, "/site/nvidia/cu99/lib/libcudart.so.99\n");
    assert_contains(said, "cuBLAS: /");
    assert_contains(said, "/given/libcublas.so.99\n");
    assert_contains(said, "/given/libcuda.so.1\n");
    said = cluster_run_output(process);
    assert_contains(said, "/given:");
    assert_contains(said, "/site/nvidia/cu99/lib");
}
