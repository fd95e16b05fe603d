/* SPDX-License-Identifier: Apache-2.0 */
/* A launcher's child that is killed: the chief hears of it at once, and not
 * after timeouts.peer, which no deadline here reaches. */
#include "tests/cluster/cluster_fixture.h"

#include "commands/launch/death_report.h"
#include "commands/launch/port.h"
#include "proto/messages/launch_record.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

enum { RETRY = 138, KILLED = 128 + SIGKILL, MAX_NODES = 3 };

#define BY_SIGNAL "was killed by signal 9 (Killed)"

static const char endless[] =
    "{\"steps\": 10000000, \"steps_per_epoch\": 10000000,"
    " \"timeouts\": {\"stop\": 1, \"peer\": 600}}";

/* The process number that PROCESS's next line with NAME tells. */
static pid_t pid_of(struct cluster_process *process, const char *name) {
    const char *line = cluster_run_await_soon(process, name);
    const char *pid = strstr(line, ", pid ");
    assert_non_null(pid);
    pid_t number = (pid_t)atoi(pid + strlen(", pid "));
    assert_true(number > 1);
    return number;
}

/* Kills NAME of a run by `capstan local` that has begun to train. */
static struct cluster_process *kill_one(struct cluster_run *run,
                                        unsigned num_ps, unsigned num_workers,
                                        const char *name) {
    const char *joined = textf("chief: %s joined", name);
    cluster_run_job(run, endless);
    struct cluster_process *local = cluster_run_start(
        run, "local",
        WORDS("local", "job.json", "--ps", textf("%u", num_ps), "--workers",
              textf("%u", num_workers), "--max-restarts", "0"),
        NULL);
    pid_t victim = pid_of(local, joined);
    cluster_run_await_soon(local, "%)");
    assert_int_equal(kill(victim, SIGKILL), 0);
    return local;
}

/* It names who is the cause, and how. */
static void expect_cause(struct cluster_process *process, const char *name) {
    const char *line = cluster_run_await_soon(
        process, textf("chief: error: %s on host", name));
    assert_contains(line, BY_SIGNAL);
}

FIXTURE(cluster_run_setup_in_memory, cluster_run_teardown);

TEST(a_ps_killed_under_local_ends_the_run_at_once) {
    struct cluster_process *local = kill_one(*state, 1, 2, "ps 0");
    expect_cause(local, "ps 0");
    cluster_run_expect_soon(local, RETRY);
}

TEST(a_rank_of_allreduce_killed_under_local_ends_the_run_at_once) {
    struct cluster_process *local = kill_one(*state, 0, 2, "worker 1");
    expect_cause(local, "worker 1");
    cluster_run_expect_soon(local, RETRY);
}

/* Both workers are needed for a round until the view has one. */
TEST(the_run_continues_at_once_without_a_worker_killed_under_local) {
    struct cluster_process *local = kill_one(*state, 1, 2, "worker 1");
    const char *line = cluster_run_await_soon(local, BY_SIGNAL);
    assert_contains(line, "worker 1");
    assert_contains(line, "; the run goes on without it");
    cluster_run_await_soon(local, "of worker 1's share of the data");
    cluster_run_await_soon(local, "%)");
    cluster_run_await_soon(local, "%)");
    cluster_run_signal(local, SIGINT);
    cluster_run_expect_soon(local, 128 + SIGINT);
    assert_false(cluster_fixture_has_logged(local, "stranger"));
}

TEST(the_run_does_not_wait_for_a_last_worker_that_was_killed) {
    struct cluster_process *local = kill_one(*state, 1, 1, "worker 0");
    cluster_run_await_soon(local, "no trainer is left");
    cluster_run_expect_soon(local, RETRY);
}

TEST(a_process_that_said_goodbye_is_not_reported) {
    cluster_run_job(*state, endless);
    struct cluster_process *local = cluster_fixture_local(*state, 1, 2, NULL);
    pid_t worker = pid_of(local, "chief: worker 1 joined");
    cluster_run_await_soon(local, "%)");
    assert_int_equal(kill(worker, SIGTERM), 0);
    cluster_run_await_both(local, "chief: worker 1 said goodbye",
                           "local: warning: worker 1 ended with",
                           CLUSTER_RUN_DEADLINE);
    cluster_run_await_soon(local, "%)");
    cluster_run_signal(local, SIGINT);
    cluster_run_expect_soon(local, 128 + SIGINT);
    assert_false(cluster_fixture_has_logged(local, "chief: warning: worker 1"));
}

/* A node each, of one process, with a secret that `launch` hands on: the last
 * is the ps. */
