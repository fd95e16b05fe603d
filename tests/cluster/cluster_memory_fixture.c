/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/cluster_memory_fixture.h"
#include "tests/lib/test.h"

enum { TIMEOUT = 600 /* seconds, for gigabytes */ };

static FILE *open_of(const struct cluster_process *process, const char *name) {
    FILE *file =
        fopen(textf("/proc/%d/%s", cluster_run_pid(process), name), "r");
    assert_non_null(file);
    return file;
}

/* All at once: one by one mappings would be counted twice that are divided
 * meanwhile, as those of a fake device's memory are at each of its calls. */
static unsigned long anonymous_kib(const struct cluster_process *process) {
    FILE *file = open_of(process, "smaps_rollup");
    char line[512];
    unsigned long kib = 0;
    while (fgets(line, sizeof line, file))
        sscanf(line, "Anonymous: %lu kB", &kib);
    fclose(file);
    return kib;
}

static unsigned long own_shared_kib(const struct cluster_process *process) {
    FILE *file = open_of(process, "smaps");
    char line[512], pen[8] = "";
    unsigned long kib = 0, here;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%*[0-9a-f]-%*[0-9a-f] %7s", pen) == 1)
            continue;
        if (pen[1] == 'w' && pen[3] == 's' &&
            sscanf(line, "Rss: %lu kB", &here) == 1)
            kib += here;
    }
    fclose(file);
    return kib;
}

double cluster_memory_fixture_resident_bytes(
    const struct cluster_process *process) {
    unsigned long kib = anonymous_kib(process);
    assert_true(kib > 0);
    return 1024.0 * (double)(kib + own_shared_kib(process));
}

struct cluster_process *cluster_memory_fixture_start_ps(
    struct cluster_run *run) {
    cluster_run_describe(run, 1, 1, CLUSTER_MEMORY_FIXTURE_WORKERS);
    struct cluster_process *ps = cluster_run_task(run, "ps", 0, NULL);
    cluster_run_await_soon(ps, "listening on port");
    return ps;
}

struct cluster_memory_fixture cluster_memory_fixture_start(
    struct cluster_run *run, struct cluster_process *ps) {
    struct cluster_memory_fixture cluster = {.ps = ps};
    cluster.chief = cluster_run_task(run, "chief", 0, WORDS("job.json"));
    for (unsigned i = 0; i < CLUSTER_MEMORY_FIXTURE_WORKERS; i++)
        cluster.workers[i] = cluster_run_task(run, "worker", i, NULL);
    return cluster;
}

unsigned cluster_memory_fixture_next_round(
    const struct cluster_memory_fixture *cluster) {
    const char *line =
        cluster_run_await(cluster->chief, "chief: step ", TIMEOUT);
    unsigned round = 0;
    sscanf(strstr(line, "step "), "step %u/", &round);
    return round;
}
