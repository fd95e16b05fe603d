/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/cluster_gpus.h"
#include "tests/lib/test.h"

const char cluster_gpus_job[] = "{" CLUSTER_GPUS_JOB "}";

void cluster_gpus_describe_hosts(struct cluster_run *run, unsigned num_ps,
                                 unsigned num_workers) {
    cluster_run_describe(run, 0, num_ps, num_workers);
    json_t *workers = json_object_get(run->cluster, "worker");
    for (size_t i = 0; i < num_workers; i++) {
        const char *address = json_string_value(json_array_get(workers, i));
        json_array_set_new(
            workers, i,
            json_string(textf("127.0.0.%zu%s", i + 2, strrchr(address, ':'))));
    }
}

size_t cluster_gpus_add_changes(const char **arguments, size_t count,
                                const char *const *changes) {
    for (; changes && *changes; changes++) {
        arguments[count++] = "--set";
        arguments[count++] = *changes;
    }
    return count;
}

struct cluster_process *cluster_gpus_worker(struct cluster_run *run,
                                            unsigned index, const char *gpus,
                                            const char *dir,
                                            const char *const *changes) {
    char folder[128];
    const char *arguments[24] = {"--set", folder, "--set", "device=cuda"};
    snprintf(folder, sizeof folder, "checkpoint.dir=%s", dir);
    const char *apart = textf("%s,machine=%u", gpus, index);
    size_t count = cluster_gpus_add_changes(arguments, 4, changes);
    arguments[count++] = "--json";
    arguments[count] = "job.json";
    setenv("CAPSTAN_FAKE_DEVICE", apart, 1);
    struct cluster_process *process =
        cluster_run_task(run, "worker", index, index ? NULL : arguments);
    unsetenv("CAPSTAN_FAKE_DEVICE");
    return process;
}

struct cluster_process *cluster_gpus_train(void **state, unsigned num_ps,
                                           unsigned num_workers,
                                           const char *const *gpus,
                                           const char *dir,
                                           const char *const *changes) {
    struct cluster_run *run = *state;
    struct cluster_process *workers[4], *ps[4];
    if (!run->cluster)
        cluster_gpus_describe_hosts(run, num_ps, num_workers);
    for (unsigned i = 0; i < num_ps; i++)
        ps[i] = cluster_run_task(run, "ps", i, NULL);
    for (unsigned i = 0; i < num_workers; i++)
        workers[i] = cluster_gpus_worker(run, i, gpus[i], dir, changes);
    for (unsigned i = 0; i < num_workers; i++)
        cluster_run_expect(workers[i], 0, CLUSTER_GPUS_DEADLINE);
    for (unsigned i = 0; i < num_ps; i++)
        cluster_run_expect(ps[i], 0, CLUSTER_GPUS_DEADLINE);
    return workers[0];
}

struct cluster_process *cluster_gpus_run_single(struct cluster_run *run,
                                                const char *gpus,
                                                const char *const *changes,
                                                int code) {
    cluster_run_job(run, cluster_gpus_job);
    cluster_gpus_describe_hosts(run, 0, 1);
    struct cluster_process *leader =
        cluster_gpus_worker(run, 0, gpus, "alone", changes);
    cluster_run_expect(leader, code, CLUSTER_GPUS_DEADLINE);
    return leader;
}
