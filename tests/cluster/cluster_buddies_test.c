/* SPDX-License-Identifier: Apache-2.0 */
/* Copies in memory (strategy.replicas): a ps dies, and the run goes on from
 * what it and another ps had of its part. Its weights are those of a run in
 * which nothing died. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_clicks.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONFIG = 2 };
enum { LONG = 4 * CLUSTER_RUN_DEADLINE, STEPS = 40 /* between two copies */ };

#define REPLICAS                                                               \
    "\"strategy\": {\"replicas\": 1, \"buddy_steps\": 40}, "                   \
    "\"checkpoint\": {\"every_steps\": 0}, \"steps_per_print\": 10"

FIXTURE(cluster_run_setup, cluster_run_teardown);

static struct cluster_process *start(struct cluster_run *run, const char *name,
                                     const char *num_ps, const char *change) {
    return cluster_run_start(run, name,
                             WORDS("local", "job.json", "--ps", num_ps,
                                   "--workers", "2", "--json", "--set", change),
                             NULL);
}

/* The number behind TEXT in LINE. */
static uint64_t number_after(const char *line, const char *text) {
    const char *found = strstr(line, text);
    assert_non_null(found);
    return strtoull(found + strlen(text), NULL, 10);
}

static pid_t await_chief(struct cluster_process *local) {
    const char *line = cluster_run_await_soon(local, "chief: host ");
    return (pid_t)number_after(line, ", pid ");
}

/* Of the ps among the next COUNT members of LOCAL, which join in any order. */
static void await_joined(struct cluster_process *local, int count,
                         pid_t *pids) {
    while (count--) {
        const char *line = cluster_run_await_soon(local, " joined from ");
        for (int p = 0; p < 4; p++)
            if (strstr(line, textf("ps %d joined", p)))
                pids[p] = (pid_t)number_after(line, ", pid ");
    }
}

/* The same of those that are to be started. */
static void await_ps(struct cluster_process *local, int count, pid_t *pids) {
    cluster_run_await_soon(local, "chief: listening");
    await_joined(local, count, pids);
}

static void await_step(struct cluster_process *local, uint64_t step) {
    cluster_run_await_soon(local, textf("step %" PRIu64 "/", step));
}

/* LOCAL goes back to a copy, with COUNT members, of which the ps are PIDS: the
 * copy's step. */
static uint64_t expect_back(struct cluster_process *local, int count,
                            pid_t *pids) {
    const char *line = cluster_run_await_soon(local, "the run goes back to the "
                                                     "copy of step ");
    uint64_t after = number_after(line, "after step ");
    uint64_t copy = number_after(line, "copy of step ");
    assert_int_equal(copy % STEPS, 0);
    assert_true(copy >= STEPS && copy <= after);
    await_ps(local, count, pids);
    line = cluster_run_await_soon(local, "the run goes on after step ");
    assert_int_equal(number_after(line, "goes on after step "), copy);
    return copy;
}

/* Each of NUM_PS in turn dies in a run of `job.json`. */
static void expect_each_may_die(struct cluster_run *run, const char *num_ps) {
    int count = atoi(num_ps);
    pid_t pids[4];
    cluster_run_expect(start(run, "whole", num_ps, "checkpoint.dir=a"), 0,
                       LONG);
    struct cluster_process *local =
        start(run, "killed", num_ps, "checkpoint.dir=b");
    await_ps(local, count + 2, pids);
    for (int p = 0; p < count; p++) {
        await_step(local, 1000 * (uint64_t)(p + 1));
        assert_int_equal(kill(pids[p], SIGKILL), 0);
        expect_back(local, count + 2, pids);
    }
    cluster_run_expect(local, 0, LONG);
    assert_int_equal(
        json_integer_value(json_object_get(cluster_run_json(local), "rewinds")),
        count);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
}

TEST(each_of_two_ps_may_die) {
    cluster_run_job(run, "{\"steps\": 6000, \"optimizer\": {\"type\": "
                         "\"Adam\"}, " REPLICAS "}");
    expect_each_may_die(run, "2");
}

