/* SPDX-License-Identifier: Apache-2.0 */
/* "compare" in a job: real processes of a described cluster play all runs. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_clicks.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/json_number.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <unistd.h>

enum { FAILED = 1, CONFIG = 2, RETRY = 138, KILLED = 128 + SIGKILL };
enum { TIMEOUT = 120 /* seconds, for a dozen tiny runs */, MAXIMUM = 16 };
static const double PEER = 2, STOP = 2; /* seconds; timeouts */
static const double SLACK = CLUSTER_RUN_DEADLINE;

#define TIMEOUTS "\"timeouts\": {\"peer\": 2, \"stop\": 2}"

/* Long enough to be ended from outside. */
#define LONG "\"model\": {\"layers\": [64, 256, 10]}, " TIMEOUTS

static void expect_measured(const json_t *one, const char *mode, double ps) {
    assert_true(json_is_null(json_object_get(one, "error")));
    assert_string_equal(json_string_value(json_object_get(one, "mode")), mode);
    assert_true(number_at(one, "ps") == ps && number_at(one, "workers") == 2);
    assert_true(number_at(one, "runs") == 2);
    assert_true(
        number_at(json_object_get(one, "examples_per_second"), "median") > 0);
    assert_true(number_at(one, "bound_examples_per_second") > 0);
    assert_true(number_at(one, "train_loss") > 0);
    assert_true(number_at(one, "test_accuracy") > 0);
    assert_non_null(json_string_value(json_object_get(one, "limit")));
}

static bool exists(const struct cluster_run *run, const char *name) {
    return !access(cluster_run_path(run, name), F_OK);
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

/* With a checkpoint of another run in the directory that the job names. */
TEST(a_cluster_executes_all_runs_and_leaves_other_files) {
    static const char *const before[] = {"compare=null", "steps=5",
                                         "export=null", NULL};
    struct cluster_fixture fixture;
    uint64_t steps[MAXIMUM];
    cluster_run_job(run, "{\"export\": {\"path\": \"model.npz\"},"
                         " \"compare\": {\"steps\": 20, \"repeats\": 2,"
                         " \"csv\": \"table.csv\"}}");
    cluster_run_expect_soon(cluster_fixture_local(run, 1, 1, before), 0);
    assert_int_equal(
        cluster_fixture_checkpoints(run, "checkpoint", steps, MAXIMUM), 1);
    cluster_fixture_describe(&fixture, run, 0, 2, 2);
    cluster_fixture_start_all(&fixture);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, TIMEOUT);
    const json_t *object = cluster_run_json(fixture.tasks[0].process);
    const json_t *cases = json_object_get(object, "cases");
    assert_int_equal(json_array_size(cases), 5);
    expect_measured(json_array_get(cases, 0), "allreduce", 0);
    expect_measured(json_array_get(cases, 1), "ps", 1);
    expect_measured(json_array_get(cases, 2), "ps-async", 1);
    expect_measured(json_array_get(cases, 3), "ps", 2);
    expect_measured(json_array_get(cases, 4), "ps-async", 2);
    assert_true(number_at(object, "members") == 4);
    assert_true(
        cluster_fixture_has_logged(fixture.tasks[0].process, "run 16 of 16"));
    assert_true(exists(run, "table.csv"));
    assert_false(exists(run, "model.npz"));
    assert_int_equal(
        cluster_fixture_checkpoints(run, "checkpoint", steps, MAXIMUM), 1);
    assert_int_equal(steps[0], 5);
}

TEST(tables_are_measured_by_ps_and_all_reduce) {
    struct cluster_fixture fixture;
    cluster_clicks_write(run);
    cluster_run_job(run, "{" CLUSTER_CLICKS_DEEPFM
                         ", \"compare\": {\"steps\": 20, \"repeats\": 2}}");
    cluster_fixture_describe(&fixture, run, 0, 1, 2);
    cluster_fixture_start_all(&fixture);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, TIMEOUT);
    const json_t *object = cluster_run_json(fixture.tasks[0].process);
    const json_t *cases = json_object_get(object, "cases");
    assert_int_equal(json_array_size(cases), 3);
    expect_measured(json_array_get(cases, 0), "allreduce", 0);
    expect_measured(json_array_get(cases, 1), "ps", 1);
    expect_measured(json_array_get(cases, 2), "ps-async", 1);
}

/* The chief trains, or coordinates, as the job says. */
TEST(the_chief_prints_the_table) {
    struct cluster_process *tasks[3];
    static const char *const arguments[] = {"job.json", NULL};
    cluster_run_job(run, "{\"chief\": \"coordinate\", \"compare\":"
                         " {\"ps\": 1, \"steps\": 5, \"repeats\": 1}}");
    cluster_run_describe(run, 1, 1, 1);
    tasks[0] = cluster_run_task(run, "chief", 0, arguments);
    tasks[1] = cluster_run_task(run, "worker", 0, arguments);
    tasks[2] = cluster_run_task(run, "ps", 0, NULL);
    for (int i = 0; i < 3; i++)
        cluster_run_expect(tasks[i], 0, TIMEOUT);
    const char *output = cluster_run_output(tasks[0]);
    assert_contains(output, "5 rounds of 10 samples a worker");
    assert_contains(output,
                    "means of 1 run in turns; a cluster on one machine, ");
    assert_contains(output, "\n      1   1 synchronous ");
    assert_string_equal(cluster_run_output(tasks[1]), "");
    assert_true(cluster_fixture_has_logged(tasks[2], "another follows"));
    assert_false(
        cluster_fixture_has_logged(tasks[1], "differs from the chief's"));
}

