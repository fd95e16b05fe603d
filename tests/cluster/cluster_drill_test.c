/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan local --kill-every S --kill ROLE`: a run whose processes die again
 * and again ends as one in which nothing died. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG = 2, LONG = 6 * CLUSTER_RUN_DEADLINE };

/* A drill kills nobody in what looks like the last two seconds. */
#define JOB                                                                    \
    "{\"epochs\": 600, \"steps_per_print\": 10, \"checkpoint\": "              \
    "{\"every_steps\": 100, \"keep\": 3}}"

/* The death of the chief, or of a worker, makes no run longer. */
#define LONG_JOB                                                               \
    "{\"epochs\": 1200, \"steps_per_print\": 10, \"checkpoint\": "             \
    "{\"every_steps\": 100, \"keep\": 3}}"

FIXTURE(cluster_run_setup, cluster_run_teardown);

static struct cluster_process *drill_start_over(struct cluster_run *run,
                                                const char *name,
                                                const char *num_ps,
                                                const char *dir,
                                                const char *const *more) {
    const char *words[40] = {
        "local",  "job.json",  "--ps",
        num_ps,   "--workers", "2",
        "--json", "--set",     textf("checkpoint.dir=%s", dir)};
    size_t count = 9;
    for (; *more; more++) {
        assert_true(count + 1 < sizeof words / sizeof *words);
        words[count++] = *more;
    }
    return cluster_run_start(run, name, words, NULL);
}

static struct cluster_process *drill_start(struct cluster_run *run,
                                           const char *name, const char *dir,
                                           const char *const *more) {
    return drill_start_over(run, name, "2", dir, more);
}

static unsigned drill_count(const struct cluster_process *process,
                            const char *text) {
    unsigned count = 0;
    for (const char *at = cluster_run_errors(process); (at = strstr(at, text));
         at++)
        count++;
    return count;
}

static json_int_t drill_figure(struct cluster_process *process,
                               const char *key) {
    return json_integer_value(json_object_get(cluster_run_json(process), key));
}

/* Runs over NUM_PS without a drill, and with DRILL, whose fourth word is who is
 * killed, LEAST times or more, as its FIGURE says: that run, whose end is the
 * other's. */
static struct cluster_process *drill_and_compare(struct cluster_run *run,
                                                 const char *num_ps,
                                                 const char *const *drill,
                                                 unsigned least,
                                                 const char *figure) {
    cluster_run_expect(
        drill_start_over(run, "whole", num_ps, "a", WORDS("--json")), 0, LONG);
    struct cluster_process *local =
        drill_start_over(run, "drill", num_ps, "b", drill);
    cluster_run_expect(local, 0, LONG);
    unsigned kills = drill_count(local, textf("drill: kills %s ", drill[3]));
    assert_true(kills >= least);
    assert_int_equal(drill_count(local, "killed by the drill"), kills);
    assert_int_equal(drill_figure(local, figure), kills);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
    return local;
}

/* One of two ps dies twice, which --max-restarts would not allow. */
TEST(a_drill_of_ps_ends_with_the_weights_of_an_undisturbed_run) {
    cluster_run_job(run, JOB);
    struct cluster_process *local = drill_and_compare(
        run, "2",
        WORDS("--kill-every", "0.5", "--kill", "ps", "--max-restarts", "1"), 3,
        "rewinds");
    unsigned kills = drill_count(local, "drill: kills ps ");
    assert_int_equal(drill_count(local, "the run goes on after step "), kills);
    cluster_fixture_expect_logged(
        local, textf("drill: killed ps %u times, workers 0 times", kills));
}

TEST(a_drill_of_the_chief_ends_with_the_weights_of_an_undisturbed_run) {
    cluster_run_job(run, LONG_JOB);
    struct cluster_process *local = drill_and_compare(
        run, "2",
        WORDS("--kill-every", "0.8", "--kill", "chief", "--max-restarts", "1"),
        2, "adoptions");
    assert_int_equal(drill_figure(local, "rewinds"), 0);
    unsigned kills = drill_count(local, "drill: kills chief ");
    cluster_fixture_expect_logged(
        local, textf("workers 0 times and the chief %u times", kills));
}

/* Of workers the run goes on without them, so the weights are others. */
TEST(a_drill_of_any_ends) {
    cluster_run_job(run, LONG_JOB);
    struct cluster_process *local = drill_start(
        run, "drill", "a",
        WORDS("--kill-every", "0.8", "--kill", "any", "--max-restarts", "1"));
    cluster_run_expect(local, 0, LONG);
    assert_true(drill_count(local, "drill: kills ") >= 2);
}

TEST(a_drill_of_workers_ends_and_goes_back_nowhere) {
    cluster_run_job(run, JOB);
    struct cluster_process *local =
        drill_start(run, "drill", "a",
                    WORDS("--kill-every", "0.5", "--kill", "worker",
                          "--max-restarts", "1"));
    cluster_run_expect(local, 0, LONG);
    assert_true(drill_count(local, "drill: kills worker ") >= 3);
    assert_int_equal(drill_figure(local, "rewinds"), 0);
}

/* Whose steps are the shortest. */
TEST(a_drill_of_ranks_ends_with_the_weights_of_an_undisturbed_run) {
    cluster_run_job(run,
                    "{\"epochs\": 2000, \"steps_per_print\": 100, "
                    "\"checkpoint\": {\"every_steps\": 100, \"keep\": 3}}");
    drill_and_compare(run, "0",
                      WORDS("--kill-every", "0.4", "--kill", "worker"), 3,
                      "rewinds");
}

static pid_t drill_await_pid(struct cluster_process *local, const char *name) {
    const char *line =
        cluster_run_await_soon(local, textf("%s joined from ", name));
    const char *pid = strstr(line, ", pid ");
    assert_non_null(pid);
    return (pid_t)atoi(pid + strlen(", pid "));
}

/* Its own kills go on when a ps has died too often by others. */
TEST(a_drill_goes_on_without_a_ps_that_is_given_up) {
    cluster_run_job(run, LONG_JOB);
    struct cluster_process *local = drill_start(
        run, "drill", "a",
        WORDS("--kill-every", "1", "--kill", "worker", "--max-restarts", "1"));
    for (int i = 0; i < 2; i++) {
        pid_t pid = drill_await_pid(local, "ps 1");
        cluster_run_await_soon(local, "chief: checkpoint ");
        assert_int_equal(kill(pid, SIGKILL), 0);
    }
    cluster_run_await_soon(local, "so that the run goes on with 1 ps");
    cluster_run_await_soon(local, "drill: kills worker ");
    cluster_run_await_soon(local, "drill: kills worker ");
    cluster_run_expect(local, 0, LONG);
}

TEST(a_drill_that_kills_nothing_says_so) {
    cluster_run_job(run, "{\"epochs\": 2}");
    struct cluster_process *local = drill_start(
        run, "drill", "a", WORDS("--kill-every", "1000", "--kill", "ps"));
    cluster_run_expect_soon(local, 0);
    cluster_fixture_expect_logged(local, "drill: killed nothing");
}

static const struct {
    const char *words[12], *text;
} refused[] = {
    {{"job.json", "--kill", "ps"}, "--kill-every and --kill go together"},
    {{"job.json", "--kill-every", "1"}, "--kill-every and --kill go together"},
    {{"job.json", "--kill-every", "0", "--kill", "ps"}, "--kill-every"},
    {{"job.json", "--kill-every", "1", "--kill", "none"}, "ps, chief, worker"},
    {{"job.json", "--kill-every", "1", "--kill", "chief", "--set",
      "timeouts.chief=0"},
     "timeouts.chief"},
    {{"job.json", "--kill-every", "1", "--kill", "ps", "--max-restarts", "0"},
     "--max-restarts 0"},
    {{"job.json", "--kill-every", "1", "--kill", "ps", "--set",
      "checkpoint=null"},
     "without checkpoint.dir"},
    {{"job.json", "--kill-every", "1", "--kill", "ps", "--set",
      "strategy.recovery=end"},
     "strategy.recovery"},
    {{"job.json", "--kill-every", "1", "--kill", "ps", "--set",
      "strategy.type=allreduce", "--workers", "2"},
     "all-reduce has no ps"},
    {{"job.json", "--kill-every", "1", "--kill", "worker", "--ps", "0",
      "--workers", "2", "--set", "checkpoint=null"},
     "without checkpoint.dir"},
    {{"job.json", "--kill-every", "1", "--kill", "ps", "--ps", "0"}, "--ps 0"},
    {{"--kill-every", "1", "--kill", "worker", "--workers", "1", "--", "true"},
     "--kill worker with a command and --workers 1"},
    {{"job.json", "--kill-every", "1", "--kill", "ps", "--distribution",
      "{\"type\": \"tensorflow\"}"},
     "--distribution"},
};

TEST(what_a_drill_cannot_kill_is_refused_by_name) {
    cluster_run_job(run, NULL);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const char *words[16] = {"local"};
        for (size_t w = 0; refused[i].words[w]; w++)
            words[w + 1] = refused[i].words[w];
        cluster_fixture_expect_logged(cluster_fixture_tool(run, CONFIG, words),
                                      refused[i].text);
    }
}
