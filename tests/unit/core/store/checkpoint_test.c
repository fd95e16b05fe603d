/* SPDX-License-Identifier: Apache-2.0 */

#define STATE const char *dir

#include "core/base/time.h"
#include "core/store/checkpoint.h"
#include "core/store/checkpoint_reader.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* STEPS ends in UINT64_MAX. */
static void assert_steps(const char *dir, const uint64_t *steps) {
    uint64_t *found;
    size_t count, i;
    assert_ok(checkpoint_list(dir, &found, &count, &failure));
    for (i = 0; i < count && steps[i] != UINT64_MAX; i++)
        assert_true(found[i] == steps[i]);
    assert_int_equal(i, count);
    assert_true(steps[i] == UINT64_MAX);
    free(found);
}

#define STEPS(...) ((const uint64_t[]){__VA_ARGS__, UINT64_MAX})
#define NO_STEPS ((const uint64_t[]){UINT64_MAX})

static void make(const char *dir, const char *name) {
    const char *path = textf("%s/%s", dir, name);
    if (name[strlen(name) - 1] == '/')
        assert_int_equal(mkdir(path, 0777), 0);
    else
        close(open(path, O_WRONLY | O_CREAT, 0666));
}

FIXTURE(checkpoint_fixture_setup_folder, checkpoint_fixture_teardown_folder);

TEST_WITH(NULL, NULL, names_are_as_documented) {
    char text[64];
    checkpoint_folder("dir", 1500, text, sizeof text);
    assert_string_equal(text, "dir/step-000001500");
    checkpoint_folder("dir", 12345678901, text, sizeof text);
    assert_string_equal(text, "dir/step-12345678901");
    checkpoint_folder("dir", 1, text, 5);
    assert_string_equal(text, "");
    checkpoint_shard_name(0, 2, 0xabc, false, text, sizeof text);
    assert_string_equal(text, "ps-0-of-2-0000000000000abc.mdb");
    checkpoint_shard_name(0, 2, 0xabc, true, text, sizeof text);
    assert_string_equal(text, "ps-0-of-2-0000000000000abc-delta.mdb");
    checkpoint_sibling("/a/dir/step-000000007", 1500, text, sizeof text);
    assert_string_equal(text, "/a/dir/step-000001500");
    checkpoint_sibling("/step-000000007", 1500, text, sizeof text);
    assert_string_equal(text, "//step-000001500");
    checkpoint_sibling("step-000000007", 1500, text, sizeof text);
    assert_string_equal(text, "./step-000001500");
}

TEST(only_step_folders_with_a_manifest_are_listed) {
    assert_steps("/nowhere/at/all", NO_STEPS);
    assert_steps(dir, NO_STEPS);
    checkpoint_fixture_write(dir, 20, 1);
    checkpoint_fixture_write(dir, 3, 1);
    make(dir, "step-000000005/");
    make(dir, "step-000000005/ps-0-of-1-00.mdb");
    make(dir, "step-000000006");
    make(dir, "step-7/");
    make(dir, "step-7/manifest.json");
    make(dir, "step-00000000x/");
    make(dir, "step-00000000x/manifest.json");
    make(dir, "step-99999999999999999999999999/");
    make(dir, "step-99999999999999999999999999/manifest.json");
    assert_steps(dir, STEPS(3, 20));
}

TEST(an_unreadable_directory_is_reported) {
    uint64_t *steps;
    size_t count;
    const char *path = textf("%s/file", dir);
    make(dir, "file");
    assert_error(checkpoint_list(path, &steps, &count, &failure),
                 FAILURE_FILE_UNREADABLE);
    assert_contains(failure.text, path);
    assert_null(steps);
}

TEST(removing_a_step_leaves_foreign_files) {
    checkpoint_fixture_write(dir, 3, 2);
    checkpoint_fixture_write(dir, 4, 2);
    make(dir, "step-000000003/model.safetensors");
    assert_ok(checkpoint_remove(dir, 3, &failure));
    assert_ok(checkpoint_remove(dir, 4, &failure));
    assert_ok(checkpoint_remove(dir, 5, &failure));
    assert_steps(dir, NO_STEPS);
    assert_int_equal(checkpoint_fixture_entries(dir), 1);
    char folder[PATH_MAX];
    checkpoint_folder(dir, 3, folder, sizeof folder);
    assert_int_equal(checkpoint_fixture_entries(folder), 1);
}

TEST(a_failed_removal_has_removed_the_manifest) {
    char name[64];
    checkpoint_fixture_write(dir, 3, 1);
    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "step-000000003/ps-%d.mdb/", i);
        make(dir, name);
    }
    assert_error(checkpoint_remove(dir, 3, &failure), FAILURE_FILE_UNWRITABLE);
    assert_steps(dir, NO_STEPS);
}

