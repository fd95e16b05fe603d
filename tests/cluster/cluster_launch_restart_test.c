/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan launch` starts a process of a run again that died, on whichever node
 * it is, and the run goes on. */
#define STATE struct cluster_run *run

#include "commands/launch/port.h"
#include "core/base/secret_file.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { KILLED = 137, RETRY = 138, LONG = 4 * CLUSTER_RUN_DEADLINE };

#define JOB                                                                    \
    "{\"epochs\": 200, \"steps_per_print\": 10, \"checkpoint\": "              \
    "{\"every_steps\": 250, \"keep\": 100}}"

FIXTURE(cluster_run_setup, cluster_run_teardown);

struct nodes {
    int holder; /* of the port of rank 0 */
    struct cluster_process *nodes[2];
};

/* COUNT nodes of PER_NODE ranks, of which the last PS are ps. */
static struct nodes launch_some(struct cluster_run *run, unsigned count,
                                const char *per_node, const char *ps,
                                const char *dir, const char *flag) {
    struct nodes all;
    uint16_t number;
    assert_int_equal(port_reserve(&number, &all.holder, NULL), 0);
    for (unsigned i = 0; i < count; i++)
        all.nodes[i] = cluster_run_start(
            run, textf("%s-node-%u", dir, i),
            WORDS("launch", "--nproc_per_node", per_node, "--nnodes",
                  textf("%u", count), "--node_rank", textf("%u", i),
                  "--master_port", textf("%u", number), flag, getenv("CAPSTAN"),
                  "run", "--json", "--num-ps", ps, "job.json", "--set",
                  textf("checkpoint.dir=%s", dir)),
            NULL);
    return all;
}

static struct nodes launch_ranks(struct cluster_run *run, unsigned count,
                                 const char *per_node, const char *dir,
                                 const char *flag) {
    return launch_some(run, count, per_node, "1", dir, flag);
}

static pid_t pid_of_member(struct cluster_process *leader, const char *name) {
    const char *line =
        cluster_run_await_soon(leader, textf("%s joined from ", name));
    const char *pid = strstr(line, ", pid ");
    assert_non_null(pid);
    return (pid_t)atoi(pid + strlen(", pid "));
}

/* Kills member NAME once there is a checkpoint. */
static void kill_member(struct cluster_process *leader, const char *name) {
    pid_t pid = pid_of_member(leader, name);
    cluster_run_await_soon(leader, "chief: checkpoint ");
    assert_int_equal(kill(pid, SIGKILL), 0);
}

static void expect_rewinds_of(struct cluster_process *leader, int count) {
    assert_int_equal(json_integer_value(
                         json_object_get(cluster_run_json(leader), "rewinds")),
                     count);
}

static void expect_nodes(const struct nodes *all, unsigned count, int code) {
    for (unsigned i = 0; i < count; i++)
        cluster_run_expect(all->nodes[i], code, LONG);
    close(all->holder);
}

TEST(a_ps_of_launch_is_started_again_and_the_weights_are_the_same) {
    cluster_run_job(run, JOB);
    struct nodes whole = launch_ranks(run, 1, "3", "a", "--max-restarts=0");
    expect_nodes(&whole, 1, 0);
    struct nodes killed = launch_ranks(run, 1, "3", "b", "--max-restarts=1");
    kill_member(killed.nodes[0], "ps 0");
    cluster_run_await_soon(killed.nodes[0],
                           "rank 2 was killed by signal 9 (Killed): it is "
                           "started again (1 of 1)");
    cluster_run_await_soon(killed.nodes[0], "the run goes on after step ");
    expect_nodes(&killed, 1, 0);
    expect_rewinds_of(killed.nodes[0], 1);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
}

TEST(a_ps_on_another_node_is_started_again_by_its_launcher) {
    cluster_run_job(run, JOB);
    struct nodes all = launch_ranks(run, 2, "2", "a", "--max_restarts=10");
    kill_member(all.nodes[0], "ps 0");
    cluster_run_await_soon(all.nodes[1], "it is started again (1 of 10)");
    expect_nodes(&all, 2, 0);
    expect_rewinds_of(all.nodes[0], 1);
}

TEST(a_worker_of_launch_is_started_again_and_trains_on) {
    cluster_run_job(run, JOB);
    struct nodes all = launch_ranks(run, 1, "3", "a", "--max-restarts=10");
    kill_member(all.nodes[0], "worker 1");
    cluster_run_await_soon(all.nodes[0], "it is started again (1 of 10)");
    cluster_run_await_soon(all.nodes[0], "worker 1 joined from ");
    expect_nodes(&all, 1, 0);
    expect_rewinds_of(all.nodes[0], 0);
}

TEST(a_rank_of_all_reduce_is_started_again_and_the_weights_are_the_same) {
    static const char *const dirs[] = {"a", "b"};
    uint16_t number;
    int holder;
    cluster_run_job(run,
                    "{\"epochs\": 800, \"steps_per_print\": 10, " /* fast */
                    "\"checkpoint\": {\"every_steps\": 250, "
                    "\"keep\": 100}}");
    assert_int_equal(port_reserve(&number, &holder, NULL), 0);
    for (unsigned i = 0; i < 2; i++) {
        struct cluster_process *launch = cluster_run_start(
            run, dirs[i],
            WORDS("launch", "--nproc_per_node=3", "--max-restarts=1",
                  "--master_port", textf("%u", number), getenv("CAPSTAN"),
                  "run", "--json", "--num-ps", "0", "job.json", "--set",
                  textf("checkpoint.dir=%s", dirs[i])),
            NULL);
        if (i)
            kill_member(launch, "worker 1");
        cluster_run_expect(launch, 0, LONG);
        expect_rewinds_of(launch, (int)i);
    }
    close(holder);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
}

TEST(a_ps_of_launch_whose_restarts_are_used_up_ends_the_run) {
    cluster_run_job(run, JOB);
    struct nodes all = launch_ranks(run, 1, "3", "a", "--max-restarts=1");
    kill_member(all.nodes[0], "ps 0");
    kill_member(all.nodes[0], "ps 0");
    cluster_run_await_soon(all.nodes[0], "(--max-restarts)");
    expect_nodes(&all, 1, KILLED);
}

TEST(another_ps_takes_over_from_one_whose_restarts_are_used_up) {
    cluster_run_job(run, JOB);
    struct nodes whole = launch_some(run, 1, "4", "2", "a", "--max-restarts=0");
    expect_nodes(&whole, 1, 0);
    struct nodes killed =
        launch_some(run, 1, "4", "2", "b", "--max-restarts=1");
    kill_member(killed.nodes[0], "ps 1");
    kill_member(killed.nodes[0], "ps 1");
    cluster_run_await_soon(killed.nodes[0],
                           "ps 1: not back and not started again");
    expect_nodes(&killed, 1, 0);
    expect_rewinds_of(killed.nodes[0], 2);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
}

TEST(without_restarts_another_ps_of_launch_takes_over) {
    cluster_run_job(run, JOB);
    struct nodes whole = launch_some(run, 1, "4", "2", "a", "--max-restarts=0");
    expect_nodes(&whole, 1, 0);
    struct nodes killed =
        launch_some(run, 1, "4", "2", "b", "--max-restarts=0");
    kill_member(killed.nodes[0], "ps 1");
    cluster_run_await_soon(killed.nodes[0],
                           "ps 1: not back and not started again");
    expect_nodes(&killed, 1, 0);
    expect_rewinds_of(killed.nodes[0], 1);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
}

TEST(without_restarts_a_run_of_launch_ends_with_its_ps) {
    cluster_run_job(run, JOB);
    struct nodes all = launch_ranks(run, 2, "2", "a", "--max-restarts=0");
    kill_member(all.nodes[0], "ps 0");
    cluster_run_expect_soon(all.nodes[1], KILLED);
    cluster_run_expect_soon(all.nodes[0], RETRY);
    close(all.holder);
}

/* The ranks of the other node do not look for it for ever. */
TEST(a_leader_that_is_not_awaited_ends_the_run_of_all_nodes) {
    cluster_run_job(run, "{\"epochs\": 100000, \"checkpoint\": "
                         "{\"every_steps\": 250}, \"timeouts\": {\"peer\": "
                         "2, \"chief\": 0}}");
    struct nodes all = launch_ranks(run, 2, "2", "a", "--max-restarts=10");
    const char *line = cluster_run_await_soon(all.nodes[0], "chief: listening");
    assert_non_null(line);
    const char *own = cluster_run_await_soon(all.nodes[0], "worker 0 joined");
    const char *pid = strstr(own, ", pid ");
    assert_non_null(pid);
    pid_t leader = (pid_t)atoi(pid + strlen(", pid "));
    cluster_run_await_soon(all.nodes[0], "chief: checkpoint ");
    assert_int_equal(kill(leader, SIGKILL), 0);
    cluster_run_expect_soon(all.nodes[0], KILLED);
    cluster_run_expect(all.nodes[1], RETRY, LONG);
    assert_false(cluster_fixture_has_logged(all.nodes[1], "started again"));
    close(all.holder);
}

/* COUNT nodes, whose ps is stopped and so declared dead: its number. */
static pid_t stop_ps(struct cluster_run *run, struct nodes *all, unsigned count,
                     const char *per_node) {
    cluster_run_job(run, "{\"epochs\": 200, \"checkpoint\": {\"every_steps\": "
                         "250}, \"timeouts\": {\"peer\": 2}}");
    *all = launch_ranks(run, count, per_node, "a", "--max-restarts=10");
    pid_t pid = pid_of_member(all->nodes[0], "ps 0");
    cluster_run_await_soon(all->nodes[0], "chief: checkpoint ");
    assert_int_equal(kill(pid, SIGSTOP), 0);
    return pid;
}

/* It is on the chief's node. */
TEST(a_ps_of_launch_that_stands_still_is_ended_and_started_again) {
    struct nodes all;
    (void)stop_ps(run, &all, 1, "3");
    cluster_run_await_soon(all.nodes[0], "rank 2 was killed by signal 9");
    expect_nodes(&all, 1, 0);
    expect_rewinds_of(all.nodes[0], 1);
}

/* Processes that are started from now on look into no other. */
static void drop_tracing(void) {
    static const int capabilities[] = {CAP_SYS_PTRACE, CAP_SYS_ADMIN,
                                       CAP_PERFMON};
    for (int i = 0; !geteuid() && i < 3; i++)
        assert_return_code(prctl(PR_CAPBSET_DROP, capabilities[i]), 0);
}

/* What a process with a secret has been started with is closed to others. */
TEST(a_ps_of_launch_with_a_secret_that_stands_still_is_ended_too) {
    struct nodes all;
    drop_tracing();
    cluster_fixture_tool(run, 0, WORDS("keygen", "secret"));
    setenv(SECRET_FILE_VARIABLE, cluster_run_path(run, "secret"), 1);
    (void)stop_ps(run, &all, 1, "3");
    unsetenv(SECRET_FILE_VARIABLE);
    cluster_run_await_soon(all.nodes[0], "rank 2 was killed by signal 9");
    expect_nodes(&all, 1, 0);
    expect_rewinds_of(all.nodes[0], 1);
}

/* On another node it hears that when it goes on. */
TEST(a_ps_of_launch_that_stood_still_is_started_again) {
    struct nodes all;
    pid_t pid = stop_ps(run, &all, 2, "2");
    cluster_run_await_soon(all.nodes[0], "the run goes back to its checkpoint");
    assert_int_equal(kill(pid, SIGCONT), 0);
    cluster_run_await_soon(all.nodes[1],
                           "rank 3 ended with exit code 138: it is started");
    expect_nodes(&all, 2, 0);
    expect_rewinds_of(all.nodes[0], 1);
}

/* Each on a node of its own. */
TEST(a_process_whose_death_ends_the_run_is_not_started_again) {
    for (unsigned i = 0; i < 2; i++) {
        uint16_t number;
        int holder;
        struct cluster_process *nodes[2];
        cluster_run_job(run, "{\"epochs\": 100000}");
        assert_int_equal(port_reserve(&number, &holder, NULL), 0);
        for (unsigned n = 0; n < 2; n++)
            nodes[n] = cluster_run_start(
                run, textf("node-%u-%u", i, n),
                WORDS("launch", "--nnodes=2", "--node_rank", textf("%u", n),
                      "--master_port", textf("%u", number), getenv("CAPSTAN"),
                      "run", "--num-ps", i ? "1" : "0", "job.json", "--set",
                      "checkpoint=null"),
                NULL);
        pid_t pid = pid_of_member(nodes[0], i ? "ps 0" : "worker 1");
        cluster_run_await_soon(nodes[0], "%)");
        assert_int_equal(kill(pid, SIGKILL), 0);
        cluster_run_expect_soon(nodes[1], KILLED);
        cluster_run_expect_soon(nodes[0], RETRY);
        close(holder);
    }
}
