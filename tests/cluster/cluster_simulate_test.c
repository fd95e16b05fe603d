/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan bench --simulate` as a user types it: a job, a vector, a mistake. */
#include "tests/cluster/cluster_run.h"
#include "tests/lib/json_number.h"
#include "tests/lib/test.h"

static const json_t *simulate(struct cluster_run *run,
                              const char *const *arguments) {
    struct cluster_process *process =
        cluster_run_start(run, "simulate", arguments, NULL);
    cluster_run_expect_soon(process, 0);
    return cluster_run_json(process);
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

/* [64, 16, 10]: 1210 floats, in a round of 4 workers to 2 ps. */
TEST(a_job_is_simulated) {
    struct cluster_run *run = *state;
    const char *const arguments[] = {
        "bench", "--simulate", "--ps",     "2",  "--workers",
        "4",     "--json",     "job.json", NULL,
    };
    cluster_run_job(run, NULL);
    const json_t *object = simulate(run, arguments);
    assert_true(number_at(object, "bytes") == 4840);
    assert_true(number_at(object, "computing_seconds") > 0);
    double bound = number_at(object, "bound_seconds");
    assert_true(bound > 0 && number_at(object, "round_seconds") >= bound);
    assert_true(number_at(object, "rounds_per_second") > 0);
}

TEST(a_vector_needs_no_job) {
    const char *const arguments[] = {
        "bench",     "--simulate", "--bytes",  "8M", "--place", "one",
        "--compute", "0.25",       "--jitter", "0",  NULL,
    };
    const char *const json[] = {
        "bench",     "--simulate", "--bytes",  "8M", "--place", "one",
        "--compute", "0.25",       "--jitter", "0",  "--json",  NULL,
    };
    struct cluster_process *process =
        cluster_run_start(*state, "told", arguments, NULL);
    cluster_run_expect_soon(process, 0);
    assert_contains(cluster_run_output(process), "a round takes");
    const json_t *object = simulate(*state, json);
    assert_true(number_at(object, "round_seconds") > 0.25);
    assert_true(json_is_null(json_object_get(object, "bound_seconds")));
}

TEST(impossible_settings_are_reported) {
    struct cluster_process *process = cluster_run_start(
        *state, "wrong",
        WORDS("bench", "--simulate", "--bytes", "1M", "--ps", "64"), NULL);
    cluster_run_expect_soon(process, 2);
    assert_contains(cluster_run_errors(process),
                    "64 ps: the model has 16 blocks");
}
