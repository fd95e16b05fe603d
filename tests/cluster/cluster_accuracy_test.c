/* SPDX-License-Identifier: Apache-2.0 */
/* Every accuracy is over the whole test set, whoever dies meanwhile: what the
 * chief says of a moment, an evaluator says of that moment's checkpoint. */
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/test.h"

#include <signal.h>

enum { MAXIMUM = 32 };
static const double PEER = 2;

/* Learns slowly, so that parts of the test set differ. */
static const char asynchronous[] =
    "{\"model\": {\"layers\": [64, 256, 256, 10]}, \"steps\": 1600,"
    " \"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.001}},"
    " \"strategy\": {\"type\": \"ps\", \"staleness\": \"inf\"},"
    " \"steps_per_epoch\": 400, \"chief\": \"coordinate\","
    " \"timeouts\": {\"peer\": 2},"
    " \"checkpoint\": {\"every_epochs\": 1, \"keep\": 20}}";
static const char synchronous[] =
    "{\"model\": {\"layers\": [64, 256, 256, 10]}, \"steps\": 300,"
    " \"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.003}},"
    " \"steps_per_epoch\": 100, \"chief\": \"coordinate\","
    " \"timeouts\": {\"peer\": 2}}";

/* Worker 1 is still from the first steps on, and dead after timeouts.peer. */
static struct cluster_process *run_to_its_end(void **state, const char *job,
                                              struct cluster_fixture *fixture) {
    struct cluster_run *run = *state;
    cluster_run_job(run, job);
    cluster_fixture_describe(fixture, run, 1, 2, 2);
    cluster_fixture_start_all(fixture);
    struct cluster_process *chief = fixture->tasks[0].process;
    unsigned dead = cluster_fixture_find(fixture, "worker", 1);
    cluster_run_await_soon(chief, "steps ");
    cluster_run_signal(fixture->tasks[dead].process, SIGSTOP);
    cluster_run_await(chief, "worker 1 on host", PEER + CLUSTER_RUN_DEADLINE);
    cluster_run_signal(fixture->tasks[dead].process, SIGKILL);
    cluster_fixture_expect_soon(fixture, dead, 0);
    assert_false(cluster_fixture_has_logged(chief, "(over "));
    return chief;
}

static struct cluster_process *evaluate_checkpoints(struct cluster_run *run) {
    static const char tf_config[] =
        "TF_CONFIG={\"cluster\": {\"chief\": [\"localhost:1\"],"
        " \"ps\": [\"localhost:2\"], \"worker\": [\"localhost:3\"]},"
        " \"task\": {\"type\": \"evaluator\", \"index\": 0}}";
    struct cluster_process *evaluator = cluster_run_start(
        run, "evaluator", WORDS("run", "--checkpoint-dir", "checkpoint"),
        WORDS(tf_config));
    cluster_run_expect_soon(evaluator, 0);
    return evaluator;
}

/* The accuracies that PROCESS has said, oldest first. */
static unsigned read_accuracies(const struct cluster_process *process,
                                double *values) {
    static const char before[] = ": test accuracy ";
    unsigned count = 0;
    const char *at = cluster_run_errors(process);
    while ((at = strstr(at, before))) {
        assert_true(count < MAXIMUM);
        at += strlen(before);
        assert_int_equal(sscanf(at, "%lf", &values[count++]), 1);
    }
    return count;
}

FIXTURE(cluster_run_setup_in_memory, cluster_run_teardown);

TEST(a_dead_workers_split_is_evaluated_by_a_live_worker) {
    struct cluster_fixture fixture;
    double said[MAXIMUM], wanted[MAXIMUM];
    struct cluster_process *chief =
        run_to_its_end(state, asynchronous, &fixture);
    unsigned count = read_accuracies(chief, said);
    assert_int_equal(read_accuracies(evaluate_checkpoints(fixture.run), wanted),
                     count);
    assert_true(count >= 2);
    for (unsigned i = 0; i < count; i++)
        assert_true(said[i] == wanted[i]);
}

TEST(a_synchronous_accuracy_with_a_missing_split_is_recomputed) {
    struct cluster_fixture fixture;
    double said[MAXIMUM], wanted[MAXIMUM];
    struct cluster_process *chief =
        run_to_its_end(state, synchronous, &fixture);
    unsigned count = read_accuracies(chief, said);
    /* of epochs that pass before there is a snapshot of one only the last is
     * told: a chief may be slow, or the one worker that is left fast */
    assert_in_range(count, 1, 3);
    unsigned last = read_accuracies(evaluate_checkpoints(fixture.run), wanted);
    assert_true(last > 0 && said[count - 1] == wanted[last - 1]);
}
