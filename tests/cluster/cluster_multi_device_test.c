/* SPDX-License-Identifier: Apache-2.0 */
/* How many devices a worker takes that has several, and what becomes of it when
 * one of them does not do. */
#include "tests/cluster/cluster_fixture.h"
#include "tests/cluster/cluster_gpus.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/test.h"

enum { EXIT_CONFIG = 2, EXIT_RETRY = 138 };

GROUP(build_folder_use_fake, NULL);

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(the_jobs_device_count_is_the_maximum) {
    static const char *const gpus[] = {"devices=4"};
    struct cluster_run *run = *state;
    cluster_run_job(run, cluster_gpus_job);
    struct cluster_process *leader =
        cluster_gpus_train(state, 1, 1, gpus, "three", WORDS("devices=3"));
    cluster_fixture_expect_logged(leader, "replicas: 3 (1 worker x 3 devices)");
    assert_false(cluster_fixture_has_logged(leader, "device cuda 3 of"));
}

TEST(a_lost_device_ends_the_run_and_is_named) {
    static const char *const changes[] = {"steps=100000", NULL};
    struct cluster_process *leader = cluster_gpus_run_single(
        *state, "devices=3,lose=900,loser=2", changes, EXIT_RETRY);
    cluster_fixture_expect_logged(leader, "device cuda 2 (Fake GPU) is lost");
}

TEST(a_device_that_cannot_hold_the_model_is_exit_2) {
    struct cluster_process *leader = cluster_gpus_run_single(
        *state, "devices=2,memory=1048576", NULL, EXIT_CONFIG);
    cluster_fixture_expect_logged(leader, "where there is 1 MB (free on device "
                                          "cuda ");
}
