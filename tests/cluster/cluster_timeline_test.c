/* SPDX-License-Identifier: Apache-2.0 */
/* The timeline of --trace-steps, read back by cluster_timeline.py, which
 * decodes the file by Perfetto's field numbers and without Capstan's code. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_clicks.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/paused_file.h"
#include "tests/lib/test.h"

#include <glob.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONFIG = 2, RETRY = 138 };

FIXTURE(cluster_run_setup, cluster_run_teardown);

/* FOLDER/NAME is a timeline of STEPS as WANTED (cluster_timeline.py) says. */
static void expect_timeline(const struct cluster_run *run, const char *name,
                            const char *steps, const char *wanted) {
    const char *command = textf(
        "/usr/bin/env python3 tests/cluster/cluster_timeline.py '%s' %s %s >&2",
        cluster_run_path(run, name), steps, wanted);
    assert_int_equal(system(command), 0);
}

/* `capstan local`, with STEPS traced and each of CHANGES set. */
static struct cluster_process *trace(struct cluster_run *run, unsigned num_ps,
                                     unsigned num_workers, const char *steps,
                                     const char *const *changes) {
    const char *words[32] = {"local",         "job.json",
                             "--ps",          textf("%u", num_ps),
                             "--workers",     textf("%u", num_workers),
                             "--trace-steps", steps,
                             "--trace-file",  "run.pftrace"};
    size_t count = 10;
    for (; *changes; changes++) {
        assert_true(count + 2 < sizeof words / sizeof *words);
        words[count++] = "--set";
        words[count++] = *changes;
    }
    return cluster_run_start(run, "local", words, NULL);
}

static void expect_traced(struct cluster_run *run, unsigned num_ps,
                          const char *steps, const char *wanted,
                          const char *const *changes) {
    struct cluster_process *process = trace(run, num_ps, 2, steps, changes);
    cluster_run_expect_soon(process, 0);
    cluster_fixture_expect_logged(process, "run.pftrace, for ui.perfetto.dev");
    expect_timeline(run, "run.pftrace", steps, wanted);
}

TEST(every_push_is_followed_to_its_update_and_back) {
    cluster_run_job(run, NULL);
    expect_traced(run, 1, "20:24", "ps wait checkpoint",
                  WORDS("checkpoint.every_steps=22"));
}

TEST(two_ps_have_a_part_of_each_push) {
    cluster_run_job(run, NULL);
    expect_traced(run, 2, "7:7", "ps wait", WORDS("gradient_clipping=1.0"));
}

TEST(with_staleness_steps_are_each_trainers_own) {
    cluster_run_job(run, NULL);
    expect_traced(run, 2, "10:14", "ps", WORDS("strategy.staleness=2"));
    expect_traced(run, 1, "10:14", "ps",
                  WORDS("strategy.staleness=\"inf\"", "checkpoint.dir=b"));
}

TEST(allreduce_has_the_sums_of_its_buckets) {
    cluster_run_job(run, NULL);
    expect_traced(run, 0, "10:14", "allreduce wait",
                  WORDS("strategy={\"type\":\"allreduce\"}",
                        "model.layers=[64,256,10]",
                        "zero_optimization={\"reduce_bucket_size\":300}"));
}

TEST(tables_have_lookups_and_pushes_of_rows) {
    cluster_clicks_write(run);
    cluster_run_job(run, "{" CLUSTER_CLICKS_DEEPFM ", \"epochs\": 1}");
    expect_traced(run, 1, "10:14", "ps wait lookup rows",
                  WORDS("checkpoint.dir=a"));
    expect_traced(
        run, 0, "10:14", "allreduce wait sum",
        WORDS("strategy={\"type\":\"allreduce\"}", "checkpoint.dir=b"));
}

