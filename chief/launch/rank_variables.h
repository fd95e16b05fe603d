/* SPDX-License-Identifier: Apache-2.0 */
/* The variables by which launchers tell a process its rank, as this process's
 * own environment: for a child before it becomes another program. */
#ifndef CAPSTAN_RANK_VARIABLES_H
#define CAPSTAN_RANK_VARIABLES_H

#include "proto/config/cluster/azureml.h"

#include <stdint.h>

enum {
    RANK_VARIABLES_PORT = 6105,      /* Azure ML's for pytorch */
    RANK_VARIABLES_BATCH_PORT = 6000 /* of its batch system's master node */
};

/* Unsets every variable whose name begins with START. */
void rank_variables_unset(const char *start);

/* Sets what process RANK of DISTRIBUTION (pytorch or mpi) has in an Azure ML
 * job whose instances are all this machine. pytorch: MASTER_ADDR, MASTER_PORT,
 * WORLD_SIZE, RANK, LOCAL_RANK, NODE_RANK. mpi: OMPI_COMM_WORLD_RANK, SIZE,
 * LOCAL_RANK, LOCAL_SIZE, and AZ_BATCH_MASTER_NODE, on one instance
 * AZ_BATCHAI_MPI_MASTER_NODE, which is localhost there. */
void rank_variables_set(const struct azureml_distribution *azureml_distribution,
                        uint32_t rank);

#endif
