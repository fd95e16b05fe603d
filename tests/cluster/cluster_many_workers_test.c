/* SPDX-License-Identifier: Apache-2.0 */
/* Many processes, and processes that come again and again: each gets in. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/test.h"

#include <signal.h>

enum { PS = 2, WORKERS = 128, TASKS = 1 + PS + WORKERS };
enum { RESTARTS = 200, KILLED_EVERY = 25 };

/* A place in the order of starting: the chief, then ps, then workers. */
static struct cluster_process *start(struct cluster_run *run, unsigned place) {
    static const char *const job[] = {"job.json", NULL};
    if (place == 0)
        return cluster_run_task(run, "chief", 0, job);
    return place <= PS ? cluster_run_task(run, "ps", place - 1, NULL)
                       : cluster_run_task(run, "worker", place - 1 - PS, NULL);
}

FIXTURE(cluster_run_setup_in_memory, cluster_run_teardown);

TEST(many_workers_start_in_any_order_and_all_train) {
    struct cluster_process *processes[TASKS];
    unsigned order[TASKS];
    uint64_t seed = cluster_fixture_seed();
    cluster_run_job(run, "{\"chief\": \"coordinate\", \"steps\": 4,"
                         " \"train_micro_batch_size_per_gpu\": 2,"
                         " \"checkpoint\": {\"dir\": null}}");
    cluster_run_describe(run, 1, PS, WORKERS);
    for (unsigned i = 0; i < TASKS; i++) {
        unsigned j = (unsigned)cluster_fixture_random(&seed, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (unsigned i = 0; i < TASKS; i++)
        processes[order[i]] = start(run, order[i]);
    for (unsigned i = 0; i < TASKS; i++)
        cluster_run_expect(processes[i], 0, 4 * CLUSTER_RUN_DEADLINE);
    cluster_fixture_expect_logged(processes[0], "128 trainers, 2 ps");
}

/* By SIGTERM, which is a goodbye, and now and then by SIGKILL, which is found
 * out. */
TEST(a_worker_rejoins_after_any_number_of_restarts) {
    cluster_run_job(run, "{\"chief\": \"coordinate\", \"steps\": 100000000,"
                         " \"steps_per_epoch\": 100000, \"strategy\":"
                         " {\"type\": \"ps\", \"staleness\": \"inf\"},"
                         " \"checkpoint\": {\"dir\": null}}");
    cluster_run_describe(run, 1, 1, 2);
    struct cluster_process *chief = start(run, 0);
    struct cluster_process *ps = cluster_run_task(run, "ps", 0, NULL);
    struct cluster_process *stays = cluster_run_task(run, "worker", 0, NULL);
    struct cluster_process *worker = cluster_run_task(run, "worker", 1, NULL);
    cluster_run_await_soon(chief, "examples/s");
    for (int i = 0; i < RESTARTS; i++) {
        if (i)
            worker = cluster_run_task(run, "worker", 1, NULL);
        cluster_run_await_soon(worker, "joined");
        int number = i % KILLED_EVERY ? SIGTERM : SIGKILL;
        cluster_run_signal(worker, number);
        cluster_run_expect_soon(worker, 128 + number);
    }
    cluster_run_signal(chief, SIGTERM);
    cluster_run_expect_soon(chief, 128 + SIGTERM);
    cluster_run_expect_soon(ps, 138);
    cluster_run_expect_soon(stays, 138);
}
