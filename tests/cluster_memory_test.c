/* What ps and trainers keep in memory, and what a process does that has nothing
 * to do. */
#include "proto/math/footprint.h"

#include "tests/cluster_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS = 2, PATIENCE = 600 /* seconds, for gigabytes */ };
enum { LOOKS = 12 /* at a process that has nothing to do */ };
enum { INPUTS = 64, OUTPUTS = 10, SOME_ROUNDS = 4, MANY_ROUNDS = 500 };

static const double mib = 1 << 20, credit = 64 << 20;
static const double allowed_share = 1.15, idle_seconds = 3, idle_share = 0.01,
                    unusual_share = 0.1;

struct cluster {
    struct cluster_process *chief, *ps, *workers[WORKERS];
};

static unsigned soak_count(void) {
    const char *text = getenv("SOAK_COUNT");
    int count = text ? atoi(text) : 1;
    return count > 0 ? (unsigned)count : 1;
}

/* Resident bytes of the memory that a process writes: its anonymous pages, and
 * what it shares by memory of its own. What others show it is theirs. */
static double own_bytes(const struct cluster_process *process) {
    char path[64], line[512], pen[8] = "";
    unsigned long kib = 0, here;
    snprintf(path, sizeof path, "/proc/%d/smaps", cluster_run_pid(process));
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%*[0-9a-f]-%*[0-9a-f] %7s", pen) == 1)
            continue;
        bool shared = pen[3] == 's';
        if (sscanf(line, shared ? "Rss: %lu kB" : "Anonymous: %lu kB", &here) ==
                1 &&
            (!shared || pen[1] == 'w'))
            kib += here;
    }
    fclose(file);
    assert_true(kib > 0);
    return 1024.0 * (double)kib;
}

/* A ps first, alone: it listens, and waits for its chief. */
static struct cluster_process *start_ps(struct cluster_run *run) {
    cluster_run_describe(run, 1, 1, WORKERS);
    struct cluster_process *ps = cluster_run_task(run, "ps", 0, NULL);
    cluster_run_await(ps, "listening on port", CLUSTER_RUN_DEADLINE);
    return ps;
}

static struct cluster start_others(struct cluster_run *run,
                                   struct cluster_process *ps) {
    static const char *const arguments[] = {"job.json", NULL};
    struct cluster cluster = {.ps = ps};
    cluster.chief = cluster_run_task(run, "chief", 0, arguments);
    for (unsigned i = 0; i < WORKERS; i++)
        cluster.workers[i] = cluster_run_task(run, "worker", i, NULL);
    return cluster;
}

/* A job without an end, and without a checkpoint before that. */
static void write_job(const struct cluster_run *run, unsigned hidden,
                      double momentum) {
    char changes[640];
    snprintf(changes, sizeof changes,
             "{\"model\": {\"layers\": [%d, %u, %d]}, \"chief\":"
             " \"coordinate\", \"train_micro_batch_size_per_gpu\": 1,"
             " \"steps\": 1000000, \"steps_per_print\": 1, \"optimizer\":"
             " {\"params\": {\"lr\": 0.00001, \"momentum\": %g}},"
             " \"checkpoint\": {\"every_steps\": 1000000}}",
             INPUTS, hidden, OUTPUTS, momentum);
    cluster_run_job(run, changes);
}

/* The rounds behind the chief's next line about them. */
static unsigned next_round(const struct cluster *cluster) {
    const char *line =
        cluster_run_await(cluster->chief, "chief: step ", PATIENCE);
    unsigned round = 0;
    sscanf(strstr(line, "step "), "step %u/", &round);
    return round;
}

/* Starts a cluster of one ps with BYTES of weights and state, of which a
 * MOMENTUM above 0 is half. *EMPTY: what the ps holds before it has a plan. */
static struct cluster start_cluster(struct cluster_run *run, double bytes,
                                    double momentum, double *empty) {
    double weights = momentum > 0 ? bytes / 2 : bytes;
    double hidden = weights / sizeof(float) / (INPUTS + 1 + OUTPUTS);
    write_job(run, (unsigned)hidden, momentum);
    struct cluster_process *ps = start_ps(run);
    *empty = own_bytes(ps);
    return start_others(run, ps);
}

static void expect_within_limit(struct cluster_run *run, double bytes,
                                double momentum) {
    double empty, held, most = 0;
    double limit = allowed_share * bytes + WORKERS * credit;
    struct cluster cluster = start_cluster(run, bytes, momentum, &empty);
    unsigned round;
    do {
        round = next_round(&cluster);
        held = own_bytes(cluster.ps) - empty;
        most = held > most ? held : most;
    } while (round < SOME_ROUNDS);
    print_message("%.0f MiB of weights and state: %.0f MiB of %.0f allowed\n",
                  bytes / mib, most / mib, limit / mib);
    assert_true(most > bytes);
    assert_true(most <= limit);
}