TEST(without_ps_only_all_reduce_is_measured) {
    struct cluster_fixture fixture;
    cluster_run_job(run, "{\"compare\": {\"steps\": 5, \"repeats\": 1}}");
    cluster_fixture_describe(&fixture, run, 0, 0, 2);
    cluster_fixture_start_all(&fixture);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, TIMEOUT);
    const json_t *object = cluster_run_json(fixture.tasks[0].process);
    assert_int_equal(json_array_size(json_object_get(object, "cases")), 1);
    assert_true(cluster_fixture_has_logged(
        fixture.tasks[0].process,
        "the cluster lists no ps: only all-reduce is measured"));
}

TEST(a_local_cluster_compares_too) {
    cluster_run_job(run, "{\"compare\": {\"steps\": 5, \"repeats\": 1}}");
    struct cluster_process *local = cluster_fixture_local(run, 1, 2, NULL);
    cluster_run_expect(local, 0, TIMEOUT);
    const json_t *object = cluster_run_json(local);
    assert_int_equal(json_array_size(json_object_get(object, "cases")), 3);
}

/* Starts a long comparison and kills TYPE INDEX some time after the RUNS-th
 * run is over: while members come back, or train. */
static unsigned kill_after(struct cluster_fixture *fixture,
                           struct cluster_run *run, const char *type,
                           unsigned index, int runs) {
    uint64_t seed = cluster_fixture_seed();
    double after = (double)cluster_fixture_random(&seed, 500000) * 1e-6;
    cluster_run_job(run, "{" LONG ", \"compare\": {\"steps\": 2000,"
                         " \"repeats\": 100}}");
    cluster_fixture_next_transport();
    cluster_fixture_describe(fixture, run, 0, 1, 2);
    cluster_fixture_start_all(fixture);
    cluster_run_await(fixture->tasks[0].process, textf("run %d of ", runs),
                      TIMEOUT);
    cluster_fixture_sleep(after);
    unsigned victim = cluster_fixture_find(fixture, type, index);
    print_message("# %s %u is killed %.0f ms after %d runs\n", type, index,
                  1e3 * after, runs);
    cluster_run_signal(fixture->tasks[victim].process, SIGKILL);
    cluster_run_expect(fixture->tasks[victim].process, KILLED, SLACK);
    return victim;
}

/* After 1 run by ps, after 3 by all-reduce. */
TEST(a_killed_worker_ends_all_and_is_named) {
    for (int runs = 1; runs <= 3; runs += 2) {
        struct cluster_fixture fixture;
        run = cluster_fixture_reset(state);
        unsigned dead = kill_after(&fixture, run, "worker", 1, runs);
        cluster_fixture_expect(&fixture, dead, RETRY, PEER + STOP + SLACK);
        for (unsigned i = 0; i < fixture.count; i++)
            if (i != dead && !cluster_fixture_has_logged(
                                 fixture.tasks[i].process, "worker 1"))
                fail_msg("%s %u does not name worker 1", fixture.tasks[i].type,
                         fixture.tasks[i].index);
        assert_string_equal(cluster_run_output(fixture.tasks[0].process), "");
    }
}

/* All-reduce has no bf16, so that the first run is by 1 of both ps. */
TEST(a_ps_run_stops_when_a_worker_dies) {
    struct cluster_fixture fixture;
    cluster_run_job(run, "{" LONG ", \"wire\": \"bf16\","
                         " \"steps_per_print\": 10,"
                         " \"compare\": {\"steps\": 1000000000}}");
    cluster_fixture_describe(&fixture, run, 0, 2, 2);
    cluster_fixture_start_all(&fixture);
    cluster_run_await_soon(fixture.tasks[0].process, " blocks on 1 ps");
    cluster_run_await_soon(fixture.tasks[0].process, "examples/s");
    unsigned dead = cluster_fixture_find(&fixture, "worker", 1);
    cluster_run_signal(fixture.tasks[dead].process, SIGKILL);
    cluster_fixture_expect(&fixture, dead, RETRY, PEER + SLACK);
    assert_true(cluster_fixture_has_logged(fixture.tasks[0].process,
                                           "worker 1 on host"));
    assert_true(cluster_fixture_has_logged(
        fixture.tasks[0].process, "the comparison cannot go on without it"));
}

/* ps 0, which holds nothing in all-reduce, is stopped while the chief waits for
 * its goodbye; the others are back long before. */
