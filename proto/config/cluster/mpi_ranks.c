/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cluster/mpi_ranks.h"

#include "proto/config/cluster/ranks.h"

#include <stdio.h>

bool mpi_ranks_set(const struct cluster_input *input) {
    return cluster_input_variable(input, "OMPI_COMM_WORLD_RANK") ||
           cluster_input_variable(input, "OMPI_COMM_WORLD_SIZE");
}

/* Common to all processes of one mpirun. */
static void mpi_ranks_set_job_key(struct cluster *cluster,
                                  const struct cluster_input *input) {
    const char *name = cluster_input_variable(input, "PMIX_NAMESPACE");
    if (!name)
        name = cluster_input_variable(input, "PMI_JOBID");
    if (name)
        snprintf(cluster->key, sizeof cluster->key, "mpi %s", name);
}

static enum status resolve(struct ranks *ranks, struct cluster *cluster,
                           const struct cluster_input *input,
                           struct failure *why) {
    ranks->rank = cluster_input_variable(input, ranks->rank_name);
    ranks->size = cluster_input_variable(input, ranks->size_name);
    mpi_ranks_set_job_key(cluster, input);
    return ranks_resolve(ranks, cluster, input, why);
}

enum status mpi_ranks_read(struct cluster *cluster,
                           const struct cluster_input *input,
                           struct failure *why) {
    struct ranks ranks = {
        .rank_name = "OMPI_COMM_WORLD_RANK",
        .size_name = "OMPI_COMM_WORLD_SIZE",
        .local_rank_name = "OMPI_COMM_WORLD_LOCAL_RANK",
        .local_size_name = "OMPI_COMM_WORLD_LOCAL_SIZE",
    };
    return resolve(&ranks, cluster, input, why);
}

bool mpi_ranks_pmi_set(const struct cluster_input *input) {
    return cluster_input_variable(input, "PMI_RANK") ||
           cluster_input_variable(input, "PMIX_RANK");
}

enum status mpi_ranks_pmi_read(struct cluster *cluster,
                               const struct cluster_input *input,
                               struct failure *why) {
    bool pmi = cluster_input_variable(input, "PMI_RANK");
    bool size = pmi || cluster_input_variable(input, "PMI_SIZE");
    struct ranks ranks = {
        .rank_name = pmi ? "PMI_RANK" : "PMIX_RANK",
        .size_name = size ? "PMI_SIZE" : "WORLD_SIZE",
        .local_rank_name = "MPI_LOCALRANKID",
        .local_size_name = "MPI_LOCALNRANKS",
    };
    return resolve(&ranks, cluster, input, why);
}
