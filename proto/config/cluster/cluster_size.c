/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cluster/cluster_size.h"

#include <inttypes.h>
#include <stdio.h>

static int64_t told_by_list(const struct cluster *cluster,
                            enum cluster_role role) {
    const struct cluster_job *job = &cluster->jobs[role];
    bool maybe_own = role == CLUSTER_PS && cluster->role == role &&
                     job->count == 1 && !cluster->jobs[CLUSTER_WORKER].count;
    return job->count && !job->sparse && !maybe_own ? (int64_t)job->count
                                                    : CLUSTER_NOT_TOLD;
}

struct cluster_size cluster_size_told(const struct cluster *cluster) {
    struct cluster_size told = {
        .source = cluster->source,
        .workers = told_by_list(cluster, CLUSTER_WORKER),
        .ps = told_by_list(cluster, CLUSTER_PS),
    };
    if (cluster->by_ranks && !cluster->local) {
        told.workers = cluster->jobs[CLUSTER_WORKER].count;
        told.ps = cluster->jobs[CLUSTER_PS].count;
    }
    return told;
}

static bool differ(int64_t a, int64_t b) {
    return a != CLUSTER_NOT_TOLD && b != CLUSTER_NOT_TOLD && a != b;
}

bool cluster_size_differs(const struct cluster_size *a,
                          const struct cluster_size *b) {
    return a->source && b->source &&
           (differ(a->workers, b->workers) || differ(a->ps, b->ps));
}

void cluster_size_text(const struct cluster_size *told, char *text,
                       size_t size) {
    char workers[48] = "", ps[48] = "";
    bool both = told->workers >= 0 && told->ps >= 0;
    if (told->workers >= 0)
        snprintf(workers, sizeof workers, "%" PRId64 " worker%s", told->workers,
                 told->workers == 1 ? "" : "s");
    if (told->ps >= 0)
        snprintf(ps, sizeof ps, "%" PRId64 " ps", told->ps);
    snprintf(text, size, "%s%s%s by %s", workers, both ? " and " : "", ps,
             told->source);
}
