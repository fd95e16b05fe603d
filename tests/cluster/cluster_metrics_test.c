/* SPDX-License-Identifier: Apache-2.0 */
/* What TensorBoard, JSON lines and the log tell of a run by its steps: at each
 * multiple of steps_per_print and at the last step, once, whatever happens on
 * the way. */
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/event_files.h"
#include "tests/lib/test.h"

#include <math.h>
#include <signal.h>
#include <unistd.h>

enum { MAXIMUM = 20000, KILLED = 128 + SIGKILL };

static const char job[] =
    "{\"tensorboard\": {\"enabled\": true, \"output_path\": \"events\"},"
    " \"metrics\": {\"jsonl\": \"m.jsonl\"},"
    " \"chief\": \"coordinate\", \"timeouts\": {\"peer\": 2},"
    " \"checkpoint\": {\"resume\": \"auto\"}}";

/* Fails unless TAG stands at each multiple of EVERY up to LAST and at LAST, and
 * at no other step. */
static void expect_points(const struct cluster_run *run, const char *tag,
                          uint64_t every, uint64_t last) {
    static struct event_point points[MAXIMUM];
    unsigned count =
        event_files_read(cluster_run_path(run, "events"), tag, points, MAXIMUM);
    for (unsigned i = 0; i < count; i++) {
        uint64_t expected = (i + 1) * every < last ? (i + 1) * every : last;
        if (points[i].step != (int64_t)expected)
            fail_msg("%s at step %lld, not %lld", tag,
                     (long long)points[i].step, (long long)expected);
    }
    if (count != (last + every - 1) / every)
        fail_msg("%s has %u points of %llu steps", tag, count,
                 (unsigned long long)last);
}

/* Fails unless the JSON lines of RUN have the losses of TensorBoard, in its
 * order, between a first line for each of RUNS and the summary. */
static void expect_lines(const struct cluster_run *run, unsigned runs) {
    static struct event_point points[MAXIMUM];
    static char line[1 << 16];
    unsigned count = event_files_read(cluster_run_path(run, "events"),
                                      "train/loss", points, MAXIMUM);
    unsigned heads = 0, losses = 0;
    bool ended = false;
    FILE *file = fopen(cluster_run_path(run, "m.jsonl"), "re");
    assert_non_null(file);
    for (; fgets(line, sizeof line, file);
         ended = strstr(line, "{\"summary\"")) {
        long long step;
        double loss;
        assert_false(ended);
        heads += !strncmp(line, "{\"run\"", 6);
        if (sscanf(line, "{\"step\":%lld,\"time\":%*f,\"train_loss\":%lf",
                   &step, &loss) != 2)
            continue;
        assert_true(losses < count && points[losses].step == step);
        assert_true(fabs(points[losses++].value - loss) <= 1e-6 * loss);
    }
    fclose(file);
    assert_true(ended);
    assert_int_equal(losses, count);
    assert_int_equal(heads, runs);
}