TEST(a_process_of_all_roles_has_a_process_for_each) {
    cluster_run_job(run, NULL);
    cluster_fixture_tool(run, 0,
                         WORDS("run", "job.json", "--trace-steps", "3:5"));
    glob_t found;
    assert_int_equal(
        glob(cluster_run_path(run, "capstan-*.pftrace"), 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    const char *name = strrchr(found.gl_pathv[0], '/') + 1;
    assert_int_equal(strlen(name), strlen("capstan-0123456789abcdef.pftrace"));
    expect_timeline(run, name, "3:5", "ps");
    globfree(&found);
}

/* A run of caller.c's NAME, with SET. */
static void expect_called(struct cluster_run *run, const char *num_ps,
                          const char *name, const char *set,
                          const char *wanted) {
    char program[PATH_MAX];
    cluster_fixture_caller(program);
    struct cluster_process *process = cluster_run_start(
        run, "local",
        WORDS("local", "--ps", num_ps, "--workers", "2", "--trace-steps", "1:3",
              "--trace-file", "run.pftrace", "--set", "optimizer.params.lr=1",
              "--set", set, "--", program, name),
        NULL);
    cluster_run_expect_soon(process, 0);
    expect_timeline(run, "run.pftrace", "1:3", wanted);
}

TEST(a_caller_has_its_pushes_and_waits) {
    expect_called(run, "1", "sums", "seed=1", "ps caller wait");
    expect_called(run, "0", "sums", "seed=1", "allreduce caller wait");
    expect_called(run, "2", "rows", "steps=6", "ps caller");
}

TEST(weights_are_those_of_a_run_without_it) {
    cluster_run_job(run, NULL);
    cluster_fixture_run(run, 2, 2, 0, WORDS("checkpoint.dir=a"));
    cluster_run_expect_soon(
        trace(run, 2, 2, "1:1000", WORDS("checkpoint.dir=b")), 0);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
}

TEST(the_file_is_there_while_the_run_goes_on) {
    cluster_run_job(run, "{\"epochs\": 100000}");
    struct cluster_process *process =
        trace(run, 1, 2, "20:24", WORDS("checkpoint.dir=null"));
    cluster_run_await_soon(process, "run.pftrace, for ui.perfetto.dev");
    expect_timeline(run, "run.pftrace", "20:24", "ps wait");
    cluster_run_signal(process, SIGKILL);
    cluster_run_exit(process, CLUSTER_RUN_DEADLINE);
}

/* Once it hangs since the steps were over, once at the end. */
TEST(a_disk_that_hangs_holds_the_end_up_for_its_deadline) {
    static const char *const steps[] = {"20:24", "5000:5001"};
    struct paused_file held;
    cluster_run_job(run, NULL);
    assert_int_equal(mkdir(cluster_run_path(run, "t"), 0777), 0);
    paused_file_open(&held, run, "t", "run.pftrace");
    for (unsigned i = 0; i < 2; i++) {
        struct cluster_process *process = cluster_run_start(
            run, "local",
            WORDS("local", "job.json", "--ps", "1", "--trace-steps", steps[i],
                  "--trace-file", "t/run.pftrace", "--set",
                  "checkpoint.dir=null"),
            NULL);
        cluster_run_expect(process, 0, 4 * CLUSTER_RUN_DEADLINE);
        cluster_fixture_expect_logged(
            process, "t/run.pftrace: its disk has not taken it within 10 s");
    }
    unsetenv("LD_PRELOAD");
    unlink(held.path);
}

TEST(a_run_that_ends_before_says_so) {
    cluster_run_job(run, NULL);
    struct cluster_process *process =
        trace(run, 1, 2, "5000:5001", WORDS("seed=3"));
    cluster_run_expect_soon(process, 0);
    cluster_fixture_expect_logged(
        process, "has no step: the run ended before step 5000");
    expect_timeline(run, "run.pftrace", "5000:5001", "empty");
}

TEST(a_resumed_run_that_begins_later_says_so) {
    cluster_run_job(run, NULL);
    cluster_fixture_run(run, 1, 2, 0, NULL);
    cluster_run_job(run, "{\"epochs\": 4}");
    struct cluster_process *process =
        trace(run, 1, 2, "10:14", WORDS("seed=1"));
    cluster_run_expect_soon(process, 0);
    cluster_fixture_expect_logged(process,
                                  "has no step: the run began after step 90");
    expect_timeline(run, "run.pftrace", "10:14", "empty");
    process = trace(run, 1, 2, "118:123", WORDS("epochs=5"));
    cluster_run_expect_soon(process, 0);
    cluster_fixture_expect_logged(process,
                                  "lacks steps: the run began after step 120");
}

/* The chief's steps are then updates, of which there are more than pushes. */
TEST(with_staleness_steps_that_lack_are_named_by_pushes) {
    cluster_run_job(run, "{\"steps\": 100}");
    struct cluster_process *process =
        trace(run, 1, 2, "80:82", WORDS("strategy.staleness=2"));
    cluster_run_expect_soon(process, 0);
    cluster_fixture_expect_logged(process,
                                  "has no step: the run ended before step 80");
    process =
        trace(run, 1, 2, "70:72", WORDS("strategy.staleness=2", "steps=200"));
    cluster_run_expect_soon(process, 0);
    assert_null(strstr(cluster_run_errors(process), "lacks steps"));
    expect_timeline(run, "run.pftrace", "70:72", "ps");
    process =
        trace(run, 1, 2, "2:3", WORDS("strategy.staleness=2", "steps=250"));
    cluster_run_expect_soon(process, 0);
    cluster_fixture_expect_logged(process, "has no step: the run began after");
}

/* 2^21 records in all are a sixth of that for each process, and a step has some
 * 300 at the ps. */
TEST(records_without_room_are_counted) {
    cluster_run_job(run, "{\"model\": {\"layers\": [64, 8, 8, 8, 8, 8, 8, 8, "
                         "8, 8, 8, 8, 8, 10]}, \"steps\": 2000}");
    struct cluster_process *process = trace(
        run, 1, 4, "1:1000000", WORDS("checkpoint.dir=null", "steps=2000"));
    cluster_run_expect(process, 0, 4 * CLUSTER_RUN_DEADLINE);
    cluster_fixture_expect_logged(
        process, "records of ps 0, for which there was no room");
    struct stat file;
    assert_int_equal(stat(cluster_run_path(run, "run.pftrace"), &file), 0);
    assert_in_range(file.st_size, 1 << 20, 128 << 20);
}

/* A worker asks a ps again that has not answered for a second. */
TEST(a_reply_that_was_asked_for_again_is_a_slice_of_its_own) {
    cluster_run_job(run, "{\"epochs\": 100000, \"steps_per_print\": 100,"
                         " \"checkpoint\": {\"dir\": null}}");
    struct cluster_fixture fixture;
    cluster_fixture_describe(&fixture, run, 0, 1, 2);
    setenv("CAPSTAN_TRACE_STEPS", "20:5000", 1);
    setenv("CAPSTAN_TRACE_FILE", "run.pftrace", 1);
    cluster_fixture_start_all(&fixture);
    unsetenv("CAPSTAN_TRACE_STEPS");
    unsetenv("CAPSTAN_TRACE_FILE");
    struct cluster_process *leader = fixture.tasks[0].process;
    struct cluster_process *ps =
        fixture.tasks[cluster_fixture_find(&fixture, "ps", 0)].process;
    cluster_run_await_soon(leader, "step 100/");
    cluster_run_signal(ps, SIGSTOP);
    poll(NULL, 0, 2500);
    cluster_run_signal(ps, SIGCONT);
    cluster_run_await_soon(leader, "run.pftrace, for ui.perfetto.dev");
    expect_timeline(run, "run.pftrace", "20:5000", "ps wait repeated");
}

/* The member whose clock is ahead is the second worker. */
TEST(times_of_another_clock_are_the_chiefs) {
    char built[PATH_MAX];
    struct cluster_fixture fixture;
    assert_true(build_folder_find(built));
    const char *library = textf("%s/fake/shifted_clock.so", built);
    assert_int_equal(access(library, R_OK), 0);
    cluster_run_job(run, "{\"epochs\": 20}");
    cluster_fixture_describe(&fixture, run, 0, 1, 2);
    setenv("CAPSTAN_TRACE_STEPS", "500:504", 1);
    setenv("CAPSTAN_TRACE_FILE", "run.pftrace", 1);
    for (unsigned i = 0; i < fixture.count; i++) {
        bool shifted = i == cluster_fixture_find(&fixture, "worker", 1);
        if (shifted) {
            setenv("LD_PRELOAD", library, 1);
            setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 1);
        }
        cluster_fixture_start(&fixture, i);
        unsetenv("LD_PRELOAD");
    }
    unsetenv("CAPSTAN_TRACE_STEPS");
    unsetenv("CAPSTAN_TRACE_FILE");
    cluster_fixture_expect_soon(&fixture, CLUSTER_FIXTURE_TASKS, 0);
    expect_timeline(run, "run.pftrace", "500:504",
                    "ps wait offset=-1000000000000");
}

TEST(a_process_that_dies_is_named) {
    cluster_run_job(run, "{\"epochs\": 100000, \"steps_per_print\": 100,"
                         " \"strategy\": {\"recovery\": \"end\"}}");
    struct cluster_fixture fixture;
    cluster_fixture_describe(&fixture, run, 0, 1, 2);
    setenv("CAPSTAN_TRACE_STEPS", "20:100000000", 1);
    setenv("CAPSTAN_TRACE_FILE", "run.pftrace", 1);
    cluster_fixture_start_all(&fixture);
    unsetenv("CAPSTAN_TRACE_STEPS");
    unsetenv("CAPSTAN_TRACE_FILE");
    struct cluster_process *leader = fixture.tasks[0].process;
    cluster_run_await_soon(leader, "step 100/");
    unsigned ps = cluster_fixture_find(&fixture, "ps", 0);
    cluster_run_signal(fixture.tasks[ps].process, SIGKILL);
    cluster_run_expect(leader, RETRY, 4 * CLUSTER_RUN_DEADLINE);
    cluster_fixture_expect_logged(
        leader, "lacks records of ps 0: it ended before it sent any");
    expect_timeline(run, "run.pftrace", "20:100000000", "missing");
}

TEST(steps_that_are_none_are_refused_by_name) {
    static const char *const wrong[] = {"5:3", "a",    "-1:3", "0:4",
                                        "5",   "1:2x", " 1:2", ""};
    cluster_run_job(run, NULL);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        cluster_fixture_expect_logged(
            cluster_fixture_tool(run, CONFIG,
                                 WORDS("local", "job.json",
                                       textf("--trace-steps=%s", wrong[i]))),
            "--trace-steps takes FIRST:LAST, two steps from 1 on");
    cluster_fixture_expect_logged(
        cluster_fixture_tool(run, CONFIG,
                             WORDS("local", "job.json", "--trace-file", "x")),
        "add --trace-steps FIRST:LAST");
    cluster_fixture_expect_logged(
        cluster_fixture_tool(run, CONFIG,
                             WORDS("run", "job.json", "--trace-steps", "1:2",
                                   "--trace-file", "none/x")),
        "--trace-file: cannot write none/x into none");
}
