/* SPDX-License-Identifier: Apache-2.0 */
/* Real processes that run a replica of the model on each of several devices:
 * the weights of as many workers of one. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_fixture.h"
#include "tests/cluster/cluster_gpus.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/test.h"

#include <math.h>
#include <sys/stat.h>

enum { EXIT_CONFIG = 2, EXIT_RETRY = 138 };

static const double tolerance = 1e-5;

/* A ps and two workers: the leader with devices as GPUS says, and another with
 * as many as OTHER says. */
struct pair {
    struct cluster_process *ps, *leader, *other;
};

static struct pair start_pair(struct cluster_run *run, const char *gpus,
                              const char *other, const char *const *changes) {
    struct pair pair;
    cluster_run_job(run, cluster_gpus_job);
    cluster_gpus_describe_hosts(run, 1, 2);
    pair.ps = cluster_run_task(run, "ps", 0, NULL);
    pair.leader = cluster_gpus_worker(run, 0, gpus, "pair", changes);
    pair.other = cluster_gpus_worker(run, 1, other, "pair", changes);
    return pair;
}

/* NUM_WORKERS of the CPU in one place. */
static struct cluster_process *train_cpu(struct cluster_run *run,
                                         const char *num_ps,
                                         const char *num_workers,
                                         const char *dir,
                                         const char *const *changes) {
    char folder[128];
    const char *arguments[24] = {"local",     "--json",    "--ps",  num_ps,
                                 "--workers", num_workers, "--set", folder,
                                 "--set",     "device=cpu"};
    snprintf(folder, sizeof folder, "checkpoint.dir=%s", dir);
    arguments[cluster_gpus_add_changes(arguments, 10, changes)] = "job.json";
    struct cluster_process *local =
        cluster_run_start(run, dir, arguments, NULL);
    cluster_run_expect(local, 0, CLUSTER_GPUS_DEADLINE);
    return local;
}

/* The weights of the last checkpoint in DIR; the caller's. */
static float *weights_of(struct cluster_run *run, const char *dir,
                         size_t *count) {
    uint64_t head;
    struct stat about;
    const char *file = textf("%s.safetensors", dir);
    cluster_run_expect_soon(
        cluster_run_start(run, "export", WORDS("ckpt", "export", dir, file),
                          NULL),
        0);
    FILE *stream = fopen(cluster_run_path(run, file), "rb");
    assert_non_null(stream);
    assert_int_equal(fread(&head, sizeof head, 1, stream), 1);
    assert_int_equal(fstat(fileno(stream), &about), 0);
    *count = ((size_t)about.st_size - sizeof head - head) / sizeof(float);
    float *weights = malloc(*count * sizeof *weights);
    assert_int_equal(fseek(stream, (long)head, SEEK_CUR), 0);
    assert_int_equal(fread(weights, sizeof *weights, *count, stream), *count);
    fclose(stream);
    return weights;
}

static void expect_near(struct cluster_run *run, const char *a, const char *b) {
    size_t count_a, count_b;
    float *of_a = weights_of(run, a, &count_a);
    float *of_b = weights_of(run, b, &count_b);
    double worst = 0;
    assert_int_equal(count_a, count_b);
    for (size_t i = 0; i < count_a; i++) {
        double difference = fabs((double)of_a[i] - (double)of_b[i]);
        if (!(difference <= worst))
            worst = difference;
    }
    free(of_a);
    free(of_b);
    if (!(worst <= tolerance))
        fail_msg("weights in %s and %s differ by %g", a, b, worst);
}

static double number_of(struct cluster_process *process, const char *key) {
    const json_t *summary = cluster_run_json(process);
    double value = json_number_value(json_object_get(summary, key));
    return value;
}

static const char *const two_and_two[] = {"devices=2", "devices=2"};

GROUP(build_folder_use_fake, NULL);

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(two_workers_of_two_devices_are_four_of_one) {
    cluster_run_job(run, cluster_gpus_job);
    struct cluster_process *whole = train_cpu(
        run, "1", "1", "whole", WORDS("train_micro_batch_size_per_gpu=40"));
    struct cluster_process *four = train_cpu(run, "2", "4", "four", NULL);
    struct cluster_process *two =
        cluster_gpus_train(state, 2, 2, two_and_two, "two", NULL);
    cluster_fixture_expect_logged(two, "replicas: 4 (2 workers x 2 devices)");
    cluster_fixture_expect_logged(two,
                                  "gradients of 2 devices are summed in host "
                                  "memory; capstan-nccl.so: ");
    cluster_fixture_expect_logged(two, "device cuda 1 of 2: Fake GPU");
    expect_near(run, "whole", "four");
    expect_near(run, "four", "two");
    double loss = number_of(four, "train_loss");
    assert_true(fabs(number_of(two, "train_loss") - loss) <= tolerance);
    assert_true(fabs(number_of(whole, "train_loss") - loss) <= tolerance);
    assert_true(number_of(two, "test_accuracy") ==
                number_of(four, "test_accuracy"));
}

