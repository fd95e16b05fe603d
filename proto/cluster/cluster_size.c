/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/cluster/cluster_size.h"

#include <inttypes.h>
#include <stdio.h>

static int64_t count_listed(const struct cluster *cluster,
                            enum cluster_role role) {
    const struct cluster_job *job = &cluster->jobs[role];
    bool maybe_own = role == CLUSTER_PS && cluster->role == role &&
                     job->count == 1 && !cluster->jobs[CLUSTER_WORKER].count;
    return job->count && !job->sparse && !maybe_own ? (int64_t)job->count
                                                    : CLUSTER_UNKNOWN;
}

struct cluster_size cluster_size_known(const struct cluster *cluster) {
    struct cluster_size known = {
        .source = cluster->source,
        .workers = count_listed(cluster, CLUSTER_WORKER),
        .ps = count_listed(cluster, CLUSTER_PS),
    };
    if (cluster->from_ranks && !cluster->local) {
        known.workers = cluster->jobs[CLUSTER_WORKER].count;
        known.ps = cluster->jobs[CLUSTER_PS].count;
    }
    return known;
}

static bool differ(int64_t a, int64_t b) {
    return a != CLUSTER_UNKNOWN && b != CLUSTER_UNKNOWN && a != b;
}

bool cluster_size_differs(const struct cluster_size *a,
                          const struct cluster_size *b) {
    return a->source && b->source &&
           (differ(a->workers, b->workers) || differ(a->ps, b->ps));
}

void cluster_size_text(const struct cluster_size *known, char *text,
                       size_t size) {
    char workers[48] = "", ps[48] = "";
    bool both = known->workers >= 0 && known->ps >= 0;
    if (known->workers >= 0)
        snprintf(workers, sizeof workers, "%" PRId64 " worker%s",
                 known->workers, known->workers == 1 ? "" : "s");
    if (known->ps >= 0)
        snprintf(ps, sizeof ps, "%" PRId64 " ps", known->ps);
    snprintf(text, size, "%s%s%s by %s", workers, both ? " and " : "", ps,
             known->source);
}
