/* SPDX-License-Identifier: Apache-2.0 */
/* The address of the leading rank from the environment: MASTER_ADDR and
 * MASTER_PORT, the variables of Azure's batch systems, or those of Flux, LSF
 * and SageMaker. */
#ifndef CAPSTAN_CHIEF_ADDRESS_H
#define CAPSTAN_CHIEF_ADDRESS_H

#include "proto/cluster/cluster_input.h"

enum {
    CHIEF_ADDRESS_PORT = 6105,
    CHIEF_ADDRESS_PORT_ONE_NODE = 54965,
    CHIEF_ADDRESS_PORTS =
        16 /* number of ports to try above one that torchrun holds */
};

/* Facts from the launcher besides the address. */
struct chief_location {
    bool one_node;          /* all processes are on one host */
    const char *first_host; /* of rank 0, or NULL */
};

/* Reads the host and port of TASK.
 *
 * Host: MASTER_ADDR, else that of AZ_BATCH_MASTER_NODE, else
 * AZ_BATCHAI_MPI_MASTER_NODE (not if it is this host's own name and there may
 * be other hosts), else that of rank 0, on one node 127.0.0.1; else 127.0.0.1
 * if FLUX_JOB_NNODES is 1, or under jsrun the first compute host in
 * LSB_MCPU_HOSTS or LSB_HOSTS, or the first in SM_HOSTS. Port: MASTER_PORT,
 * else that of AZ_BATCH_MASTER_NODE, else 6105, on one node 54965.
 * If torchrun's agent holds MASTER_PORT, *PORTS ports above it are tried; else
 * *PORTS is 0.
 *
 * Errors: master_addr_missing, bad_host, bad_port. */
enum status chief_address_read(struct cluster_task *task, uint16_t *ports,
                               const struct chief_location *location,
                               const struct cluster_input *input,
                               struct failure *why) MUST_CHECK;

/* Does chief_address_read find a host? */
bool chief_address_is_known(const struct chief_location *location,
                            const struct cluster_input *input);

/* Reads HOST without a port, IPv6 with or without brackets, found at LOCATION;
 * PORT_NAME is the variable for the port. Errors: bad_host. */
enum status chief_address_read_host(struct cluster_task *task, const char *host,
                                    const char *location, const char *port_name,
                                    struct failure *why) MUST_CHECK;

/* Is HOST reached only from itself (localhost, 127.0.0.1, ::1)? */
bool chief_address_is_loopback(const char *host);

#endif
