/* SPDX-License-Identifier: Apache-2.0 */
/* A firewall, or a path that loses large packets, between two processes of a
 * cluster with ps, each on a host of its own (net_hosts.h): who ends, who goes
 * on, and whether both ends are named. */
#define STATE struct net_hosts *net

#include "tests/cluster/cluster_fixture.h"
#include "tests/cluster/net_hosts.h"
#include "tests/lib/test.h"

#include <signal.h>

enum { NUM_PS = NET_HOSTS_PS, HOSTS = NET_HOSTS, EXIT_RETRY = 138 };

enum {
    BLOCKED = 10 /* timeouts.peer */,
    CUT_OFF = BLOCKED + CLUSTER_RUN_DEADLINE
};
#define BLOCKED_JOB                                                            \
    "{\"model\": {\"layers\": [64, 512, 256, 10]}, \"steps\": 100000, \"timeouts\": {\"peer\": 10, \"chief\": 0}}"

/* Trains until a step is done, and fails unless TASKS live. */
static void start_blockable(struct net_hosts *net,
                            struct cluster_process *tasks[HOSTS]) {
    const char *const arguments[] = {"job.json", NULL};
    net_hosts_require(net);
    cluster_run_job(net->run, BLOCKED_JOB);
    net_hosts_start(net, tasks, arguments);
    cluster_run_await_soon(tasks[NUM_PS], "examples/s");
}

static void end_blockable(struct cluster_process *tasks[HOSTS], bool all) {
    cluster_run_await_soon(tasks[NUM_PS], "examples/s");
    cluster_run_signal(tasks[NUM_PS], SIGTERM);
    cluster_run_expect_soon(tasks[NUM_PS], 128 + SIGTERM);
    for (int i = 0; i < HOSTS; i++)
        if (i != NUM_PS && (all || i != HOSTS - 1))
            cluster_run_expect_soon(tasks[i], EXIT_RETRY);
}

/* Worker 1 loses ps 1, by a firewall at host AT that handles packets of FROM by
 * VERDICT: it ends alone, and both are named. */
static void expect_cut_off(void **state, int at, int from,
                           const char *verdict) {
    struct net_hosts *net = *state;
    struct cluster_process *tasks[HOSTS];
    start_blockable(net, tasks);
    net_hosts_block(net, at, from, verdict);
    cluster_run_expect(tasks[HOSTS - 1], EXIT_RETRY, CUT_OFF);
    assert_contains(cluster_run_errors(tasks[HOSTS - 1]),
                    "ps 1 at 10.0.0.2:2222");
    cluster_run_await_soon(tasks[NUM_PS],
                           "has not reached ps 1 at 10.0.0.2:2222");
    end_blockable(tasks, false);
    assert_contains(cluster_run_errors(tasks[NUM_PS]),
                    "warning: worker 1 on host");
}

FIXTURE(net_hosts_setup, net_hosts_teardown);

TEST(a_worker_whose_packets_a_ps_drops_ends_alone) {
    expect_cut_off(state, 1, HOSTS - 1, "drop");
}

TEST(a_worker_that_drops_the_packets_of_a_ps_ends_alone) {
    expect_cut_off(state, HOSTS - 1, 1, "drop");
}

TEST(a_worker_that_a_ps_rejects_ends_alone) {
    expect_cut_off(state, 1, HOSTS - 1, "reject with tcp reset");
}

TEST(a_worker_that_a_firewall_prohibits_ends_alone) {
    expect_cut_off(state, 1, HOSTS - 1,
                   "reject with icmpx type admin-prohibited");
}

/* As where an MTU is too large and nobody says so: connections begin and small
 * requests pass. */
TEST(a_worker_whose_large_packets_are_dropped_ends_alone) {
    expect_cut_off(state, 1, HOSTS - 1, "meta length > 600 drop");
}

TEST(a_worker_that_gets_no_large_packets_ends_alone) {
    expect_cut_off(state, HOSTS - 1, 1, "meta length > 600 drop");
}

/* Both workers are without ps 1 by VERDICT, which does not concern the chief's
 * control messages. If a round lacks one worker's blocks alone, the other has
 * nothing to send: it counts as reaching the ps until the first has ended. */
static void expect_out_of_reach(void **state, const char *verdict) {
    struct net_hosts *net = *state;
    struct cluster_process *tasks[HOSTS];
    start_blockable(net, tasks);
    net_hosts_block(net, 1, HOSTS - 1, verdict);
    net_hosts_block(net, 1, NUM_PS, verdict);
    for (int i = 0; i < HOSTS; i++)
        cluster_run_expect(tasks[i], EXIT_RETRY, CUT_OFF);
    for (int i = 0; i < HOSTS; i++)
        assert_true(strstr(cluster_run_errors(tasks[i]),
                           "is out of reach of every trainer (worker ") ||
                    (i > NUM_PS && strstr(cluster_run_errors(tasks[i]),
                                          "not reached ps 1 at")));
}