static void a_ps_holds_its_weights_and_the_credits(void **state) {
    expect_within_limit(*state, (soak_count() < 10 ? 256 : 1024) * mib, 0);
}

static void a_ps_holds_its_weights_and_state_and_the_credits(void **state) {
    expect_within_limit(*state, 128 * mib, 0.9);
}

static double held_in_round(const struct cluster *cluster, unsigned round) {
    while (next_round(cluster) < round)
        ;
    return own_bytes(cluster->ps);
}

static void a_ps_grows_by_nothing_over_many_rounds(void **state) {
    double empty, early, late;
    struct cluster cluster = start_cluster(*state, mib, 0.9, &empty);
    early = held_in_round(&cluster, MANY_ROUNDS);
    late = held_in_round(&cluster, 4 * soak_count() * MANY_ROUNDS);
    print_message("%.2f MiB after %d rounds, %.2f MiB after %u\n", early / mib,
                  MANY_ROUNDS, late / mib, 4 * soak_count() * MANY_ROUNDS);
    assert_true(late <= early + mib);
}

/* 258 MiB of weights, on one ps or two ranks. */
enum { SIDE = 8192, SIDES = INPUTS + 1 + SIDE + 1 + OUTPUTS };
static const double off_by = 0.15;

static struct job large_job(enum optimizer_type rule, uint32_t stage) {
    return (struct job){
        .model = {.num_layers = 4, .layers = {INPUTS, SIDE, SIDE, OUTPUTS}},
        .data = {.num_workers = 1, .prefetch_factor = 2, .shuffle = true},
        .micro_batch = 1,
        .optimizer = {.type = rule, .momentum = 0.9},
        .zero = {.stage = stage},
    };
}

static struct footprint_case footprint_of(const struct job *job,
                                          bool allreduce) {
    return (struct footprint_case){.job = job,
                                   .allreduce = allreduce,
                                   .trainers = WORKERS,
                                   .elements = (uint64_t)SIDE * SIDES + OUTPUTS,
                                   .train_samples = 600,
                                   .test_samples = 200};
}

static void write_large_job(const struct cluster_run *run, const char *rule,
                            uint32_t stage, const char *more) {
    char changes[640];
    snprintf(changes, sizeof changes,
             "{\"model\": {\"layers\": [%d, %d, %d, %d]}, \"chief\":"
             " \"coordinate\", \"train_micro_batch_size_per_gpu\": 1,"
             " \"steps\": 1000000, \"steps_per_print\": 1, \"optimizer\":"
             " {\"type\": \"%s\", \"params\": {\"lr\": 0.00001%s}},"
             " \"zero_optimization\": {\"stage\": %u},"
             " \"checkpoint\": {\"every_steps\": 1000000}%s}",
             INPUTS, SIDE, SIDE, OUTPUTS, rule,
             strcmp(rule, "SGD") ? "" : ", \"momentum\": 0.9", stage, more);
    cluster_run_job(run, changes);
}

/* What the process holds is what FOOTPRINT says, with the program itself. */
static void expect_footprint(const struct cluster_process *process,
                             const char *who,
                             const struct footprint *footprint) {
    double held = own_bytes(process);
    double told = (double)footprint_sum(footprint);
    char parts[160];
    footprint_text(footprint, parts, sizeof parts);
    print_message("%s holds %.0f MiB, %+.1f %% of %s\n", who, held / mib,
                  100 * (held / told - 1), parts);
    assert_true(held >= (1 - off_by) * told);
    assert_true(held <= (1 + off_by) * told);
}

static void await_rounds(const struct cluster *cluster) {
    while (next_round(cluster) < SOME_ROUNDS)
        ;
}

static void with_a_ps_members_hold_what_the_plan_says(void **state) {
    struct cluster_run *run = *state;
    struct job job = large_job(OPTIMIZER_SGD, 0);
    struct footprint_case given = footprint_of(&job, false);
    struct footprint trainer, ps;
    write_large_job(run, "SGD", 0, "");
    struct cluster cluster = start_others(run, start_ps(run));
    await_rounds(&cluster);
    footprint_trainer(&trainer, &given, FOOTPRINT_ALL);
    footprint_ps(&ps, &given, given.elements, 0);
    for (int i = 0; i < WORKERS; i++)
        expect_footprint(cluster.workers[i], "a worker", &trainer);
    expect_footprint(cluster.ps, "a ps", &ps);
}

