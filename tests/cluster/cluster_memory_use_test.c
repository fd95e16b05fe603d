/* SPDX-License-Identifier: Apache-2.0 */
/* What trainers and ps hold is what the plan's sum says: of devices too, whose
 * memory is the process's where they are fake ones (tests/gpu/fake_device.h).
 */
#define STATE struct cluster_run *run

#include "proto/plan/memory_footprint.h"
#include "tests/cluster/cluster_memory_fixture.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"
#include "worker/models/mlp.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { WORKERS = CLUSTER_MEMORY_FIXTURE_WORKERS };
static const double mib = 1 << 20;

/* A sanitizer has memory of its own, and terabytes of addresses. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
static const bool sanitized = true;
#else
static const bool sanitized = false;
#endif

/* 146 MiB of weights, on one ps or two ranks. */
enum {
    INPUTS = 64,
    OUTPUTS = 10,
    SOME_ROUNDS = 4,
    MANY_ROUNDS = 60,
    SIDE = 6144,
    SIDES = INPUTS + 1 + SIDE + 1 + OUTPUTS
};
static const double off_by = 0.15;

static struct job large_job(enum optimizer_type rule, uint32_t stage) {
    static const struct mlp_settings model = {
        .layers = {4, {INPUTS, SIDE, SIDE, OUTPUTS}}};
    return (struct job){
        .model.settings = &model,
        .data = {.num_workers = 1, .prefetch_factor = 2, .shuffle = true},
        .micro_batch = 1,
        .optimizer = {.type = rule, .momentum = 0.9},
        .zero = {.stage = stage},
    };
}

static struct memory_footprint_case footprint_of(const struct job *job,
                                                 bool allreduce) {
    return (struct memory_footprint_case){.job = job,
                                          .model = model_mlp.memory,
                                          .allreduce = allreduce,
                                          .trainers = WORKERS,
                                          .elements =
                                              (uint64_t)SIDE * SIDES + OUTPUTS,
                                          .train_samples = 600,
                                          .test_samples = 200};
}

static void write_large_job(const struct cluster_run *run, const char *rule,
                            uint32_t stage, const char *more) {
    cluster_run_job(
        run,
        textf("{\"model\": {\"layers\": [%d, %d, %d, %d]}, \"chief\":"
              " \"coordinate\", \"train_micro_batch_size_per_gpu\": 1,"
              " \"steps\": 1000000, \"steps_per_print\": 1, \"optimizer\":"
              " {\"type\": \"%s\", \"params\": {\"lr\": 0.00001%s}},"
              " \"zero_optimization\": {\"stage\": %u},"
              " \"checkpoint\": {\"every_steps\": 1000000}%s}",
              INPUTS, SIDE, SIDE, OUTPUTS, rule,
              strcmp(rule, "SGD") ? "" : ", \"momentum\": 0.9", stage, more));
}

/* What the process holds is what FOOTPRINT says, with the program itself. */
static void expect_held(double held, const char *who,
                        const struct memory_footprint *footprint) {
    double expected = (double)memory_footprint_sum(footprint);
    char parts[160];
    memory_footprint_text(footprint, parts, sizeof parts);
    print_message("%s holds %.0f MiB, %+.1f %% of %s\n", who, held / mib,
                  100 * (held / expected - 1), parts);
    assert_true(held >= (1 - off_by) * expected);
    assert_true(sanitized || held <= (1 + off_by) * expected);
}

static void expect_footprint(const struct cluster_process *process,
                             const char *who,
                             const struct memory_footprint *footprint) {
    expect_held(cluster_memory_fixture_resident_bytes(process), who, footprint);
}

