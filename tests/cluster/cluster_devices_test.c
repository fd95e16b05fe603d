/* SPDX-License-Identifier: Apache-2.0 */
/* How many devices a worker takes that has several, and what becomes of it when
 * one of them does not do. */
#include "tests/cluster/cluster_gpus.h"
#include "tests/cluster/cluster_play.h"
#include "tests/lib/built.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { EXIT_CONFIG = 2, EXIT_RETRY = 138 };

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
        TEST(devices_of_the_job_is_the_most_that_are_taken),
        TEST(a_device_that_is_lost_ends_the_run_by_its_name),
        TEST(a_device_that_cannot_hold_the_model_is_exit_2),
    };
    (void)built_take("fake");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