/* Over the network: gradients of all trainers wait for the norm of their round.
 * Then all its answers leave together, gathered for each trainer: what is on
 * its way is not told, and as much again at most. */
static void with_clipping_a_ps_holds_a_round_of_gradients(void **state) {
    struct cluster_run *run = *state;
    struct job job = large_job(OPTIMIZER_SGD, 0);
    struct footprint_case given = footprint_of(&job, false);
    struct footprint ps;
    double most = 0, told, answers;
    job.gradient_clipping = 1;
    footprint_ps(&ps, &given, given.elements, WORKERS);
    told = (double)footprint_sum(&ps);
    answers = WORKERS * (double)ps.bytes[FOOTPRINT_WEIGHTS];
    write_large_job(run, "SGD", 0, ", \"gradient_clipping\": 1");
    setenv("CAPSTAN_LANE", "tcp", 1);
    struct cluster cluster = start_others(run, start_ps(run));
    unsetenv("CAPSTAN_LANE");
    while (next_round(&cluster) < SOME_ROUNDS) {
        double held = own_bytes(cluster.ps);
        most = held > most ? held : most;
    }
    print_message("a ps holds %.0f MiB, %+.1f %% of what is told\n", most / mib,
                  100 * (most / told - 1));
    assert_true(most >= (1 - off_by) * told);
    assert_true(most <= (1 + off_by) * (told + answers));
}

static void expect_of_ranks(struct cluster_run *run, uint32_t stage) {
    struct job job = large_job(OPTIMIZER_ADAM, stage);
    struct footprint_case given = footprint_of(&job, true);
    struct footprint trainer;
    write_large_job(run, "Adam", stage, "");
    cluster_run_describe(run, 1, 0, WORKERS);
    struct cluster cluster = start_others(run, NULL);
    await_rounds(&cluster);
    footprint_trainer(&trainer, &given, FOOTPRINT_ALL);
    for (int i = 0; i < WORKERS; i++)
        expect_footprint(cluster.workers[i], "a rank", &trainer);
}

static void in_all_reduce_ranks_hold_what_the_plan_says(void **state) {
    expect_of_ranks(*state, 0);
}

/* The copies are of the largest weights, and few rows. */
static void rounding_ranks_hold_what_the_plan_says(void **state) {
    struct cluster_run *run = *state;
    struct job job = large_job(OPTIMIZER_SGD, 0);
    struct footprint_case given = footprint_of(&job, true);
    struct footprint trainer;
    job.model.precision = JOB_HALF_BF16;
    write_large_job(run, "SGD", 0, ", \"bf16\": {\"enabled\": true}");
    cluster_run_describe(run, 1, 0, WORKERS);
    struct cluster cluster = start_others(run, NULL);
    await_rounds(&cluster);
    footprint_trainer(&trainer, &given, FOOTPRINT_ALL);
    expect_footprint(cluster.workers[0], "a rank", &trainer);
}

static void with_zero_ranks_hold_what_the_plan_says(void **state) {
    expect_of_ranks(*state, 2);
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

static void a_ps_that_waits_for_its_chief_is_idle(void **state) {
    struct cluster_process *ps = start_ps(*state);
    expect_idle(ps, "a ps that waits for its chief");
}

static void who_waits_for_a_stopped_worker_is_idle(void **state) {
    struct cluster_run *run = *state;
    write_job(run, 64, 0);
    struct cluster cluster = start_others(run, start_ps(run));
    next_round(&cluster);
    cluster_run_signal(cluster.workers[1], SIGSTOP);
    expect_idle(cluster.ps, "a ps");
    expect_idle(cluster.workers[0], "a worker");
    expect_idle(cluster.chief, "a chief");
}

#define TEST(name)                                                             \
    cmocka_unit_test_setup_teardown(name, cluster_run_setup,                   \
                                    cluster_run_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_ps_holds_its_weights_and_the_credits),
        TEST(a_ps_holds_its_weights_and_state_and_the_credits),
        TEST(a_ps_grows_by_nothing_over_many_rounds),
        TEST(with_a_ps_members_hold_what_the_plan_says),
        TEST(with_clipping_a_ps_holds_a_round_of_gradients),
        TEST(in_all_reduce_ranks_hold_what_the_plan_says),
        TEST(with_zero_ranks_hold_what_the_plan_says),
        TEST(rounding_ranks_hold_what_the_plan_says),
        TEST(a_ps_that_waits_for_its_chief_is_idle),
        TEST(who_waits_for_a_stopped_worker_is_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
