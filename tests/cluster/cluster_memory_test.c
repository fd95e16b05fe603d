/* SPDX-License-Identifier: Apache-2.0 */
/* What a ps keeps in memory, and what a process does that has nothing to do. */
#include "tests/cluster/cluster_fixture.h"
#include "tests/cluster/cluster_memory_fixture.h"
#include "tests/lib/test.h"

#include <poll.h>
#include <signal.h>
#include <sys/pidfd.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS = CLUSTER_MEMORY_FIXTURE_WORKERS };
enum { LOOKS = 12 /* at a process that has nothing to do */ };
enum { INPUTS = 64, OUTPUTS = 10, SOME_ROUNDS = 4, MANY_ROUNDS = 500 };

static const double mib = 1 << 20, credit = 64 << 20;
static const double allowed_share = 1.15, idle_seconds = 3, idle_share = 0.01,
                    unusual_share = 0.25;

/* A job without an end, and without a checkpoint before that. */
static void write_job(const struct cluster_run *run, unsigned hidden,
                      double momentum) {
    cluster_run_job(
        run, textf("{\"model\": {\"layers\": [%d, %u, %d]}, \"chief\":"
                   " \"coordinate\", \"train_micro_batch_size_per_gpu\": 1,"
                   " \"steps\": 1000000, \"steps_per_print\": 1, \"optimizer\":"
                   " {\"params\": {\"lr\": 0.00001, \"momentum\": %g}},"
                   " \"checkpoint\": {\"every_steps\": 1000000}}",
                   INPUTS, hidden, OUTPUTS, momentum));
}

/* Starts a cluster of one ps with BYTES of weights and state, of which a
 * MOMENTUM above 0 is half. *EMPTY: what the ps holds before it has a plan. */
static struct cluster_memory_fixture start_cluster(struct cluster_run *run,
                                                   double bytes,
                                                   double momentum,
                                                   double *empty) {
    double weights = momentum > 0 ? bytes / 2 : bytes;
    double hidden = weights / sizeof(float) / (INPUTS + 1 + OUTPUTS);
    write_job(run, (unsigned)hidden, momentum);
    struct cluster_process *ps = cluster_memory_fixture_start_ps(run);
    *empty = cluster_memory_fixture_resident_bytes(ps);
    return cluster_memory_fixture_start(run, ps);
}

static void expect_within_limit(struct cluster_run *run, double bytes,
                                double momentum) {
    double empty, held, most = 0;
    double limit = allowed_share * bytes + WORKERS * credit;
    struct cluster_memory_fixture cluster =
        start_cluster(run, bytes, momentum, &empty);
    unsigned round;
    do {
        round = cluster_memory_fixture_next_round(&cluster);
        held = cluster_memory_fixture_resident_bytes(cluster.ps) - empty;
        most = held > most ? held : most;
    } while (round < SOME_ROUNDS);
    print_message("%.0f MiB of weights and state: %.0f MiB of %.0f allowed\n",
                  bytes / mib, most / mib, limit / mib);
    /* The weights were seen; an empty ps has some of what it takes for them. */
    assert_true(most > 0.98 * bytes);
    assert_true(most <= limit);
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(a_ps_uses_memory_for_weights_and_credits) {
    expect_within_limit(
        *state, (cluster_fixture_repeats(1) < 10 ? 256 : 1024) * mib, 0);
}

TEST(a_ps_uses_memory_for_weights_state_and_credits) {
    expect_within_limit(*state, 128 * mib, 0.9);
}

static double held_in_round(const struct cluster_memory_fixture *cluster,
                            unsigned round) {
    while (cluster_memory_fixture_next_round(cluster) < round)
        ;
    return cluster_memory_fixture_resident_bytes(cluster->ps);
}

TEST(a_ps_does_not_grow_over_many_rounds) {
    double empty, early, late;
    struct cluster_memory_fixture cluster =
        start_cluster(*state, mib, 0.9, &empty);
    early = held_in_round(&cluster, MANY_ROUNDS);
    late =
        held_in_round(&cluster, 4 * cluster_fixture_repeats(1) * MANY_ROUNDS);
    print_message("%.2f MiB after %d rounds, %.2f MiB after %u\n", early / mib,
                  MANY_ROUNDS, late / mib,
                  4 * cluster_fixture_repeats(1) * MANY_ROUNDS);
    assert_true(late <= early + mib);
}

static double busy_seconds(const struct cluster_process *process) {
    struct timespec busy;
    clockid_t clock;
    assert_int_equal(clock_getcpuclockid(cluster_run_pid(process), &clock), 0);
    assert_int_equal(clock_gettime(clock, &busy), 0);
    return (double)busy.tv_sec + 1e-9 * (double)busy.tv_nsec;
}

/* What the process computes in each of LOOKS equal parts of idle_seconds. */
static void watch_idle(const struct cluster_process *process,
                       double spent[static LOOKS]) {
    int descriptor = pidfd_open(cluster_run_pid(process), 0);
    struct pollfd end = {descriptor, POLLIN, 0};
    double before = busy_seconds(process), after;
    for (unsigned i = 0; i < LOOKS; i++, before = after) {
        int part_ms = (int)(1000 * idle_seconds / LOOKS);
        assert_int_equal(poll(&end, 1, part_ms), 0);
        after = busy_seconds(process);
        spent[i] = after - before;
    }
    close(descriptor);
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Of one core, while nothing happens. What a process does again and again is in
 * most looks; in one or two of them a virtual machine may charge it for memory
 * that its host has to bring back, tens of milliseconds at once. */
static void expect_idle(const struct cluster_process *process,
                        const char *what) {
    double spent[LOOKS], sum = 0;
    watch_idle(process, spent);
    for (unsigned i = 0; i < LOOKS; i++)
        sum += spent[i];
    qsort(spent, LOOKS, sizeof *spent, ascending);
    double usual = spent[LOOKS / 2] / (idle_seconds / LOOKS);
    print_message("%s: %.2f %% of a core, %.2f %% with what is unusual\n", what,
                  100 * usual, 100 * sum / idle_seconds);
    assert_true(usual < idle_share);
    assert_true(sum / idle_seconds < unusual_share);
}

TEST(a_ps_that_waits_for_its_chief_uses_no_cpu) {
    struct cluster_process *ps = cluster_memory_fixture_start_ps(*state);
    expect_idle(ps, "a ps that waits for its chief");
}

TEST(waiting_for_a_stopped_worker_uses_no_cpu) {
    struct cluster_run *run = *state;
    write_job(run, 64, 0);
    struct cluster_memory_fixture cluster =
        cluster_memory_fixture_start(run, cluster_memory_fixture_start_ps(run));
    cluster_memory_fixture_next_round(&cluster);
    cluster_run_signal(cluster.workers[1], SIGSTOP);
    expect_idle(cluster.ps, "a ps");
    expect_idle(cluster.workers[0], "a worker");
    expect_idle(cluster.chief, "a chief");
}
