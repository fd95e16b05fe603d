/* SPDX-License-Identifier: Apache-2.0 */
/* Where the rank that leads listens, as launchers tell it in the environment:
 * MASTER_ADDR and MASTER_PORT, and what Azure's batch systems set instead. */
#ifndef CAPSTAN_CHIEF_ADDRESS_H
#define CAPSTAN_CHIEF_ADDRESS_H

#include "proto/config/cluster/cluster_input.h"

enum {
    CHIEF_ADDRESS_PORT = 6105,
    CHIEF_ADDRESS_PORT_ONE_NODE = 54965,
    CHIEF_ADDRESS_PORTS = 16 /* above a port that torchrun holds itself */
};

/* What the launcher tells beside the address. */
struct chief_location {
    bool one_node;          /* all are known to be on one host */
    const char *first_host; /* of rank 0, or NULL */
};

/* Fills host and port of TASK.
 *
 * Host: MASTER_ADDR, else that of AZ_BATCH_MASTER_NODE, else
 * AZ_BATCHAI_MPI_MASTER_NODE (not when it is this host's own name for itself
 * and there may be more), else that of rank 0, on one node 127.0.0.1. Port:
 * MASTER_PORT, else that of AZ_BATCH_MASTER_NODE, else 6105, on one node 54965.
 * Where torchrun's agent holds MASTER_PORT, *PORTS are to be tried from the one
 * above it on; else *PORTS is 0.
 *
 * Errors: master_addr_missing, bad_host, bad_port. */
enum status chief_address_read(struct cluster_task *task, uint16_t *ports,
                               const struct chief_location *location,
                               const struct cluster_input *input,
                               struct failure *why) MUST_CHECK;

#endif