/* Each order of the devices' work. */
TEST(bits_do_not_depend_on_device_timing) {
    static const char *const gpus[][2] = {
        {"devices=3,order=1", "devices=3,order=0"},
        {"devices=3,order=2", "devices=3,order=3,seed=4"},
    };
    const char *const changes[] = {"gradient_accumulation_steps=2", NULL};
    cluster_run_job(run, cluster_gpus_job);
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++) {
        const char *dir = textf("order%zu", i);
        struct cluster_process *leader =
            cluster_gpus_train(state, 2, 2, gpus[i], dir, changes);
        cluster_fixture_expect_logged(leader, "(2 workers x 3 devices)");
        cluster_fixture_expect_same_checkpoints(run, "order0", dir);
    }
}

/* Four replicas here, two there: the mean is over six. */
TEST(workers_may_have_different_numbers_of_devices) {
    static const char *const gpus[] = {"devices=4,order=3", "devices=2"};
    cluster_run_job(run, cluster_gpus_job);
    train_cpu(run, "1", "6", "six", NULL);
    struct cluster_process *leader =
        cluster_gpus_train(state, 1, 2, gpus, "uneven", NULL);
    cluster_fixture_expect_logged(leader,
                                  "replicas: 6 (2 workers with 4 + 2 devices)");
    expect_near(run, "six", "uneven");
}

/* The rate is scaled by the replicas, the mean gradient clipped, the batch
 * solved for them. */
TEST(trainer_counts_count_replicas) {
    static const char *const changes[] = {
        "scale_lr=linear", "gradient_clipping=0.05", "train_batch_size=80",
        "train_micro_batch_size_per_gpu=10", NULL};
    cluster_run_job(run, "{" CLUSTER_GPUS_JOB
                         ", \"scheduler\": {\"type\": \"WarmupLR\","
                         " \"params\": {\"warmup_max_lr\": 0.02,"
                         " \"warmup_num_steps\": 5}}}");
    train_cpu(run, "2", "4", "four", changes);
    cluster_gpus_train(state, 2, 2, two_and_two, "two", changes);
    expect_near(run, "four", "two");
}

TEST(a_rank_in_all_reduce_may_have_several_replicas) {
    static const char *const gpus[] = {"devices=3", "devices=1"};
    static const char *const clipped[] = {"gradient_clipping=0.1", NULL};
    cluster_run_job(run, "{" CLUSTER_GPUS_JOB
                         ", \"strategy\": {\"type\": \"allreduce\"}}");
    for (int i = 0; i < 2; i++) {
        const char *const *changes = i ? clipped : NULL;
        const char *four = textf("four%d", i);
        const char *uneven = textf("uneven%d", i);
        train_cpu(run, "0", "4", four, changes);
        struct cluster_process *leader =
            cluster_gpus_train(state, 0, 2, gpus, uneven, changes);
        cluster_fixture_expect_logged(
            leader, "replicas: 4 (2 workers with 3 + 1 devices)");
        expect_near(run, four, uneven);
    }
}

/* The first steps overflow, and later ones now and then: one replica's do. */
TEST(an_overflow_of_one_replica_skips_the_round) {
    static const char *const strategies[] = {"ps", "allreduce"};
    for (int i = 0; i < 2; i++) {
        run = cluster_fixture_reset(state);
        cluster_run_job(
            run,
            textf("{" CLUSTER_GPUS_JOB
                  ", \"strategy\": {\"type\": \"%s\"}, \"fp16\":"
                  " {\"enabled\": true, \"hysteresis\": 1,"
                  " \"initial_scale_power\": 28, \"loss_scale_window\": 4}}",
                  strategies[i]));
        struct cluster_process *four =
            train_cpu(run, i ? "0" : "1", "4", "four", NULL);
        struct cluster_process *two =
            cluster_gpus_train(state, i ? 0 : 1, 2, two_and_two, "two", NULL);
        double skipped = number_of(four, "skipped_steps");
        assert_true(skipped >= 2);
        assert_true(number_of(two, "skipped_steps") == skipped);
        assert_true(number_of(two, "loss_scale") ==
                    number_of(four, "loss_scale"));
        expect_near(run, "four", "two");
    }
}

/* Each push is an update by the mean over its worker's replicas, and its batch
 * is theirs. One worker's pushes come one after the other. */
