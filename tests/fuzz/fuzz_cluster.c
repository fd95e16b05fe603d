/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/cluster/cluster.h"

#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

/* An environment and flags: a line each, "NAME=VALUE". */
struct lines {
    char *text;
    size_t size;
};

static const char *find(void *context, const char *name) {
    const struct lines *lines = context;
    size_t length = strlen(name);
    for (size_t at = 0; at < lines->size; at += strlen(lines->text + at) + 1)
        if (!strncmp(lines->text + at, name, length) &&
            lines->text[at + length] == '=')
            return lines->text + at + length + 1;
    return NULL;
}

static void check(const struct cluster *cluster) {
    for (unsigned role = 0; role < CLUSTER_ROLES; role++) {
        const struct cluster_job *job = &cluster->jobs[role];
        for (uint32_t i = 0; i < job->count; i++)
            fuzz_require(cluster_find(cluster, (enum cluster_role)role,
                                      job->tasks[i].index) == &job->tasks[i],
                         "each task of a cluster is found");
    }
    const struct cluster_task *own = cluster_own_task(cluster);
    fuzz_require(!own || own->index == cluster->index,
                 "a process's own task has its index");
    fuzz_require(cluster->local || *cluster->source,
                 "a cluster has been described somewhere");
}

/* What launchers set, and what a command line has in their place. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct lines lines = {fuzz_text(bytes, size), size};
    for (size_t i = 0; i < size; i++)
        if (lines.text[i] == '\n')
            lines.text[i] = 0;
    struct cluster_flags flags = {
        .job_name = find(&lines, "--job_name"),
        .task_index = find(&lines, "--task_index"),
        .ps_hosts = find(&lines, "--ps_hosts"),
        .worker_hosts = find(&lines, "--worker_hosts"),
        .chief_hosts = find(&lines, "--chief_hosts"),
        .num_ps = find(&lines, "--num-ps"),
        .local_rank = find(&lines, "--local_rank"),
        .join = find(&lines, "--join"),
    };
    struct cluster *cluster;
    struct cluster_source sources[CLUSTER_SOURCES_MAX];
    struct failure why;
    if (fuzz_is_read(cluster_resolve(&cluster, &flags, find, &lines, &why),
                     &why)) {
        check(cluster);
        cluster_free(&cluster);
    }
    uint32_t count = cluster_sources(sources, &flags, find, &lines);
    for (uint32_t i = 0; i < count; i++)
        fuzz_require(*sources[i].name, "each source has a name");
    free(lines.text);
    return 0;
}