TEST(tables_are_in_the_copies) {
    cluster_clicks_write(run);
    cluster_run_job(run, "{" CLUSTER_CLICKS_DEEPFM
                         ", \"steps\": 6000, " REPLICAS "}");
    expect_each_may_die(run, "3");
}

/* The next copy of LOCAL, whose log is JSON, that has only what has changed. */
static uint64_t await_delta(struct cluster_process *local) {
    const char *line =
        cluster_run_await_soon(local, ": what has changed since step ");
    uint64_t step = number_after(line, "the copy of step ");
    assert_true(number_after(line, "has changed since step ") < step);
    return step;
}

/* A ps dies, then the chief and the other ps at once: the chief that returns
 * knows the copy and its base from the ps that is left. */
TEST(copies_of_tables_have_what_has_changed) {
    cluster_clicks_write(run);
    cluster_run_job(run, "{" CLUSTER_CLICKS_DEEPFM
                         ", \"steps\": 8000, " REPLICAS "}");
    pid_t pids[2];
    cluster_run_expect(start(run, "whole", "2", "checkpoint.dir=a"), 0, LONG);
    struct cluster_process *local = cluster_run_start(
        run, "killed",
        WORDS("local", "job.json", "--ps", "2", "--workers", "2", "--json-log",
              "--set", "checkpoint.dir=b", "--set", "strategy.buddy_steps=500"),
        NULL);
    const char *line = cluster_run_await_soon(local, "\"role\":\"chief\"");
    pid_t chief = (pid_t)number_after(line, ", pid ");
    await_joined(local, 4, pids);
    uint64_t step = await_delta(local);
    assert_int_equal(kill(pids[1], SIGKILL), 0);
    await_joined(local, 4, pids);
    cluster_run_await_soon(local,
                           textf("the run goes on after step %" PRIu64, step));
    step = await_delta(local);
    assert_int_equal(kill(chief, SIGKILL) | kill(pids[0], SIGKILL), 0);
    cluster_run_await_soon(local,
                           textf("the run goes on after step %" PRIu64, step));
    cluster_run_expect(local, 0, LONG);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
}

/* Two of four have no block, and the last has none of them and no rows. */
TEST(ps_without_blocks_have_no_part) {
    cluster_run_job(
        run,
        "{\"model\": {\"layers\": [64, 10]}, \"steps\": 6000, " REPLICAS "}");
    expect_each_may_die(run, "4");
}

/* It takes the run over, or back to the disk: not to what only members had.
 * Since the last checkpoint there was time for a copy. */
TEST(the_chief_may_die_after_a_return_to_memory) {
    pid_t pids[2];
    cluster_run_job(run, "{\"steps\": 30000, " REPLICAS "}");
    struct cluster_process *local =
        start(run, "killed", "2", "checkpoint.every_steps=12001");
    pid_t chief = await_chief(local);
    await_ps(local, 4, pids);
    await_step(local, 20000);
    assert_int_equal(kill(pids[1], SIGKILL), 0);
    assert_true(expect_back(local, 4, pids) > 12001);
    await_step(local, 20800);
    assert_int_equal(kill(chief, SIGKILL), 0);
    cluster_run_await_soon(local, "nothing is computed again");
    cluster_run_expect(local, 0, LONG);
}

/* Long before the next copy is due. */
TEST(a_chief_that_has_adopted_the_run_knows_the_copies) {
    pid_t pids[2];
    cluster_run_job(run, "{\"steps\": 30000, " REPLICAS "}");
    struct cluster_process *local =
        start(run, "killed", "2", "strategy.buddy_steps=8000");
    pid_t chief = await_chief(local);
    await_ps(local, 4, pids);
    await_step(local, 9000);
    assert_int_equal(kill(chief, SIGKILL), 0);
    cluster_run_await_soon(local, "nothing is computed again");
    assert_int_equal(kill(pids[1], SIGKILL), 0);
    cluster_run_await_soon(local, "the run goes back to the copy of step ");
    const char *line =
        cluster_run_await_soon(local, "the run goes on after step ");
    assert_int_equal(number_after(line, "goes on after step ") % 8000, 0);
    assert_true(number_after(line, "goes on after step ") >= 8000);
    cluster_run_expect(local, 0, LONG);
}