static void launch_nodes(struct cluster_run *run, unsigned count, int *holder,
                         struct cluster_process **nodes) {
    char rank[32];
    uint16_t number;
    cluster_run_job(run, endless);
    cluster_fixture_tool(run, 0, WORDS("keygen", "secret"));
    assert_int_equal(port_reserve(&number, holder, NULL), 0);
    const char *port = textf("--master_port=%u", number);
    const char *all = textf("--nnodes=%u", count);
    for (unsigned i = 0; i < count; i++) {
        const char *const arguments[] = {"launch",
                                         all,
                                         rank,
                                         port,
                                         "--max-restarts=0",
                                         "--secret-file=secret",
                                         getenv("CAPSTAN"),
                                         "run",
                                         "--num-ps",
                                         "1",
                                         "job.json",
                                         NULL};
        snprintf(rank, sizeof rank, "--node_rank=%u", i);
        nodes[i] = cluster_run_start(run, rank, arguments, NULL);
    }
    cluster_run_await_soon(nodes[0], "only processes with the run's secret");
    cluster_run_await(nodes[0], "%)", 2 * CLUSTER_RUN_DEADLINE);
}

TEST(a_ps_killed_on_another_node_ends_the_run_at_once) {
    struct cluster_process *nodes[MAX_NODES];
    int holder;
    launch_nodes(*state, 2, &holder, nodes);
    assert_int_equal(kill(pid_of(nodes[1], "ps 0: "), SIGKILL), 0);
    expect_cause(nodes[0], "ps 0");
    cluster_run_expect_soon(nodes[1], KILLED);
    cluster_run_expect_soon(nodes[0], RETRY);
    close(holder);
}

TEST(the_run_continues_without_a_worker_killed_on_another_node) {
    struct cluster_process *nodes[MAX_NODES];
    int holder;
    launch_nodes(*state, 3, &holder, nodes);
    assert_int_equal(kill(pid_of(nodes[1], "worker 1: "), SIGKILL), 0);
    const char *line = cluster_run_await_soon(nodes[0], BY_SIGNAL);
    assert_contains(line, "worker 1");
    cluster_run_expect_soon(nodes[1], KILLED);
    cluster_run_await_soon(nodes[0], "%)");
    cluster_run_await_soon(nodes[0], "%)");
    cluster_run_signal(nodes[0], SIGTERM);
    cluster_run_expect_soon(nodes[0], 128 + SIGTERM);
    close(holder);
}

/* The value of "NAME=" in the environment of process PID, until the next call.
 */
static const char *variable_of(pid_t pid, const char *name) {
    static char text[65536];
    int file = open(textf("/proc/%d/environ", (int)pid), O_RDONLY);
    ssize_t size = read(file, text, sizeof text - 1);
    assert_true(file >= 0 && size > 0);
    close(file);
    text[size] = 0;
    const char *at = text;
    while (at < text + size && strncmp(at, name, strlen(name)) != 0)
        at += strlen(at) + 1;
    assert_true(at < text + size);
    return at + strlen(name);
}

/* What process PID has written down for its launcher. */
static struct launch_record record_of(pid_t pid) {
    struct launch_record record;
    int number = atoi(variable_of(pid, "CAPSTAN_MEMBER_RECORD="));
    int file = open(textf("/proc/%d/fd/%d", (int)pid, number), O_RDONLY);
    assert_true(launch_record_read(file, &record));
    close(file);
    return record;
}

static void report(struct death_report *report,
                   const struct launch_record *record) {
    int file = launch_record_open(1);
    launch_record_write(file, record);
    assert_true(death_report_send(report, file, SIGKILL, false, NULL));
    close(file);
}

/* All members have the run's secret and know each other's incarnations, and
 * with it the run, but not the key. */
TEST(a_death_report_without_the_key_is_ignored) {
    struct death_report reports = {0};
    cluster_run_job(*state, endless);
    struct cluster_process *local = cluster_fixture_local(*state, 1, 2, NULL);
    pid_t worker = pid_of(local, "chief: worker 1 joined");
    cluster_run_await_soon(local, "%)");
    const struct launch_record real = record_of(worker);
    setenv("CAPSTAN_LOCAL_SECRET", variable_of(worker, "CAPSTAN_LOCAL_SECRET="),
           1);
    struct launch_record forged = real;
    forged.key++;
    report(&reports, &forged);
    forged.key = 0;
    report(&reports, &forged);
    forged.incarnation++;
    report(&reports, &forged);
    cluster_run_await_soon(local, "%)");
    cluster_run_await_soon(local, "%)");
    report(&reports, &real);
    death_report_flush(&reports);
    const char *line = cluster_run_await_soon(local, "chief: warning: ");
    assert_contains(line, "worker 1");
    assert_contains(line, BY_SIGNAL);
    cluster_run_signal(local, SIGINT);
    cluster_run_expect_soon(local, 128 + SIGINT);
    const char *said = strstr(cluster_run_errors(local), BY_SIGNAL);
    assert_null(strstr(said + 1, BY_SIGNAL));
    assert_int_equal(reports.unacknowledged, 3);
    death_report_close(&reports);
    unsetenv("CAPSTAN_LOCAL_SECRET");
}
