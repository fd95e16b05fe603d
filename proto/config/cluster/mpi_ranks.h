/* SPDX-License-Identifier: Apache-2.0 */
/* The variables of mpirun: Open MPI's OMPI_COMM_WORLD_*, and those of the
 * process managers below MPIs, PMI_* and PMIX_*. */
#ifndef CAPSTAN_MPI_RANKS_H
#define CAPSTAN_MPI_RANKS_H

#include "proto/config/cluster/cluster_input.h"

/* True with OMPI_COMM_WORLD_RANK or OMPI_COMM_WORLD_SIZE. */
bool mpi_ranks_set(const struct cluster_input *input);

/* Reads OMPI_COMM_WORLD_* into CLUSTER, which is empty. Errors: ranks.h. */
enum status mpi_ranks_read(struct cluster *cluster,
                           const struct cluster_input *input,
                           struct failure *why) MUST_CHECK;

/* True with PMI_RANK or PMIX_RANK. */
bool mpi_ranks_pmi_set(const struct cluster_input *input);

/* Reads PMI_RANK and PMI_SIZE, else PMIX_RANK and, as PMIx has no variable for
 * the size, PMI_SIZE or WORLD_SIZE, into CLUSTER, which is empty. */
enum status mpi_ranks_pmi_read(struct cluster *cluster,
                               const struct cluster_input *input,
                               struct failure *why) MUST_CHECK;

#endif