TEST(a_member_that_returns_early_waits_for_the_next_run) {
    struct cluster_fixture fixture;
    cluster_run_job(run, "{\"model\": {\"layers\": [64, 256, 10]},"
                         " \"timeouts\": {\"peer\": 20, \"stop\": 20},"
                         " \"steps_per_print\": 10,"
                         " \"compare\": {\"steps\": 6000, \"repeats\": 1}}");
    cluster_fixture_describe(&fixture, run, 0, 1, 2);
    cluster_fixture_start_all(&fixture);
    struct cluster_process *worker =
        fixture.tasks[cluster_fixture_find(&fixture, "worker", 1)].process;
    struct cluster_process *ps =
        fixture.tasks[cluster_fixture_find(&fixture, "ps", 0)].process;
    cluster_run_await_soon(fixture.tasks[0].process, "examples/s");
    cluster_run_signal(ps, SIGSTOP);
    cluster_run_await_soon(worker, "another follows");
    cluster_fixture_sleep(1.5); /* a join is sent twice a second */
    cluster_run_signal(ps, SIGCONT);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, TIMEOUT);
}

TEST(a_killed_ps_ends_all_and_is_named) {
    struct cluster_fixture fixture;
    unsigned dead = kill_after(&fixture, run, "ps", 0, 1);
    cluster_fixture_expect(&fixture, dead, RETRY, PEER + STOP + SLACK);
    assert_true(cluster_fixture_has_logged(fixture.tasks[0].process, "ps 0"));
}

TEST(members_end_when_their_chief_is_gone) {
    struct cluster_fixture fixture;
    unsigned dead = kill_after(&fixture, run, "worker", 0, 2);
    cluster_fixture_expect(&fixture, dead, RETRY, PEER + STOP + SLACK);
}

TEST(a_signal_to_the_chief_ends_all) {
    struct cluster_fixture fixture;
    cluster_run_job(run, "{" LONG ", \"compare\": {\"steps\": 2000}}");
    cluster_fixture_describe(&fixture, run, 0, 1, 2);
    cluster_fixture_start_all(&fixture);
    cluster_run_await(fixture.tasks[0].process, "run 1 of ", TIMEOUT);
    cluster_run_signal(fixture.tasks[0].process, SIGTERM);
    cluster_run_expect(fixture.tasks[0].process, 128 + SIGTERM, STOP + SLACK);
    cluster_fixture_expect(&fixture, 0, RETRY, PEER + STOP + SLACK);
    assert_string_equal(cluster_run_output(fixture.tasks[0].process), "");
}

TEST(a_run_past_its_time_limit_fails_its_case) {
    struct cluster_fixture fixture;
    cluster_run_job(run, "{" LONG ", \"compare\": {\"steps\": 1000000000,"
                         " \"limit\": 1}}");
    cluster_fixture_describe(&fixture, run, 0, 1, 2);
    cluster_fixture_start_all(&fixture);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, FAILED, TIMEOUT);
    const struct cluster_process *chief = fixture.tasks[0].process;
    assert_true(cluster_fixture_has_logged(chief,
                                           "2 workers, all-reduce: not over "
                                           "after 1 s (compare.limit)"));
    assert_true(cluster_fixture_has_logged(chief, "no case could be run"));
    assert_true(cluster_fixture_has_logged(fixture.tasks[1].process,
                                           "another follows"));
}

TEST(errors_are_reported_before_any_run_starts) {
    static const struct {
        const char *changes, *text;
    } cases[] = {
        {"{\"compare\": {\"ps\": [1, 3]}}",
         "compare.ps: found 3; allowed: 1 to 1"},
        {"{\"compare\": {\"step\": 3}}", "nearest: compare.steps"},
        {"{\"compare\": {\"csv\": \"none/a.csv\"}}", "none/a.csv"},
        {"{\"compare\": {\"workers\": 1}}", "compare.workers: found 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run = cluster_fixture_reset(state);
        cluster_run_job(run, cases[i].changes);
        cluster_run_describe(run, 0, 1, 2);
        struct cluster_process *chief =
            cluster_run_task(run, "worker", 0, WORDS("job.json"));
        cluster_run_expect_soon(chief, CONFIG);
        if (!cluster_fixture_has_logged(chief, cases[i].text))
            fail_msg("'%s' is not in: %s", cases[i].text,
                     cluster_run_errors(chief));
    }
}

/* The command's flags go before the block, which is no flag's enemy. */
TEST(the_command_reads_its_flags_from_the_compare_block) {
    cluster_run_job(run, "{\"compare\": {\"steps\": 5, \"repeats\": 1,"
                         " \"workers\": 1}}");
    struct cluster_process *process = cluster_run_start(
        run, "compare", WORDS("compare", "--steps", "7", "job.json"), NULL);
    cluster_run_expect(process, 0, TIMEOUT);
    const char *output = cluster_run_output(process);
    assert_contains(output, "7 rounds of 10 samples a worker; means "
                            "of 1 run in");
    assert_contains(output, "\n      1   1 synchronous ");
}
