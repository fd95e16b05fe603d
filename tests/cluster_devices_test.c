/* Which devices a worker takes: one of those that trainers of its host share,
 * all of those that are its own, and what becomes of it when one does not do.
 */
#include "tests/built.h"
#include "tests/cluster_gpus.h"
#include "tests/cluster_play.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_CONFIG = 2, EXIT_RETRY = 138 };

static void trainers_that_share_a_host_take_one_each(void **state) {
    struct cluster_run *run = *state;
    const char *const environment[] = {"CAPSTAN_FAKE_DEVICE=devices=4", NULL};
    const char *const arguments[] = {"local", "--workers", "2", "job.json",
                                     NULL};
    cluster_run_job(run, cluster_gpus_job);
    struct cluster_process *local =
        cluster_run_start(run, "local", arguments, environment);
    cluster_run_expect(local, 0, CLUSTER_GPUS_DEADLINE);
    cluster_play_expect_said(local, "replicas: 2 (2 workers x 1 device)");
    cluster_play_expect_said(local, "fewer trainers than devices here");
}

/* Two workers at ADDRESSES, who see GPUS, end well; the lines that EXPECTED
 * has for each are said. */
static void expect_shared(void **state, const char *const *addresses,
                          const char *const *gpus, const char *replicas,
                          const char *const *expected) {
    struct cluster_run *run = cluster_play_renew(state);
    struct cluster_process *workers[2];
    cluster_run_job(run, cluster_gpus_job);
    cluster_run_describe(run, 0, 1, 2);
    json_t *list = json_object_get(run->cluster, "worker");
    for (size_t i = 0; i < 2; i++) {
        const char *address = json_string_value(json_array_get(list, i));
        char named[64];
        snprintf(named, sizeof named, "%s%s", addresses[i],
                 strrchr(address, ':'));
        json_array_set_new(list, i, json_string(named));
    }
    struct cluster_process *ps = cluster_run_task(run, "ps", 0, NULL);
    for (unsigned i = 0; i < 2; i++)
        workers[i] = cluster_gpus_seeing(run, i, gpus[i], "shared", NULL);
    for (unsigned i = 0; i < 2; i++)
        cluster_run_expect(workers[i], 0, CLUSTER_GPUS_DEADLINE);
    cluster_run_expect(ps, 0, CLUSTER_GPUS_DEADLINE);
    cluster_play_expect_said(workers[0], replicas);
    for (unsigned i = 0; i < 2; i++)
        cluster_play_expect_said(workers[i], expected[i]);
}

static void one_host_by_two_names_is_one_host(void **state) {
    static const char *const gpus[] = {"devices=4", "devices=4"};
    static const char *const expected[] = {"device cuda 0 of 4",
                                           "device cuda 1 of 4"};
    static const char *const names[][2] = {{"localhost", "127.0.0.1"},
                                           {"127.0.0.2", "127.0.0.3"},
                                           {"127.0.0.1", "127.0.0.1"}};
    for (int i = 0; i < 3; i++)
        expect_shared(state, names[i], gpus,
                      "replicas: 2 (2 workers x 1 device)", expected);
}

static void one_name_of_two_machines_is_two_hosts(void **state) {
    static const char *const names[] = {"127.0.0.1", "127.0.0.1"};
    static const char *const gpus[] = {"devices=2,machine=1",
                                       "devices=2,machine=2"};
    static const char *const expected[] = {"device cuda 1 of 2",
                                           "device cuda 1 of 2"};
    expect_shared(state, names, gpus, "replicas: 4 (2 workers x 2 devices)",
                  expected);
}

static void who_is_shown_devices_of_its_own_takes_them_all(void **state) {
    static const char *const names[] = {"127.0.0.1", "127.0.0.1"};
    static const char *const gpus[] = {"devices=2,first=0",
                                       "devices=2,first=2"};
    static const char *const overlapping[] = {"devices=2,first=0",
                                              "devices=2,first=1"};
    static const char *const all[] = {"device cuda 1 of 2",
                                      "device cuda 1 of 2"};
    static const char *const one[] = {"device cuda 0 of 2",
                                      "device cuda 1 of 2"};
    expect_shared(state, names, gpus, "replicas: 4 (2 workers x 2 devices)",
                  all);
    expect_shared(state, names, overlapping,
                  "replicas: 2 (2 workers x 1 device)", one);
}