/* Whoever may write into DIR may leave a link there. */
TEST(a_link_named_as_a_step_is_not_followed) {
    char target[PATH_MAX], path[PATH_MAX];
    const char *other = textf("%s/other", dir);
    checkpoint_fixture_write(other, 3, 1);
    checkpoint_folder(other, 3, target, sizeof target);
    size_t entries = checkpoint_fixture_entries(target);
    checkpoint_folder(dir, 1, path, sizeof path);
    assert_int_equal(symlink(target, path), 0);
    checkpoint_folder(dir, 2, path, sizeof path);
    assert_int_equal(symlink("/dev/null", path), 0);
    checkpoint_fixture_write(dir, 9, 1);
    assert_ok(checkpoint_prune(dir, 1, &failure));
    assert_int_equal(checkpoint_fixture_entries(target), entries);
    assert_steps(other, STEPS(3));
    assert_error(checkpoint_make_folder(dir, 1, &failure),
                 FAILURE_FILE_UNWRITABLE);
    assert_contains(failure.text, "is a link");
}

TEST(pruning_keeps_the_newest_and_those_in_progress) {
    for (uint64_t step = 1; step <= 5; step++)
        checkpoint_fixture_write(dir, 10 * step, 1);
    make(dir, "step-000000035/");
    make(dir, "step-000000035/ps-0-of-1-00.mdb.tmp");
    make(dir, "step-000000060/");
    make(dir, "step-000000060/ps-0-of-1-00.mdb.tmp");
    assert_ok(checkpoint_prune(dir, 0, &failure));
    assert_steps(dir, STEPS(10, 20, 30, 40, 50));
    assert_int_equal(checkpoint_fixture_entries(dir), 6);
    assert_ok(checkpoint_prune(dir, 2, &failure));
    assert_steps(dir, STEPS(40, 50));
    assert_int_equal(checkpoint_fixture_entries(dir), 3);
}

/* Steps 10 and 30 are full, 20 and 40 to 60 deltas of the one before. */
static void write_deltas(const char *dir) {
    checkpoint_fixture_write_tables(dir, 10, 1, 4);
    checkpoint_fixture_write_delta(dir, 20, 1, 10);
    checkpoint_fixture_write_tables(dir, 30, 1, 4);
    checkpoint_fixture_write_delta(dir, 40, 2, 30);
    checkpoint_fixture_write_delta(dir, 50, 1, 30);
    checkpoint_fixture_write_delta(dir, 60, 1, 30);
}

static void expect_pruned(const char *dir, uint32_t keep,
                          const uint64_t *steps) {
    assert_ok(checkpoint_prune(dir, keep, &failure));
    assert_steps(dir, steps);
}

TEST(a_base_lives_as_long_as_a_delta_needs_it) {
    write_deltas(dir);
    expect_pruned(dir, 5, STEPS(10, 20, 30, 40, 50, 60));
    expect_pruned(dir, 4, STEPS(30, 40, 50, 60));
    expect_pruned(dir, 2, STEPS(30, 50, 60));
    expect_pruned(dir, 1, STEPS(30, 60));
    checkpoint_fixture_write_tables(dir, 70, 1, 4);
    expect_pruned(dir, 2, STEPS(30, 60, 70));
    expect_pruned(dir, 1, STEPS(70));
}

TEST(partial_steps_stay_until_one_is_complete) {
    make(dir, "step-000000035/");
    assert_ok(checkpoint_prune(dir, 1, &failure));
    assert_int_equal(checkpoint_fixture_entries(dir), 1);
}

TEST(steps_of_an_earlier_run_are_moved_aside_whole) {
    size_t moved;
    for (uint64_t step = 1; step <= 3; step++)
        checkpoint_fixture_write(dir, step, 1);
    make(dir, "step-000000004/");
    assert_ok(checkpoint_set_aside(dir, 9, 7, &moved, &failure));
    assert_int_equal(moved, 0);
    assert_int_equal(checkpoint_fixture_entries(dir), 4);
    assert_ok(checkpoint_set_aside(dir, 2, 7, &moved, &failure));
    assert_int_equal(moved, 3);
    assert_steps(dir, STEPS(1));
    const char *aside = textf("%s/aside-0000000000000007", dir);
    assert_steps(aside, STEPS(2, 3));
    assert_ok(checkpoint_reader_verify(aside, 3, &failure));
}

/* Step 30 stays, and the deltas that move need it too. */
TEST(a_delta_is_moved_aside_with_its_base) {
    size_t moved;
    write_deltas(dir);
    assert_ok(checkpoint_set_aside(dir, 41, 7, &moved, &failure));
    assert_int_equal(moved, 2);
    assert_steps(dir, STEPS(10, 20, 30, 40));
    const char *aside = textf("%s/aside-0000000000000007", dir);
    assert_steps(aside, STEPS(30, 50, 60));
    expect_pruned(dir, 1, STEPS(30, 40));
    assert_ok(checkpoint_remove(dir, 30, &failure));
    for (uint64_t step = 30; step <= 60; step += 10)
        if (step != 40 && checkpoint_reader_verify(aside, step, &failure))
            fail_msg("%s", failure.text);
    assert_ok(checkpoint_set_aside(dir, 0, 8, &moved, &failure));
    assert_int_equal(moved, 1);
}