TEST(a_chief_and_a_ps_that_die_at_once_take_the_run_back_to_a_copy) {
    pid_t pids[2];
    cluster_run_job(run, "{\"steps\": 6000, " REPLICAS "}");
    cluster_run_expect(start(run, "whole", "2", "checkpoint.dir=a"), 0, LONG);
    struct cluster_process *local =
        start(run, "killed", "2", "checkpoint.dir=b");
    pid_t chief = await_chief(local);
    await_ps(local, 4, pids);
    await_step(local, 1000);
    assert_int_equal(kill(chief, SIGKILL) | kill(pids[1], SIGKILL), 0);
    cluster_run_await_soon(local, "wait for its chief, which is gone");
    const char *line =
        cluster_run_await_soon(local, "the run goes on after step ");
    assert_true(number_after(line, "goes on after step ") >= STEPS);
    cluster_run_expect(local, 0, LONG);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
}

/* One byte of each part in the memory of the ps of PID, of its OWN ones or of
 * those of another ps. */
static void damage_copies(pid_t pid, bool own) {
    DIR *dir = opendir(textf("/proc/%d/fd", (int)pid));
    assert_non_null(dir);
    const struct dirent *entry;
    int damaged = 0;
    while ((entry = readdir(dir))) {
        char name[256] = "", path[300];
        snprintf(path, sizeof path, "/proc/%d/fd/%.20s", (int)pid,
                 entry->d_name);
        if (readlink(path, name, sizeof name - 1) < 0 ||
            !strstr(name, own ? "-of-" : "memfd:capstan-copy"))
            continue;
        int fd = open(path, O_RDWR | O_CLOEXEC);
        char byte;
        assert_int_equal(pread(fd, &byte, 1, 5000), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, 5000), 1);
        close(fd);
        damaged++;
    }
    closedir(dir);
    assert_true(damaged > 0);
}

/* That of ps 0, which lives, or of ps 1, which dies. No checkpoint is written
 * when the copy is due, also on a slow disk. */
static void expect_back_to_disk(struct cluster_run *run, bool own) {
    pid_t pids[2];
    cluster_run_job(run, "{\"steps\": 26000, \"checkpoint\": "
                         "{\"every_steps\": 10000}, \"strategy\": "
                         "{\"replicas\": 1, \"buddy_steps\": 16000}, "
                         "\"steps_per_print\": 10}");
    struct cluster_process *local =
        start(run, "killed", "2", "checkpoint.dir=a");
    await_ps(local, 4, pids);
    await_step(local, 19000);
    damage_copies(pids[0], own);
    assert_int_equal(kill(pids[1], SIGKILL), 0);
    cluster_run_await_soon(local, "copy of step 16000");
    cluster_run_await_soon(local,
                           own ? "ps 0: warning: the copy in memory of "
                                 "step 16000 of its own part, from its own"
                               : "of the part of ps 1, from ps 0");
    cluster_run_await(
        local, own ? "is not whole" : "3 times without coming further", LONG);
    cluster_run_await_soon(local, "the run goes on after step 10000");
    cluster_run_expect(local, 0, LONG);
}

TEST(a_damaged_copy_of_another_ps_is_named_and_the_disk_is_taken) {
    expect_back_to_disk(run, false);
}

TEST(a_damaged_copy_of_its_own_is_named_and_the_disk_is_taken) {
    expect_back_to_disk(run, true);
}