static void devices_without_ids_go_by_the_hosts_names(void **state) {
    static const char *const one[] = {"127.0.0.1", "127.0.0.1"};
    static const char *const two[] = {"127.0.0.2", "127.0.0.3"};
    static const char *const gpus[] = {"devices=2,nameless",
                                       "devices=2,nameless"};
    static const char *const each[] = {"device cuda 0 of 2",
                                       "device cuda 1 of 2"};
    expect_shared(state, one, gpus, "replicas: 2 (2 workers x 1 device)", each);
    expect_shared(state, two, gpus, "replicas: 4 (2 workers x 2 devices)",
                  (const char *const[]){each[1], each[1]});
}

/* Who was told its rank is one of several processes, one a device. */
static void a_local_rank_that_was_told_chooses(void **state) {
    static const char *const leads[] = {"--local_rank=3", "--set",
                                        "device=cuda", "job.json", NULL};
    static const char *const follows[] = {"--local_rank=2", NULL};
    struct cluster_run *run = *state;
    cluster_run_job(run, cluster_gpus_job);
    cluster_gpus_apart(run, 0, 2);
    setenv("CAPSTAN_FAKE_DEVICE", "devices=4", 1);
    struct cluster_process *leader = cluster_run_task(run, "worker", 0, leads);
    struct cluster_process *other = cluster_run_task(run, "worker", 1, follows);
    unsetenv("CAPSTAN_FAKE_DEVICE");
    cluster_run_expect(leader, 0, CLUSTER_GPUS_DEADLINE);
    cluster_run_expect(other, 0, CLUSTER_GPUS_DEADLINE);
    cluster_play_expect_said(leader, "replicas: 2 (2 workers x 1 device)");
    cluster_play_expect_said(leader, "device cuda 3 of 4");
    cluster_play_expect_said(other, "device cuda 2 of 4");
}

static void devices_of_the_job_is_the_most_that_are_taken(void **state) {
    static const char *const gpus[] = {"devices=4"};
    struct cluster_run *run = *state;
    cluster_run_job(run, cluster_gpus_job);
    struct cluster_process *leader = cluster_gpus_train(
        state, 1, 1, gpus, "three", (const char *[]){"devices=3", NULL});
    cluster_play_expect_said(leader, "replicas: 3 (1 worker x 3 devices)");
    assert_false(cluster_play_said(leader, "device cuda 3 of"));
}

static void a_device_that_is_lost_ends_the_run_by_its_name(void **state) {
    static const char *const gpus[] = {"devices=3,lose=900,loser=2",
                                       "devices=3,lose=900,loser=2,nccl"};
    static const char *const changes[] = {"steps=100000", NULL};
    for (int i = 0; i < 2; i++) {
        struct cluster_run *run = cluster_play_renew(state);
        struct cluster_process *leader =
            cluster_gpus_alone(run, gpus[i], changes, EXIT_RETRY);
        cluster_play_expect_said(leader, "device cuda 2 (Fake GPU) is lost");
    }
}

static void a_device_that_cannot_hold_the_model_is_exit_2(void **state) {
    struct cluster_process *leader = cluster_gpus_alone(
        *state, "devices=2,memory=1048576", NULL, EXIT_CONFIG);
    cluster_play_expect_said(leader, "where there is 1 MB (free on device "
                                     "cuda ");
}

#define TEST(f)                                                                \
    cmocka_unit_test_setup_teardown(f, cluster_run_setup, cluster_run_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(trainers_that_share_a_host_take_one_each),
        TEST(one_host_by_two_names_is_one_host),
        TEST(one_name_of_two_machines_is_two_hosts),
        TEST(who_is_shown_devices_of_its_own_takes_them_all),
        TEST(devices_without_ids_go_by_the_hosts_names),
        TEST(a_local_rank_that_was_told_chooses),
        TEST(devices_of_the_job_is_the_most_that_are_taken),
        TEST(a_device_that_is_lost_ends_the_run_by_its_name),
        TEST(a_device_that_cannot_hold_the_model_is_exit_2),
    };
    (void)built_take("fake");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