TEST(with_staleness_a_push_is_the_mean_of_its_replicas) {
    static const char *const gpus[] = {"devices=4,order=1"};
    static const char *const changes[] = {"strategy.staleness=inf",
                                          "gradient_clipping=0.05",
                                          "train_batch_size=40", NULL};
    static const char *const whole[] = {
        "strategy.staleness=inf", "gradient_clipping=0.05",
        "train_micro_batch_size_per_gpu=40", NULL};
    cluster_run_job(run, cluster_gpus_job);
    train_cpu(run, "2", "1", "whole", whole);
    struct cluster_process *leader =
        cluster_gpus_train(state, 2, 1, gpus, "four", changes);
    cluster_fixture_expect_logged(leader, "replicas: 4 (1 worker x 4 devices)");
    expect_near(run, "whole", "four");
}

TEST(with_staleness_all_trainers_need_equal_device_counts) {
    static const char *const changes[] = {"strategy.staleness=2", NULL};
    struct pair pair = start_pair(run, "devices=4", "devices=2", changes);
    cluster_run_expect(pair.leader, EXIT_CONFIG, CLUSTER_GPUS_DEADLINE);
    cluster_run_expect(pair.other, EXIT_CONFIG, CLUSTER_GPUS_DEADLINE);
    cluster_run_expect(pair.ps, EXIT_CONFIG, CLUSTER_GPUS_DEADLINE);
    cluster_fixture_expect_logged(pair.leader,
                                  "computes on 4 devices, worker 1 on host");
    cluster_fixture_expect_logged(pair.leader, "or set \"devices\": 2");
}

TEST(a_batch_that_does_not_fit_the_replicas_is_exit_2) {
    static const char *const changes[] = {
        "train_batch_size=20", "gradient_accumulation_steps=1", NULL};
    struct cluster_process *leader =
        cluster_gpus_run_single(run, "devices=4", changes, EXIT_CONFIG);
    cluster_fixture_expect_logged(leader,
                                  "x 4 replicas (1 trainer x 4 devices); give "
                                  "two of the three, or make them fit: "
                                  "train_batch_size 40 does, or "
                                  "\"devices\": 2 does");
    assert_false(cluster_fixture_has_logged(leader, "device cuda"));
}

/* It goes on at the sample where it stood: what four devices have begun two and
 * then three end, as if four had. */
TEST(another_number_of_devices_resumes_the_run) {
    static const char *const parts[][4] = {
        {"devices=4", "steps=10", "train_batch_size=40", NULL},
        {"devices=2", "steps=20", "train_batch_size=40", NULL},
        {"devices=1", "steps=30", "train_batch_size=40", NULL}};
    cluster_run_job(run, "{" CLUSTER_GPUS_JOB
                         ", \"train_micro_batch_size_per_gpu\": null}");
    train_cpu(run, "1", "1", "whole", WORDS("train_batch_size=40"));
    for (int i = 0; i < 3; i++)
        cluster_gpus_train(state, 1, 1, parts[i], "parts", parts[i] + 1);
    expect_near(run, "whole", "parts");
}

/* The round counts on two of it; the other goes on. */
TEST(a_trainer_that_rejoins_with_fewer_devices_is_refused) {
    static const char *const changes[] = {"steps=100000", "steps_per_print=100",
                                          NULL};
    struct pair pair = start_pair(run, "devices=2", "devices=2", changes);
    struct cluster_process *leader = pair.leader, *other = pair.other;
    cluster_run_await(leader, "step ", CLUSTER_GPUS_DEADLINE);
    cluster_run_signal(other, 15);
    cluster_run_expect(other, 143, CLUSTER_GPUS_DEADLINE);
    cluster_run_await(leader, "worker 1 said goodbye", CLUSTER_GPUS_DEADLINE);
    other = cluster_gpus_worker(run, 1, "devices=1", "pair", changes);
    cluster_run_expect(other, EXIT_CONFIG, CLUSTER_GPUS_DEADLINE);
    cluster_fixture_expect_logged(other,
                                  "has 1 device to compute on, and this run "
                                  "needs 2");
    cluster_run_await(leader, "worker 1 said goodbye", CLUSTER_GPUS_DEADLINE);
    other = cluster_gpus_worker(run, 1, "devices=3", "pair", changes);
    cluster_run_await(other, "device cuda 2 of 3", CLUSTER_GPUS_DEADLINE);
    cluster_run_await(leader, "step ", CLUSTER_GPUS_DEADLINE);
    cluster_run_signal(leader, 15);
    cluster_run_expect(leader, 143, CLUSTER_GPUS_DEADLINE);
    cluster_run_expect(other, EXIT_RETRY, CLUSTER_GPUS_DEADLINE);
    cluster_run_expect(pair.ps, EXIT_RETRY, CLUSTER_GPUS_DEADLINE);
}