/* 90 rounds, or pushes. */
static void expect_metrics_by_steps(struct cluster_run *run,
                                    const char *staleness, uint64_t every) {
    char line[64];
    const char *setting = textf("steps_per_print=%u", (unsigned)every);
    cluster_run_job(run, job);
    struct cluster_process *local = CLUSTER_FIXTURE_RUN(
        run, 2, 2, 0, staleness, setting, "epochs=null", "steps=90");
    expect_points(run, "train/loss", every, 90);
    expect_points(run, "train/learning_rate", every, 90);
    expect_lines(run, 1);
    for (uint64_t step = every; step <= 90; step += every) {
        snprintf(line, sizeof line, "step %u/90 (", (unsigned)step);
        cluster_fixture_expect_logged(local, line);
    }
    cluster_fixture_expect_logged(local, "step 90/90 (100%): loss");
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(metrics_are_logged_at_every_multiple_and_the_last_step) {
    expect_metrics_by_steps(*state, "strategy.staleness=0", 20);
    expect_metrics_by_steps(cluster_fixture_reset(state),
                            "strategy.staleness=0", 1);
}

/* There a push is a step, by the number that its answer tells. */
TEST(metrics_are_logged_without_rounds_too) {
    expect_metrics_by_steps(*state, "strategy.staleness=inf", 20);
    expect_metrics_by_steps(cluster_fixture_reset(state),
                            "strategy.staleness=inf", 1);
    expect_metrics_by_steps(cluster_fixture_reset(state),
                            "strategy.staleness=2", 1);
}

TEST(all_reduce_logs_metrics_at_the_same_steps) {
    cluster_run_job(*state, job);
    CLUSTER_FIXTURE_RUN(*state, 0, 2, 0, "steps_per_print=7");
    expect_points(*state, "train/loss", 7, 90);
}

/* By 2 as 2 of 101 steps are at least 50 points and 5 are not. */
TEST(a_job_that_names_no_steps_has_fifty_points_or_more) {
    for (unsigned ps = 0; ps < 2; ps++) {
        struct cluster_run *run = ps ? cluster_fixture_reset(state) : *state;
        cluster_run_job(run, job);
        struct cluster_process *local =
            CLUSTER_FIXTURE_RUN(run, ps, 2, 0, "epochs=null", "steps=101");
        expect_points(run, "train/loss", 2, 101);
        expect_lines(run, 1);
        cluster_fixture_expect_logged(local, "steps 0 to 101, a point each 2");
    }
}

static const char *const long_run[] = {"epochs=null", "steps=3000",
                                       "steps_per_print=1",
                                       "checkpoint.every_steps=200", NULL};

/* However it ends: by a checkpoint of that moment, or a while after the last
 * one, whose later steps are taken again. */
TEST(a_resumed_run_logs_each_step_once) {
    static const int signals[] = {SIGTERM, SIGKILL};
    for (unsigned i = 0; i < 2; i++) {
        struct cluster_run *run = i ? cluster_fixture_reset(state) : *state;
        cluster_run_job(run, job);
        struct cluster_process *local =
            cluster_fixture_local(run, 2, 2, long_run);
        cluster_run_await_soon(local, "step-000000200");
        cluster_run_signal(local, signals[i]);
        cluster_run_expect_soon(local, 128 + signals[i]);
        local = cluster_fixture_local(run, 2, 2, long_run);
        cluster_run_expect(local, 0, 2 * CLUSTER_RUN_DEADLINE);
        cluster_fixture_expect_logged(local, "resuming from");
        expect_points(run, "train/loss", 1, 3000);
        expect_lines(run, 2);
    }
}

TEST(a_worker_that_dies_leaves_no_gap) {
    struct cluster_run *run = *state;
    struct cluster_fixture fixture;
    cluster_run_job(run, "{\"tensorboard\": {\"enabled\": true,"
                         "                  \"output_path\": \"events\"},"
                         " \"steps\": 2000, \"steps_per_print\": 3,"
                         " \"chief\": \"coordinate\","
                         " \"timeouts\": {\"peer\": 2}}");
    cluster_fixture_describe(&fixture, run, 1, 1, 2);
    cluster_fixture_start_all(&fixture);
    struct cluster_process *victim =
        fixture.tasks[cluster_fixture_find(&fixture, "worker", 1)].process;
    cluster_run_await_soon(fixture.tasks[0].process, "step 99/");
    cluster_run_signal(victim, SIGKILL);
    cluster_run_expect_soon(victim, KILLED);
    cluster_fixture_expect_soon(&fixture,
                                cluster_fixture_find(&fixture, "worker", 1), 0);
    expect_points(run, "train/loss", 3, 2000);
}

/* No result of an epoch comes after a step of a later one; how many results
 * there are. */
static unsigned results_in_order(const struct cluster_process *process) {
    unsigned epoch, latest = 0, results = 0;
    char line[512];
    const char *said = cluster_run_errors(process);
    for (; *said; said = strchr(said, '\n') + 1) {
        snprintf(line, sizeof line, "%.*s", (int)strcspn(said, "\n"), said);
        const char *found = strstr(line, "chief: epoch ");
        if (!found || sscanf(found, "chief: epoch %u/", &epoch) != 1)
            continue;
        bool result = strstr(line, ": test accuracy");
        if (result && epoch < latest)
            fail_msg("a step of epoch %u was before: %s", latest, line);
        if (!result && epoch > latest)
            latest = epoch;
        results += result;
    }
    assert_int_equal(latest, 3);
    return results;
}

/* Pushes may have passed an epoch before any is evaluated. */
TEST(an_epoch_ends_before_the_next_begins) {
    cluster_run_job(*state, "{\"checkpoint\": {\"resume\": \"never\"}}");
    assert_int_equal(results_in_order(CLUSTER_FIXTURE_RUN(*state, 1, 2, 0,
                                                          "steps_per_print=1")),
                     3);
    assert_true(results_in_order(CLUSTER_FIXTURE_RUN(
        *state, 1, 2, 0, "steps_per_print=1", "strategy.staleness=inf")));
}

/* A synchronous run of STEPS whose worker 1 does not go on after some: a
 * signal's NUMBER. Its chief, once it has said so. */
static struct cluster_process *delay(struct cluster_run *run,
                                     struct cluster_fixture *fixture,
                                     unsigned steps, int number,
                                     const char *message) {
    cluster_run_job(run, textf("{\"steps\": %u, \"chief\": \"coordinate\","
                               " \"timeouts\": {\"peer\": 8},"
                               " \"steps_per_print\": 1}",
                               steps));
    cluster_fixture_describe(fixture, run, 1, 1, 2);
    cluster_fixture_start_all(fixture);
    unsigned victim = cluster_fixture_find(fixture, "worker", 1);
    struct cluster_process *chief = fixture->tasks[0].process;
    cluster_run_await_soon(chief, "step 99/");
    cluster_run_signal(fixture->tasks[victim].process, number);
    cluster_run_await_soon(chief, message);
    return chief;
}

TEST(a_stalled_run_names_the_waited_for_peer_and_no_rate) {
    struct cluster_fixture fixture;
    struct cluster_process *chief =
        delay(*state, &fixture, 3000, SIGSTOP,
              " s (waiting for worker 1, silent for ");
    cluster_run_signal(
        fixture.tasks[cluster_fixture_find(&fixture, "worker", 1)].process,
        SIGCONT);
    cluster_fixture_expect_soon(&fixture, CLUSTER_FIXTURE_TASKS, 0);
    cluster_fixture_expect_logged(chief, "step 3000/3000");
}

TEST(time_lost_to_a_dead_peer_suggests_no_key) {
    struct cluster_fixture fixture;
    struct cluster_process *chief =
        delay(*state, &fixture, 300, SIGKILL, "worker 1 on host ");
    cluster_fixture_expect_soon(&fixture,
                                cluster_fixture_find(&fixture, "worker", 1), 0);
    cluster_fixture_expect_logged(chief,
                                  "largest cause of lost time: waiting for "
                                  "worker 1, which was silent for ");
    assert_false(cluster_fixture_has_logged(chief, "key: "));
}

/* The third begins when the first is over. */
TEST(a_second_run_of_the_same_outlets_is_refused_and_the_first_untouched) {
    struct cluster_run *run = *state;
    const char *const words[] = {"local",
                                 "job.json",
                                 "--ps",
                                 "1",
                                 "--trace-steps",
                                 "5:6",
                                 "--trace-file",
                                 "t.pftrace",
                                 "--set",
                                 "epochs=100000",
                                 "--set",
                                 "checkpoint.dir=null",
                                 NULL};
    cluster_run_job(run, "{\"metrics\": {\"jsonl\": \"m.jsonl\"}}");
    struct cluster_process *first =
        cluster_run_start(run, "local", words, NULL);
    cluster_run_await_soon(first, "%)");
    cluster_fixture_expect_logged(
        cluster_fixture_tool(
            run, 2, WORDS("run", "job.json", "--set", "checkpoint.dir=null")),
        "m.jsonl: end that run first");
    cluster_fixture_expect_logged(
        cluster_fixture_tool(run, 2,
                             WORDS("run", "job.json", "--set",
                                   "checkpoint.dir=null", "--set",
                                   "metrics.jsonl=other.jsonl", "--trace-steps",
                                   "5:6", "--trace-file", "t.pftrace")),
        "--trace-file: another run writes t.pftrace: end that run first");
    cluster_run_signal(first, SIGTERM);
    cluster_run_expect_soon(first, 128 + SIGTERM);
    cluster_fixture_tool(run, 0, WORDS("report", "m.jsonl", "-o", "m.html"));
    assert_int_equal(access(cluster_run_path(run, "t.pftrace"), R_OK), 0);
    assert_int_equal(access(cluster_run_path(run, "t.pftrace.lock"), F_OK), -1);
    cluster_fixture_tool(run, 0,
                         WORDS("run", "job.json", "--set",
                               "checkpoint.dir=null", "--trace-steps", "5:6",
                               "--trace-file", "t.pftrace"));
}