/* As after a kill: step 40 cannot move, as a file is in its place. */
TEST(moving_aside_may_end_anywhere_between_a_delta_and_its_base) {
    char aside[PATH_MAX + 32];
    size_t moved;
    write_deltas(dir);
    snprintf(aside, sizeof aside, "%s/aside-0000000000000007", dir);
    make(dir, "aside-0000000000000007/");
    make(aside, "step-000000040");
    assert_int_not_equal(checkpoint_set_aside(dir, 0, 7, &moved, &failure),
                         STATUS_OK);
    assert_int_equal(moved, 2);
    for (uint64_t step = 50; step <= 60; step += 10)
        assert_ok(checkpoint_reader_verify(aside, step, &failure));
    assert_ok(checkpoint_reader_verify(dir, 40, &failure));
    snprintf(aside, sizeof aside, "%s/aside-0000000000000008", dir);
    assert_ok(checkpoint_set_aside(dir, 0, 8, &moved, &failure));
    assert_steps(dir, NO_STEPS);
    assert_steps(aside, STEPS(10, 20, 30, 40));
    assert_ok(checkpoint_reader_verify(aside, 40, &failure));
}

/* A checkpoint that somebody keeps on another file system, by a symbolic link:
 * its files cannot have a further name here. */
TEST(a_base_on_another_file_system_is_copied_aside) {
    char base[PATH_MAX], aside[PATH_MAX + 32], other[] = "/dev/shm/base.XXXXXX",
                                               command[3 * PATH_MAX];
    struct stat here, there;
    size_t moved;
    if (!mkdtemp(other) || stat(dir, &here) || stat(other, &there) ||
        here.st_dev == there.st_dev) {
        rmdir(other);
        skip_test("no second file system at /dev/shm");
    }
    write_deltas(dir);
    checkpoint_folder(dir, 30, base, sizeof base);
    snprintf(command, sizeof command, "mv %s %s/base && ln -s %s/base %s", base,
             other, other, base);
    assert_int_equal(system(command), 0);
    assert_ok(checkpoint_set_aside(dir, 41, 7, &moved, &failure));
    snprintf(command, sizeof command, "rm -r %s %s", other, base);
    assert_int_equal(system(command), 0);
    snprintf(aside, sizeof aside, "%s/aside-0000000000000007", dir);
    assert_steps(aside, STEPS(30, 50, 60));
    for (uint64_t step = 30; step <= 60; step += 10)
        if (step != 40 && checkpoint_reader_verify(aside, step, &failure))
            fail_msg("%s", failure.text);
}

TEST(folders_are_created_with_parents_and_idempotently) {
    char deep[PATH_MAX + 16], folder[PATH_MAX];
    struct stat about;
    snprintf(deep, sizeof deep, "%s/a/b", dir);
    assert_ok(checkpoint_make_folder(deep, 1, &failure));
    assert_ok(checkpoint_make_folder(deep, 1, &failure));
    checkpoint_folder(deep, 1, folder, sizeof folder);
    assert_int_equal(stat(folder, &about), 0);
    make(dir, "file");
    snprintf(deep, sizeof deep, "%s/file", dir);
    assert_error(checkpoint_make_folder(deep, 1, &failure),
                 FAILURE_FILE_UNWRITABLE);
}

/* Writes steps from FIRST on until it is killed, MICROSECONDS after its start.
 */
static void write_until_killed(const char *dir, uint64_t first,
                               long microseconds) {
    timer_t timer;
    struct sigevent kill = {.sigev_notify = SIGEV_SIGNAL,
                            .sigev_signo = SIGKILL};
    struct itimerspec when = {
        .it_value = {.tv_sec = microseconds / 1000000,
                     .tv_nsec = microseconds % 1000000 * 1000}};
    if (timer_create(CLOCK_MONOTONIC, &kill, &timer) ||
        timer_settime(timer, 0, &when, NULL))
        _exit(1);
    for (uint64_t step = first;; step++) {
        checkpoint_fixture_write(dir, step, 2);
        if (checkpoint_prune(dir, 2, &failure))
            _exit(2);
    }
}

TEST(after_a_kill_every_listed_step_verifies) {
    unsigned seed = (unsigned)time(NULL);
    uint64_t newest = 1, *steps;
    size_t count;
    int64_t begun = time_now();
    checkpoint_fixture_write(dir, newest, 2);
    /* A kill comes while one of about three is written, on any disk. */
    long most = 500 + (long)(3 * (time_now() - begun) / 1000);
    print_message("seed %u\n", seed);
    for (int i = 0; i < 20; i++) {
        int status;
        long microseconds = 500 + rand_r(&seed) % most;
        pid_t child = fork();
        if (!child)
            write_until_killed(dir, newest + 1, microseconds);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        assert_ok(checkpoint_list(dir, &steps, &count, &failure));
        for (size_t s = 0; s < count; s++)
            assert_ok(checkpoint_reader_verify(dir, steps[s], &failure));
        assert_true(count && steps[count - 1] >= newest); /* none is lost */
        newest = steps[count - 1];
        free(steps);
    }
}
