/* SPDX-License-Identifier: Apache-2.0 */
/* Sets the environment variables by which launchers give a process its rank.
 * Call it in a child before exec. */
#ifndef CAPSTAN_RANK_VARIABLES_H
#define CAPSTAN_RANK_VARIABLES_H

#include "proto/cluster/azureml.h"

#include <stdint.h>

enum {
    RANK_VARIABLES_PORT = 6105, /* Azure ML's port for pytorch */
    RANK_VARIABLES_BATCH_PORT =
        6000 /* the port of the master node of Azure Batch */
};

/* Unsets every variable whose name starts with START. */
void rank_variables_unset(const char *start);

/* Sets the variables of process RANK of DISTRIBUTION (pytorch or mpi)
 * in an Azure ML job whose instances are all on this machine, at HOST, a
 * numeric address. pytorch:
 * MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK, LOCAL_RANK, NODE_RANK. mpi:
 * OMPI_COMM_WORLD_RANK, SIZE, LOCAL_RANK, LOCAL_SIZE, and AZ_BATCH_MASTER_NODE,
 * or with one instance AZ_BATCHAI_MPI_MASTER_NODE, which is localhost there if
 * HOST is 127.0.0.1. */
void rank_variables_set(const struct azureml_distribution *distribution,
                        const char *host, uint32_t rank);

#endif
