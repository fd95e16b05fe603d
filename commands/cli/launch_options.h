/* SPDX-License-Identifier: Apache-2.0 */
/* The values of the flags of `capstan launch`, those of
 * torch.distributed.launch, and the defaults for flags that are not given. */
#ifndef CAPSTAN_LAUNCH_OPTIONS_H
#define CAPSTAN_LAUNCH_OPTIONS_H

#include "commands/cli/options.h"
#include "core/base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { LAUNCH_OPTIONS_PORT = 29500, LAUNCH_OPTIONS_MAX_PROCESSES = 1024 };

/* Number of processes by this machine's devices, in torchrun's words. */
enum launch_nproc {
    LAUNCH_NPROC_NUMBER, /* the given number */
    LAUNCH_NPROC_AUTO,   /* gpu if there are GPUs, else cpu */
    LAUNCH_NPROC_GPU,
    LAUNCH_NPROC_CPU
};

struct launch_world {
    enum launch_nproc nproc_kind;
    uint32_t nproc_per_node; /* 0: not counted yet (launch.h) */
    uint32_t nnodes, node_rank;
    char master_addr[256];
    uint16_t master_port;
    double grace; /* seconds between SIGTERM and SIGKILL */
};

/* Resolves each value from, in order: the flag; torchrun's and Kubeflow's
 * variable PET_*; the host and the node rank as in cluster_rank.h, the number
 * of nodes from Open MPI, Slurm or PMI; the default: 1 process on 1 node, node
 * 0, 127.0.0.1, 29500, 40 seconds. If srun has started several nodes, the
 * address is that of the first; under MPI it must be given. Errors are
 * STATUS_CONFIG. */
enum status launch_options_resolve(struct launch_world *world,
                                   const struct options *flags,
                                   cluster_getenv *lookup, void *context,
                                   struct failure *why) MUST_CHECK;

#endif
