/* SPDX-License-Identifier: Apache-2.0 */
/* Variables of mpirun: Open MPI's OMPI_COMM_WORLD_*, and PMI_* and PMIX_* of
 * other MPIs' process managers. */
#ifndef CAPSTAN_MPI_RANKS_H
#define CAPSTAN_MPI_RANKS_H

#include "proto/config/cluster/cluster_input.h"

/* True if OMPI_COMM_WORLD_RANK or OMPI_COMM_WORLD_SIZE is set. */
bool mpi_ranks_set(const struct cluster_input *input);

/* Reads OMPI_COMM_WORLD_* into CLUSTER, which is empty. Errors: ranks.h. */
enum status mpi_ranks_read(struct cluster *cluster,
                           const struct cluster_input *input,
                           struct failure *why) MUST_CHECK;

/* True if PMI_RANK or PMIX_RANK is set. */
bool mpi_ranks_pmi_set(const struct cluster_input *input);

/* Reads PMI_RANK and PMI_SIZE, else PMIX_RANK with PMI_SIZE or WORLD_SIZE (PMIx
 * has no variable for the size), into CLUSTER, which is empty. */
enum status mpi_ranks_pmi_read(struct cluster *cluster,
                               const struct cluster_input *input,
                               struct failure *why) MUST_CHECK;

#endif
