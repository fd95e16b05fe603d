/* SPDX-License-Identifier: Apache-2.0 */
/* Runs that srun starts, and the batch files of deploy/slurm, in a Slurm
 * cluster of one or two nodes that the test starts itself
 * (tests/cluster/slurm/nodes.sh, which needs root and Debian's slurm-wlm). */
#include "commands/launch/port.h"
#include "tests/cluster/cluster_run.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <unistd.h>

enum {
    PORTS = 4,
    START = 60,    /* seconds for Slurm to come up */
    REQUEUES = 150 /* seconds that the jobs of requeue.sh may take */
};

/* Runs COMMAND as a job's shell would, with two nodes or one; its process.
 * DEPLOY and TESTS there are deploy/slurm and tests/cluster/slurm. */
static struct cluster_process *under_slurm(struct cluster_run *run,
                                           bool two_nodes,
                                           const char *command) {
    char script[PATH_MAX], ports[PORTS][8], nodes[32];
    char master[32]; /* other runs here have the usual one */
    char deploy[PATH_MAX + 8] = "DEPLOY=", tests[PATH_MAX + 8] = "TESTS=";
    static int holders[PORTS];
    assert_non_null(realpath("tests/cluster/slurm/nodes.sh", script));
    assert_non_null(realpath("deploy/slurm", deploy + strlen(deploy)));
    assert_non_null(realpath("tests/cluster/slurm", tests + strlen(tests)));
    const char *folder = cluster_run_path(run, "slurm");
    for (int i = 0; i < PORTS; i++) {
        uint16_t port;
        if (holders[i]) /* of the test before */
            close(holders[i]);
        assert_int_equal(port_reserve(&port, &holders[i], NULL), 0);
        snprintf(ports[i], sizeof *ports, "%u", port);
    }
    snprintf(nodes, sizeof nodes, two_nodes ? "%s,%s" : "%s", ports[1],
             ports[3]);
    snprintf(master, sizeof master, "MASTER_PORT=%s", ports[2]);
    return cluster_run_program(
        run, "slurm-run", script,
        WORDS(folder, ports[0], nodes, "sh", "-c", command),
        WORDS(deploy, tests, two_nodes ? NULL : master));
}

/* The end of PROCESS; skips the test where Slurm cannot be. */
static void expect_or_skip(struct cluster_process *process, double seconds) {
    cluster_run_expect(process, 0, START + seconds);
    const char *said = cluster_run_output(process);
    if (!strncmp(said, "skip ", 5))
        skip_test("no Slurm here, without %.*s (slurm-wlm, munge)",
                  (int)strcspn(said + 5, "\n"), said + 5);
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(srun_starts_a_run) {
    cluster_run_job(*state, NULL);
    struct cluster_process *process = under_slurm(
        *state, false, "srun -n 4 \"$CAPSTAN\" run --json --num-ps 1 job.json");
    expect_or_skip(process, 2 * CLUSTER_RUN_DEADLINE);
    const json_t *summary = cluster_run_json(process);
    assert_int_equal(json_integer_value(json_object_get(summary, "exit")), 0);
    assert_contains(cluster_run_errors(process), "cluster from slurm");
    assert_contains(cluster_run_errors(process), "3 trainers, 1 ps");
}

/* Its script is task 0 of as many as srun may start, and alone. */
TEST(a_batch_script_without_srun_runs_alone) {
    struct cluster_process *process = under_slurm(
        *state, false,
        "printf '#!/bin/sh\\n\"$CAPSTAN\" cluster\\nsrun \"$CAPSTAN\" cluster' "
        "> batch.sh; sbatch -W -n 2 -o batch.out batch.sh >&2; cat batch.out");
    expect_or_skip(process, 2 * CLUSTER_RUN_DEADLINE);
    const char *said = cluster_run_output(process);
    assert_int_equal(strncmp(said, "{\"source\":\"alone\"", 17), 0);
    assert_contains(said, "{\"source\":\"slurm\",\"role\":\"worker\","
                          "\"index\":1,\"num_ps\":0,"
                          "\"num_workers\":2");
}

/* Its variables and flags are those of a user; the job is small, asks for ps,
 * and has a secret in the shared folder. */
TEST(the_batch_file_trains_in_both_modes) {
    cluster_run_job(*state, "{\"strategy\": {\"type\": \"ps\"}}");
    struct cluster_process *process =
        under_slurm(*state, true,
                    "\"$CAPSTAN\" keygen job.secret &&"
                    "sbatch -W $DEPLOY/capstan.sbatch job.json"
                    " --secret-file job.secret >&2 &&"
                    "NUM_PS=0 sbatch -W $DEPLOY/capstan.sbatch job.json"
                    " --set checkpoint.dir=other >&2;"
                    "cat capstan-*.log");
    expect_or_skip(process, 2 * CLUSTER_RUN_DEADLINE);
    const char *said = cluster_run_output(process);
    assert_contains(said, "only processes with the run's secret take part");
    assert_contains(said, "parameter server: 4 trainers, 2 ps");
    assert_contains(said, "ps 0 joined from node1");
    assert_contains(said, "ps 1 joined from node2");
    assert_contains(said, "all-reduce: 6 trainers");
    assert_null(strstr(said, "capstan ended with 1"));
}

TEST(a_requeued_job_resumes_and_ends_with_the_same_bits) {
    cluster_run_job(*state, "{\"steps\": 3000, \"checkpoint\":"
                            " {\"every_steps\": 300}}");
    expect_or_skip(under_slurm(*state, true, "exec $TESTS/requeue.sh $DEPLOY"),
                   REQUEUES);
}
