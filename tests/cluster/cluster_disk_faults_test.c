/* SPDX-License-Identifier: Apache-2.0 */
/* Disks that lose what was not synced when the power fails, at every moment of
 * a run, and that refuse any one call: preload/traced_disk.c, power_cut.py.
 * SOAK_COUNT=10 cuts ten thousand times, and refuses ten times as many calls.
 */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_clicks.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    CUTS = 300,
    FAULTS = 12,
    LONG = 20 * CLUSTER_RUN_DEADLINE,
    EXIT_FAILED = 1,
    EXIT_RETRY = 138
};

FIXTURE(cluster_run_setup, cluster_run_teardown);

static void leave_disk(void) {
    unsetenv("LD_PRELOAD");
    unsetenv("CAPSTAN_FAILS");
}

/* The run makes the checkpoint directory, and what is above it in "disk".
 * Processes inherit the test's environment. */
static const char *trace_disk(struct cluster_run *run, const char *fails) {
    char built[PATH_MAX];
    leave_disk();
    assert_true(build_folder_find(built));
    const char *library = textf("%s/fake/traced_disk.so", built);
    assert_int_equal(access(library, R_OK), 0);
    assert_int_equal(system(textf("cd '%s' && rm -rf disk trace && "
                                  "mkdir disk trace",
                                  run->folder)),
                     0);
    setenv("CAPSTAN_TRACED_DISK", cluster_run_path(run, "disk"), 1);
    setenv("CAPSTAN_TRACE", cluster_run_path(run, "trace"), 1);
    setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 1); /* it is first */
    setenv("LD_PRELOAD", library, 1);
    if (fails)
        setenv("CAPSTAN_FAILS", fails, 1);
    return textf("checkpoint.dir=%s/a/b", cluster_run_path(run, "disk"));
}

/* Cuts at each call that run has made. */
static void expect_each_cut_leaves_all(struct cluster_run *run) {
    leave_disk();
    skip_unless_installed("python3", "python3");
    assert_int_equal(
        system(textf("python3 tests/cluster/power_cut.py '%s' '%s/disk' a/b "
                     "'%s/trace' %u 1",
                     getenv("CAPSTAN"), run->folder, run->folder,
                     cluster_fixture_repeats(CUTS))),
        0);
}

/* The oldest are removed, and the second run sets those of the first aside. */
TEST(a_power_cut_loses_no_complete_checkpoint) {
    cluster_run_job(run,
                    "{\"steps\": 60, \"optimizer\": {\"type\": \"Adam\"}}");
    const char *dir = trace_disk(run, NULL);
    cluster_run_expect(
        cluster_run_start(run, "traced",
                          WORDS("local", "--ps", "2", "--set", dir, "--set",
                                "checkpoint.every_steps=10", "--set",
                                "checkpoint.keep=2", "job.json"),
                          NULL),
        0, LONG);
    cluster_run_expect(
        cluster_run_start(run, "fewer",
                          WORDS("local", "--ps", "2", "--set", dir, "--set",
                                "checkpoint.every_steps=10", "--set",
                                "checkpoint.keep=2", "--set",
                                "checkpoint.resume=never", "job.json"),
                          NULL),
        0, LONG);
    expect_each_cut_leaves_all(run);
}

/* Most checkpoints of tables are deltas on another. */
TEST(a_power_cut_loses_no_checkpoint_of_tables) {
    cluster_clicks_write(run);
    cluster_run_job(run, "{" CLUSTER_CLICKS_DEEPFM ", \"steps\": 60}");
    const char *dir = trace_disk(run, NULL);
    cluster_run_expect(
        cluster_run_start(run, "traced",
                          WORDS("local", "--ps", "2", "--set", dir, "--set",
                                "checkpoint.every_steps=5", "job.json"),
                          NULL),
        0, LONG);
    expect_each_cut_leaves_all(run);
}

static struct cluster_process *train(struct cluster_run *run, const char *name,
                                     const char *dir) {
    return cluster_run_start(run, name,
                             WORDS("local", "--ps", "2", "--set", dir, "--set",
                                   "checkpoint.every_steps=10", "job.json"),
                             NULL);
}

/* How many calls a run has made. */
static unsigned count_calls(const struct cluster_run *run) {
    unsigned count = 0;
    FILE *file = fopen(cluster_run_path(run, "trace/count"), "rb");
    assert_non_null(file);
    assert_int_equal(fread(&count, sizeof count, 1, file), 1);
    fclose(file);
    return count;
}

/* What stands is whole, and the same command goes on from it. */
static void expect_rest_is_whole(struct cluster_run *run, const char *dir,
                                 unsigned number) {
    leave_disk();
    const char *folder = cluster_run_path(run, "disk/a/b");
    if (!access(folder, F_OK)) {
        struct cluster_process *verify =
            cluster_run_start(run, textf("verify-%u", number),
                              WORDS("ckpt", "verify", folder), NULL);
        if (cluster_run_exit(verify, LONG))
            assert_contains(cluster_run_errors(verify), "has no checkpoint");
    }
    cluster_run_expect(train(run, textf("again-%u", number), dir), 0, LONG);
    uint64_t steps[8];
    unsigned count = cluster_fixture_checkpoints(run, "disk/a/b", steps, 8);
    assert_true(count > 0 && steps[count - 1] == 60);
}

/* A run goes on without a checkpoint that was not written; it fails with a name
 * where its folder, or its last checkpoint, is refused. */
TEST(whichever_call_of_the_disk_fails_the_rest_is_whole) {
    cluster_run_job(run, "{\"steps\": 60}");
    const char *dir = trace_disk(run, "0");
    cluster_run_expect(train(run, "all", dir), 0, LONG);
    unsigned count = count_calls(run);
    unsigned faults = cluster_fixture_repeats(FAULTS);
    unsigned stride = faults < count ? count / faults : 1;
    for (unsigned number = 1; number <= count; number += stride) {
        dir = trace_disk(run, textf("%u", number));
        struct cluster_process *local =
            train(run, textf("fails-%u", number), dir);
        int code = cluster_run_exit(local, LONG);
        print_message("# call %u of %u: %d\n", number, count, code);
        assert_true(code == 0 || code == EXIT_FAILED || code == EXIT_RETRY);
        if (code)
            assert_contains(cluster_run_errors(local), "error: ");
        expect_rest_is_whole(run, dir, number);
    }
}