TEST(a_copy_is_taken_where_a_newer_checkpoint_is_damaged) {
    pid_t pids[2];
    cluster_run_job(run, "{\"steps\": 26000, \"checkpoint\": "
                         "{\"every_steps\": 10000}, \"strategy\": "
                         "{\"replicas\": 1, \"buddy_steps\": 16000}, "
                         "\"steps_per_print\": 10}");
    struct cluster_process *local =
        start(run, "killed", "2", "checkpoint.dir=a");
    await_ps(local, 4, pids);
    cluster_run_await(local, "/a/step-000020000: ", LONG);
    cluster_fixture_damage(run, "a", 20000);
    assert_int_equal(kill(pids[1], SIGKILL), 0);
    cluster_run_await_soon(local, "checkpoint of step 20000 passed over: ");
    cluster_run_await_soon(local, "the run goes on after step 16000");
    cluster_run_expect(local, 0, LONG);
}

/* Also where there is no other place to go back to. */
TEST(two_ps_that_die_at_once_take_the_run_back_to_its_start) {
    pid_t pids[2];
    cluster_run_job(run, "{\"steps\": 6000, " REPLICAS "}");
    cluster_run_expect(start(run, "whole", "2", "export.path=\"a.npz\""), 0,
                       LONG);
    struct cluster_process *local = cluster_run_start(
        run, "killed",
        WORDS("local", "job.json", "--ps", "2", "--workers", "2", "--json",
              "--set", "checkpoint=null", "--set", "export.path=\"b.npz\""),
        NULL);
    await_ps(local, 4, pids);
    await_step(local, 1000);
    assert_int_equal(kill(pids[0], SIGKILL) | kill(pids[1], SIGKILL), 0);
    cluster_run_await_soon(local, "is not whole");
    cluster_run_await_soon(local, "the run goes on after step 0");
    cluster_run_expect(local, 0, LONG);
    assert_int_equal(
        system(textf("cmp '%s' '%s' >&2", cluster_run_path(run, "a.npz"),
                     cluster_run_path(run, "b.npz"))),
        0);
}

/* PS of LOCAL, one of COUNT members, dies once more than it is started again,
 * so that the run goes on with LEFT ps: from a copy of after step STEP. */
static void give_up(struct cluster_process *local, int count, pid_t *pids,
                    int ps, uint64_t step, int left) {
    await_step(local, step);
    assert_int_equal(kill(pids[ps], SIGKILL), 0);
    expect_back(local, count, pids);
    await_step(local, step + 1000);
    assert_int_equal(kill(pids[ps], SIGKILL), 0);
    cluster_run_await_soon(local, textf("goes on with %d ps", left));
    const char *line =
        cluster_run_await_soon(local, "the run goes on after step ");
    uint64_t copy = number_after(line, "goes on after step ");
    assert_int_equal(copy % STEPS, 0);
    assert_true(copy > step);
}

/* Of three ps two in turn, and no folder: what is left has the weights that the
 * others had. */
static void expect_given_up(struct cluster_run *run, const char *job) {
    pid_t pids[3];
    cluster_run_job(run, job);
    cluster_run_expect(start(run, "whole", "3", "export.path=\"a.npz\""), 0,
                       LONG);
    struct cluster_process *local = cluster_run_start(
        run, "killed",
        WORDS("local", "job.json", "--ps", "3", "--workers", "2", "--json",
              "--set", "checkpoint=null", "--set", "export.path=\"b.npz\"",
              "--max-restarts", "1"),
        NULL);
    await_ps(local, 5, pids);
    give_up(local, 5, pids, 1, 1000, 2);
    give_up(local, 4, pids, 0, 3000, 1);
    cluster_run_await_soon(local, "all weights are on one ps");
    cluster_run_expect(local, 0, LONG);
    assert_int_equal(
        system(textf("cmp '%s' '%s' >&2", cluster_run_path(run, "a.npz"),
                     cluster_run_path(run, "b.npz"))),
        0);
}

TEST(others_take_over_from_copies_of_a_ps_that_is_given_up) {
    expect_given_up(run, "{\"steps\": 8000, \"optimizer\": {\"type\": "
                         "\"Adam\"}, " REPLICAS "}");
}

