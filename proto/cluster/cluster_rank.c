/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/cluster/cluster_rank.h"

#include "core/base/decimal.h"
#include "core/base/diagnostics.h"
#include "proto/cluster/cluster_input.h"

#include <stdio.h>
#include <strings.h>

/* *VALUE of variable NAME, or -1 if it is not set. */
static enum status cluster_rank_read_number(cluster_getenv *lookup,
                                            void *context, const char *name,
                                            int64_t *value,
                                            struct failure *why) {
    const char *text = cluster_input_text(lookup(context, name));
    uint64_t number;
    *value = -1;
    if (!text)
        return STATUS_OK;
    if (!decimal_parse(text, &number) || number > UINT32_MAX)
        return status_fail(why, FAILURE_CLUSTER_INVALID,
                           "bad_index: %s is %s; it is a whole number from 0. "
                           "Correct it, or unset it.",
                           name, diagnostics_quote_text(text).text);
    *value = (int64_t)number;
    return STATUS_OK;
}

/* Workers among the first COUNT on HOST. */
static uint32_t count_workers_on(const struct cluster *cluster,
                                 const char *host, uint32_t count) {
    const struct cluster_task *workers = cluster->jobs[CLUSTER_WORKER].tasks;
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++)
        found += strcasecmp(workers[i].host, host) == 0;
    return found;
}

/* Ranks give the number of processes on a host, but not which of them are
 * ps. */
static uint32_t local_trainers(const struct cluster *cluster) {
    bool train = !cluster->jobs[CLUSTER_PS].count || cluster->local_size == 1;
    return cluster->local_size > 0 && train ? (uint32_t)cluster->local_size : 0;
}

/* For a trainer that is listed. A list by index may be incomplete. */
static void count_local_peers(const struct cluster *cluster,
                              struct cluster_local_peers *out) {
    const struct cluster_task *self = cluster_own_task(cluster);
    const struct cluster_task *chief = cluster_find(cluster, CLUSTER_CHIEF, 0);
    const struct cluster_job *workers = &cluster->jobs[CLUSTER_WORKER];
    bool leads = cluster->role == CLUSTER_CHIEF;
    if (!leads && cluster->role != CLUSTER_WORKER)
        return;
    if (cluster->local)
        out->workers_here = 1;
    else if (cluster->from_ranks)
        out->workers_here = local_trainers(cluster);
    if (cluster->local || !self || !self->host[0])
        return;
    uint32_t workers_before = leads ? 0 : (uint32_t)(self - workers->tasks);
    out->workers_before = count_workers_on(cluster, self->host, workers_before);
    if (!cluster->from_ranks && !workers->sparse)
        out->workers_here =
            count_workers_on(cluster, self->host, workers->count) + leads;
    out->chief = !leads && chief && strcasecmp(chief->host, self->host) == 0;
}

enum status cluster_rank_local_peers(const struct cluster *cluster,
                                     cluster_getenv *lookup, void *context,
                                     struct cluster_local_peers *out,
                                     struct failure *why) {
    *out = (struct cluster_local_peers){0};
    enum status status = cluster_rank_read_number(lookup, context, "LOCAL_RANK",
                                                  &out->reported, why);
    if (out->reported < 0)
        out->reported = cluster->local_rank;
    count_local_peers(cluster, out);
    return status;
}

uint32_t cluster_rank_on_host(const struct cluster_local_peers *local_peers,
                              bool chief_trains, uint32_t *count) {
    bool one_more = local_peers->chief && chief_trains;
    *count =
        local_peers->workers_here ? local_peers->workers_here + one_more : 0;
    return local_peers->reported >= 0 ? (uint32_t)local_peers->reported
                                      : local_peers->workers_before + one_more;
}

/* Computed from the RANK among all and the SIZE of a node, because Open MPI's
 * own node rank counts within a node. */
static enum status read_mpi(cluster_getenv *lookup, void *context,
                            const char *rank_name, const char *size_name,
                            int64_t *rank, struct failure *why) {
    int64_t size;
    enum status status =
        cluster_rank_read_number(lookup, context, rank_name, rank, why);
    if (status != STATUS_OK || *rank < 0)
        return status;
    status = cluster_rank_read_number(lookup, context, size_name, &size, why);
    *rank = size > 0 ? *rank / size : -1;
    return status;
}

enum status cluster_rank_node(cluster_getenv *lookup, void *context,
                              int64_t *rank, struct failure *why) {
    enum status status =
        cluster_rank_read_number(lookup, context, "NODE_RANK", rank, why);
    if (status == STATUS_OK && *rank < 0)
        status =
            cluster_rank_read_number(lookup, context, "GROUP_RANK", rank, why);
    if (status == STATUS_OK && *rank < 0)
        status = read_mpi(lookup, context, "OMPI_COMM_WORLD_RANK",
                          "OMPI_COMM_WORLD_LOCAL_SIZE", rank, why);
    if (status == STATUS_OK && *rank < 0)
        status = cluster_rank_read_number(lookup, context, "SLURM_NODEID", rank,
                                          why);
    if (status == STATUS_OK && *rank < 0)
        status =
            read_mpi(lookup, context, "PMI_RANK", "MPI_LOCALNRANKS", rank, why);
    return status;
}

/* Only the chief reads the job, which says whether the chief trains; until then
 * no rank beside a chief is known. Workers given by index may have a chief that
 * is not listed. */
void cluster_rank_text(const struct cluster *cluster, char *text, size_t size) {
    bool chief = cluster->jobs[CLUSTER_CHIEF].count ||
                 cluster->jobs[CLUSTER_WORKER].sparse;
    text[0] = 0;
    if (cluster->role == CLUSTER_WORKER && !chief)
        snprintf(text, size, "rank %u, ", cluster->index);
}
