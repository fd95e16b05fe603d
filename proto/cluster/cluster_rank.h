/* SPDX-License-Identifier: Apache-2.0 */
/* The rank of this trainer as far as the description gives it, its rank on its
 * host, and the rank of its host. They choose a device and its memory. The
 * values come from any source, and from launchers' variables. */
#ifndef CAPSTAN_CLUSTER_RANK_H
#define CAPSTAN_CLUSTER_RANK_H

#include "proto/cluster/cluster.h"

/* Where a trainer stands among those on its host, before it is known whether
 * the chief trains. The chief and then the workers by index count, if CLUSTER
 * lists them on the same host; all is 0 for a process that is not a trainer or
 * not listed. */
struct cluster_local_peers {
    int64_t reported; /* LOCAL_RANK of the environment, else the rank from
                         CLUSTER's source or --local_rank, else
                         CLUSTER_UNKNOWN */
    uint32_t
        workers_before;    /* workers listed on this host before this trainer */
    uint32_t workers_here; /* workers on this host including this trainer; 0:
                              not known */
    bool chief; /* the chief is another process than this one, on this host */
};

/* STATUS_CONFIG, class bad_index, if LOCAL_RANK is not a whole number. */
enum status cluster_rank_local_peers(const struct cluster *cluster,
                                     cluster_getenv *lookup, void *context,
                                     struct cluster_local_peers *out,
                                     struct failure *why) MUST_CHECK;

/* This trainer's position among the trainers on its host; the count receives
 * their number, 0: not known. */
uint32_t cluster_rank_on_host(const struct cluster_local_peers *local_peers,
                              bool chief_trains, uint32_t *count);

/* *RANK is NODE_RANK, else GROUP_RANK, else OMPI_COMM_WORLD_RANK divided by
 * OMPI_COMM_WORLD_LOCAL_SIZE, else SLURM_NODEID; -1 if none is set. Errors as
 * above. */
enum status cluster_rank_node(cluster_getenv *lookup, void *context,
                              int64_t *rank, struct failure *why) MUST_CHECK;

/* Writes this trainer's rank and ", " if it is known before it joins: "rank 1,
 * "; "" where the job decides, and for a process that is not a trainer. */
void cluster_rank_text(const struct cluster *cluster, char *text, size_t size);

#endif