/* Where none is started again, and without a checkpoint. */
TEST(a_ps_takes_over_from_copies_without_restarts) {
    pid_t pids[2];
    cluster_run_job(run, "{\"steps\": 6000, " REPLICAS "}");
    struct cluster_process *local = cluster_run_start(
        run, "killed",
        WORDS("local", "job.json", "--ps", "2", "--workers", "2", "--json",
              "--set", "checkpoint=null", "--max-restarts", "0"),
        NULL);
    await_ps(local, 4, pids);
    await_step(local, 1000);
    assert_int_equal(kill(pids[1], SIGKILL), 0);
    cluster_run_await_soon(local, "goes on with 1 ps");
    const char *line =
        cluster_run_await_soon(local, "the run goes on after step ");
    assert_true(number_after(line, "goes on after step ") > 0);
    cluster_run_expect(local, 0, LONG);
}

TEST(others_take_over_rows_of_tables_from_copies) {
    cluster_clicks_write(run);
    expect_given_up(run, "{" CLUSTER_CLICKS_DEEPFM
                         ", \"steps\": 8000, " REPLICAS "}");
}

TEST(with_staleness_it_goes_on_too) {
    pid_t pids[2];
    cluster_run_job(run, "{\"steps\": 6000, " REPLICAS "}");
    struct cluster_process *local =
        start(run, "killed", "2", "strategy.staleness=4");
    await_ps(local, 4, pids);
    cluster_run_await_soon(local, "step 1000/");
    assert_int_equal(kill(pids[1], SIGKILL), 0);
    cluster_run_await_soon(local, "the run goes back to the copy of step ");
    const char *line =
        cluster_run_await_soon(local, "the run goes on after step ");
    assert_true(number_after(line, "goes on after step ") > 0);
    cluster_run_expect(local, 0, LONG);
}

TEST(the_newer_of_disk_and_memory_is_taken) {
    pid_t pids[2];
    cluster_run_job(run, "{\"steps\": 30000, " REPLICAS "}");
    struct cluster_process *local =
        start(run, "killed", "2", "checkpoint.every_steps=12001");
    await_ps(local, 4, pids);
    await_step(local, 20000);
    assert_int_equal(kill(pids[0], SIGKILL), 0);
    assert_true(expect_back(local, 4, pids) > 12001);
    cluster_run_expect(local, 0, LONG);
}

/* The second death uses up the restarts: the ps that is left has all. */
TEST(a_run_that_comes_down_to_one_ps_goes_on_without_copies) {
    pid_t pids[2];
    cluster_run_job(run, "{\"steps\": 6000, " REPLICAS "}");
    cluster_run_expect(start(run, "whole", "2", "checkpoint.dir=a"), 0, LONG);
    struct cluster_process *local = cluster_run_start(
        run, "killed",
        WORDS("local", "job.json", "--ps", "2", "--workers", "2",
              "--max-restarts", "1", "--set", "checkpoint.dir=b", "--set",
              "checkpoint.every_steps=500"),
        NULL);
    await_ps(local, 4, pids);
    await_step(local, 1000);
    assert_int_equal(kill(pids[1], SIGKILL), 0);
    await_ps(local, 4, pids);
    cluster_run_await_soon(local, "the run goes on after step ");
    await_step(local, 2000);
    assert_int_equal(kill(pids[1], SIGKILL), 0);
    cluster_run_await_soon(local, "so that the run goes on with 1 ps");
    cluster_run_await_soon(local, "warning: all weights are on one ps");
    cluster_run_expect(local, 0, LONG);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
}

TEST(what_cannot_have_copies_is_refused_by_name) {
    cluster_run_job(run, "{\"steps\": 10, " REPLICAS "}");
    cluster_fixture_expect_logged(
        cluster_fixture_tool(run, CONFIG,
                             WORDS("local", "job.json", "--ps", "1")),
        "strategy.replicas: found 1 in a run of 1 ps; allowed there: 0");
    cluster_fixture_expect_logged(
        cluster_fixture_tool(run, CONFIG,
                             WORDS("local", "job.json", "--ps", "2", "--set",
                                   "strategy.recovery=end")),
        "strategy.recovery \"end\"; allowed there: 0");
}