static void await_rounds(const struct cluster_memory_fixture *cluster) {
    while (cluster_memory_fixture_next_round(cluster) < SOME_ROUNDS)
        ;
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(members_with_ps_use_the_planned_memory) {
    struct job job = large_job(OPTIMIZER_SGD, 0);
    struct memory_footprint_case given = footprint_of(&job, false);
    struct memory_footprint trainer, ps;
    write_large_job(run, "SGD", 0, "");
    struct cluster_memory_fixture cluster =
        cluster_memory_fixture_start(run, cluster_memory_fixture_start_ps(run));
    await_rounds(&cluster);
    memory_footprint_trainer(&trainer, &given, MEMORY_FOOTPRINT_ALL);
    memory_footprint_ps(&ps, &given, given.elements, 0);
    for (int i = 0; i < WORKERS; i++)
        expect_footprint(cluster.workers[i], "a worker", &trainer);
    expect_footprint(cluster.ps, "a ps", &ps);
}

static unsigned long page_faults(const struct cluster_process *process) {
    FILE *file = fopen(textf("/proc/%d/stat", cluster_run_pid(process)), "re");
    unsigned long faults = 0;
    assert_non_null(file);
    assert_int_equal(
        fscanf(file, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %lu", &faults), 1);
    fclose(file);
    return faults;
}

/* New memory would cost a fault for each page of weights and of gradients. */
TEST(a_worker_has_the_same_memory_after_its_run_went_back) {
    struct job job = large_job(OPTIMIZER_SGD, 0);
    struct memory_footprint_case given = footprint_of(&job, false);
    struct memory_footprint trainer;
    unsigned long before[WORKERS];
    if (sanitized)
        skip_test("a sanitizer has memory of its own");
    write_large_job(run, "SGD", 0, "");
    struct cluster_memory_fixture cluster =
        cluster_memory_fixture_start(run, cluster_memory_fixture_start_ps(run));
    await_rounds(&cluster);
    for (int i = 0; i < WORKERS; i++)
        before[i] = page_faults(cluster.workers[i]);
    cluster_run_signal(cluster.ps, SIGKILL);
    cluster_run_expect_soon(cluster.ps, 128 + SIGKILL);
    cluster.ps = cluster_run_task(run, "ps", 0, NULL);
    cluster_run_await_soon(cluster.chief, "the run goes on after step ");
    await_rounds(&cluster);
    memory_footprint_trainer(&trainer, &given, MEMORY_FOOTPRINT_ALL);
    for (int i = 0; i < WORKERS; i++) {
        double bytes = (double)(page_faults(cluster.workers[i]) - before[i]) *
                       (double)sysconf(_SC_PAGESIZE);
        print_message("%.0f MiB of page faults\n", bytes / mib);
        assert_true(bytes < (double)given.elements * sizeof(float) / 2);
        expect_footprint(cluster.workers[i], "a worker", &trainer);
    }
}

/* Over the network: gradients of all trainers wait for the norm of their round.
 * What is on its way after that, all answers at once, is not told. */
TEST(a_ps_with_clipping_holds_at_least_a_round_of_gradients) {
    struct job job = large_job(OPTIMIZER_SGD, 0);
    struct memory_footprint_case given = footprint_of(&job, false);
    struct memory_footprint ps;
    double most = 0, expected;
    job.gradient_clipping = 1;
    memory_footprint_ps(&ps, &given, given.elements, WORKERS);
    expected = (double)memory_footprint_sum(&ps);
    write_large_job(run, "SGD", 0, ", \"gradient_clipping\": 1");
    setenv("CAPSTAN_LANE", "tcp", 1);
    struct cluster_memory_fixture cluster =
        cluster_memory_fixture_start(run, cluster_memory_fixture_start_ps(run));
    unsetenv("CAPSTAN_LANE");
    while (cluster_memory_fixture_next_round(&cluster) < SOME_ROUNDS) {
        double held = cluster_memory_fixture_resident_bytes(cluster.ps);
        most = held > most ? held : most;
    }
    print_message("a ps holds %.0f MiB, %+.1f %% of what is told\n", most / mib,
                  100 * (most / expected - 1));
    assert_true(most >= (1 - off_by) * expected);
}

static void expect_of_ranks(struct cluster_run *run, uint32_t stage) {
    struct job job = large_job(OPTIMIZER_ADAM, stage);
    struct memory_footprint_case given = footprint_of(&job, true);
    struct memory_footprint trainer;
    write_large_job(run, "Adam", stage, "");
    cluster_run_describe(run, 1, 0, WORKERS);
    struct cluster_memory_fixture cluster =
        cluster_memory_fixture_start(run, NULL);
    await_rounds(&cluster);
    memory_footprint_trainer(&trainer, &given, MEMORY_FOOTPRINT_ALL);
    for (int i = 0; i < WORKERS; i++)
        expect_footprint(cluster.workers[i], "a rank", &trainer);
}

TEST(ranks_in_all_reduce_use_the_planned_memory) {
    expect_of_ranks(run, 0);
}

/* The copies are of the largest weights, and few rows. */
TEST(ranks_in_half_precision_use_the_planned_memory) {
    struct job job = large_job(OPTIMIZER_SGD, 0);
    struct memory_footprint_case given = footprint_of(&job, true);
    struct memory_footprint trainer;
    job.model.precision = JOB_PRECISION_BF16;
    write_large_job(run, "SGD", 0, ", \"bf16\": {\"enabled\": true}");
    cluster_run_describe(run, 1, 0, WORKERS);
    struct cluster_memory_fixture cluster =
        cluster_memory_fixture_start(run, NULL);
    await_rounds(&cluster);
    memory_footprint_trainer(&trainer, &given, MEMORY_FOOTPRINT_ALL);
    expect_footprint(cluster.workers[0], "a rank", &trainer);
}

TEST(ranks_with_zero_use_the_planned_memory) {
    expect_of_ranks(run, 2);
}

/* A cluster with NUM_PS whose workers have two devices each: where the host
 * adds up, fake ones on machines of their own. */
static struct cluster_memory_fixture start_with_devices(struct cluster_run *run,
                                                        unsigned num_ps,
                                                        bool adds_on_host) {
    static const char *const arguments[] = {"--set", "device=cuda", "job.json",
                                            NULL};
    struct cluster_memory_fixture cluster = {0};
    const char *program = getenv("CAPSTAN");
    char real[PATH_MAX] = "", gpus[128];
    snprintf(real, sizeof real, "%s", program ? program : "");
    setenv("CAPSTAN_EMULATED", "devices=4", 1);
    if (!build_folder_use(adds_on_host ? "fake" : "emulated"))
        skip_test("built where CUDA's headers are");
    if (num_ps)
        cluster.ps = cluster_memory_fixture_start_ps(run);
    else
        cluster_run_describe(run, 1, 0, WORKERS);
    cluster.chief = cluster_run_task(run, "chief", 0, arguments);
    for (unsigned i = 0; i < WORKERS; i++) {
        snprintf(gpus, sizeof gpus, "devices=2,memory=2147483648,machine=%u",
                 i);
        setenv("CAPSTAN_FAKE_DEVICE", gpus, 1);
        cluster.workers[i] = cluster_run_task(run, "worker", i, NULL);
    }
    unsetenv("CAPSTAN_FAKE_DEVICE");
    unsetenv("CAPSTAN_EMULATED");
    if (real[0])
        setenv("CAPSTAN", real, 1);
    else
        unsetenv("CAPSTAN");
    return cluster;
}

/* A trainer of two devices: its host's part, that of the first device, which
 * evaluates, and that of the other. */
static struct memory_footprint footprint_of_two(
    struct memory_footprint_case given, bool adds_on_host) {
    struct memory_footprint all = {0};
    given.replicas = 2;
    given.adds_on_host = adds_on_host;
    for (int part = 0; part < 3; part++) {
        struct memory_footprint one;
        if (part == 2)
            given.test_samples = 0;
        memory_footprint_trainer(&one, &given,
                                 part ? MEMORY_FOOTPRINT_DEVICE
                                      : MEMORY_FOOTPRINT_HOST);
        for (int kind = 0; kind < MEMORY_FOOTPRINT_KINDS; kind++)
            all.bytes[kind] += one.bytes[kind];
    }
    return all;
}

/* With emulated devices some of it comes and goes within a round. */
static double most_held(const struct cluster_memory_fixture *cluster,
                        const struct cluster_process *process,
                        const struct memory_footprint *footprint) {
    double enough = (1 - off_by) * (double)memory_footprint_sum(footprint);
    double most = 0;
    for (unsigned round = 0; most < enough && round < MANY_ROUNDS;
         round = cluster_memory_fixture_next_round(cluster))
        most = fmax(most, cluster_memory_fixture_resident_bytes(process));
    return most;
}

static void expect_of_devices(struct cluster_run *run, bool allreduce,
                              const char *rule, bool adds_on_host) {
    bool sgd = !strcmp(rule, "SGD");
    struct job job = large_job(sgd ? OPTIMIZER_SGD : OPTIMIZER_ADAM, 0);
    struct memory_footprint_case given = footprint_of(&job, allreduce);
    struct memory_footprint trainer = footprint_of_two(given, adds_on_host);
    write_large_job(run, rule, 0, "");
    struct cluster_memory_fixture cluster =
        start_with_devices(run, allreduce ? 0 : 1, adds_on_host);
    await_rounds(&cluster);
    for (int i = 0; i < WORKERS; i++)
        expect_held(most_held(&cluster, cluster.workers[i], &trainer),
                    "a trainer of two devices", &trainer);
}

TEST(two_devices_summed_by_the_host_use_the_planned_memory) {
    expect_of_devices(run, false, "SGD", true);
}

TEST(two_devices_with_a_collective_use_the_planned_memory) {
    expect_of_devices(run, false, "SGD", false);
}

TEST(ranks_of_two_devices_use_the_planned_memory) {
    expect_of_devices(run, true, "Adam", true);
}

/* 4 million records, each with a user of its own. */
enum { USERS = 4000000, USERS_BATCH = 2000 };
static const char users[] =
    "{\"data\": {\"format\": \"csv\", \"header\": true, \"train\":"
    " \"users.csv\", \"test\": null}, \"features\": {\"user\": {\"type\":"
    " \"hash_bucket\"}, \"e\": {\"type\": \"embedding\", \"of\": \"user\","
    " \"dim\": 16}}, \"model\": {\"layers\": [16, 1], \"loss\":"
    " \"sigmoid_cross_entropy\"}, \"chief\": \"coordinate\","
    " \"optimizer\": {\"type\": \"Adagrad\", \"params\": {\"lr\": 0.1}},"
    " \"train_micro_batch_size_per_gpu\": 2000, \"threads\": 1,"
    " \"steps\": 1000000, \"steps_per_print\": 10}";

static void write_many_users(const struct cluster_run *run) {
    FILE *file = cluster_run_create(run, "users.csv");
    fputs("label,user\n", file);
    for (int u = 0; u < USERS; u++)
        fprintf(file, "%d,u%d\n", u % 2, u);
    assert_int_equal(fclose(file), 0);
}

/* From an eighth of an epoch to its last eighth: the ps has 2.5 million more
 * rows, a trainer has read 18 MB more. */
TEST(a_trainer_does_not_grow_with_data_nor_tables) {
    const unsigned epoch = USERS / USERS_BATCH / WORKERS;
    double before[WORKERS];
    write_many_users(run);
    cluster_run_job(run, users);
    struct cluster_memory_fixture cluster =
        cluster_memory_fixture_start(run, cluster_memory_fixture_start_ps(run));
    while (cluster_memory_fixture_next_round(&cluster) < epoch / 8)
        ;
    for (int i = 0; i < WORKERS; i++)
        before[i] = cluster_memory_fixture_resident_bytes(cluster.workers[i]);
    double ps = cluster_memory_fixture_resident_bytes(cluster.ps);
    while (cluster_memory_fixture_next_round(&cluster) < 7 * epoch / 8)
        ;
    ps = cluster_memory_fixture_resident_bytes(cluster.ps) - ps;
    assert_true(ps > 200 * mib);
    for (int i = 0; i < WORKERS; i++) {
        double more =
            cluster_memory_fixture_resident_bytes(cluster.workers[i]) -
            before[i];
        print_message("a worker: %.1f MiB, then %+.1f; the ps %+.0f MiB\n",
                      before[i] / mib, more / mib, ps / mib);
        assert_true(sanitized || more < 4 * mib);
    }
}