TEST(a_ps_that_no_trainer_reaches_ends_the_run) {
    expect_out_of_reach(state, "tcp dport 2222 drop");
}

TEST(a_ps_that_gets_no_large_packets_ends_the_run) {
    expect_out_of_reach(state, "tcp dport 2222 meta length > 600 drop");
}

/* Worker 0's process leads: its trainer ends, and it leads on. */
TEST(a_chief_whose_trainer_is_cut_off_leads_on) {
    struct cluster_process *tasks[HOSTS];
    start_blockable(net, tasks);
    net_hosts_block(net, 1, NUM_PS, "tcp dport 2222 drop");
    cluster_run_await(tasks[NUM_PS], "has not reached ps 1 at 10.0.0.2:2222",
                      CUT_OFF);
    end_blockable(tasks, true);
}

/* As start_blockable, but the workers are callers of the library; worker 0's
 * process leads too. */
static void start_callers(struct net_hosts *net,
                          struct cluster_process *tasks[HOSTS]) {
    static const char *const arguments[] = {"rates", NULL};
    char caller[PATH_MAX];
    net_hosts_require(net);
    net_hosts_describe(net);
    cluster_fixture_caller(caller);
    setenv("CAPSTAN_SET", "steps=100000\ntimeouts.peer=10", 1);
    for (int i = 0; i < HOSTS; i++) {
        bool ps = i < NUM_PS;
        net->run->network = net->hosts[i];
        tasks[i] = cluster_run_task_program(
            net->run, ps ? "ps" : "worker", (unsigned)(ps ? i : i - NUM_PS),
            ps ? NULL : caller, ps ? NULL : arguments);
    }
    net->run->network = 0;
    unsetenv("CAPSTAN_SET");
    cluster_run_await_soon(tasks[NUM_PS], "examples/s");
}

/* Its program ends with its trainer, and the chief in it. */
TEST(a_leading_caller_without_a_ps_ends_the_run) {
    struct cluster_process *tasks[HOSTS];
    start_callers(net, tasks);
    net_hosts_block(net, 1, NUM_PS, "tcp dport 2222 drop");
    for (int i = 0; i < HOSTS; i++)
        cluster_run_expect(tasks[i], EXIT_RETRY, CUT_OFF);
    for (int i = 0; i < HOSTS; i++) {
        const char *said = cluster_run_errors(tasks[i]);
        assert_contains(said, "worker 0 on host");
        assert_contains(said, "not reached ps 1 at 10.0.0.2:2222");
    }
}

TEST(a_leading_caller_without_a_network_ends_the_run) {
    struct cluster_process *tasks[HOSTS];
    start_callers(net, tasks);
    net_hosts_set_link_down(net, NUM_PS, true);
    for (int i = 0; i < HOSTS; i++)
        cluster_run_expect(tasks[i], EXIT_RETRY, CUT_OFF);
    for (int i = 0; i < HOSTS; i++) {
        const char *said = cluster_run_errors(tasks[i]);
        if (i == NUM_PS)
            assert_contains(said, "is gone: silent for");
        else
            assert_contains(said, "10.0.0.3:2222 was silent for");
    }
}

/* Packets of worker 1 to the chief are dropped, those of the chief pass. */
TEST(a_worker_that_the_chief_does_not_hear_ends_alone) {
    struct cluster_process *tasks[HOSTS];
    start_blockable(net, tasks);
    net_hosts_block(net, NUM_PS, HOSTS - 1, "drop");
    cluster_run_expect(tasks[HOSTS - 1], EXIT_RETRY, CUT_OFF);
    assert_contains(cluster_run_errors(tasks[HOSTS - 1]),
                    "10.0.0.3:2222 was silent for 10 s");
    cluster_run_await_soon(tasks[NUM_PS], "is gone: silent for");
    end_blockable(tasks, false);
}

TEST(a_firewall_for_four_seconds_harms_nobody) {
    struct cluster_process *tasks[HOSTS];
    start_blockable(net, tasks);
    net_hosts_block(net, 1, HOSTS - 1, "drop");
    cluster_fixture_sleep(4); /* how long it stays */
    net_hosts_unblock(net, 1);
    end_blockable(tasks, true);
    assert_null(strstr(cluster_run_errors(tasks[NUM_PS]), "is gone"));
    assert_null(strstr(cluster_run_errors(tasks[NUM_PS]), "has not reached"));
}
