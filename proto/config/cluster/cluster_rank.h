/* SPDX-License-Identifier: Apache-2.0 */
/* Which trainer this is, as far as the description tells; and where this
 * process stands among those on its host, and its host among the
 * hosts: to choose a device and its memory. Any source; launchers tell it in
 * the environment. */
#ifndef CAPSTAN_CLUSTER_RANK_H
#define CAPSTAN_CLUSTER_RANK_H

#include "proto/config/cluster/cluster.h"

/* *RANK is LOCAL_RANK of the environment, else what CLUSTER's source or
 * --local_rank told, else this trainer's place (chief,
 * then workers by index) among those CLUSTER lists on the same host, the chief
 * counted whether it trains or not; 0 for who is no trainer, or not listed.
 * STATUS_CONFIG, class bad_index, when the variable is no whole number. */
enum status cluster_rank_local(const struct cluster *cluster,
                               cluster_getenv *lookup, void *context,
                               uint32_t *rank, struct failure *why) MUST_CHECK;

/* The same, before it is known whether the chief trains. */
struct cluster_local_peers {
    int64_t reported; /* as above, or CLUSTER_UNKNOWN */
    uint32_t
        workers_before; /* workers listed on this host before this trainer */
    uint32_t
        workers_here; /* workers on this host, and this trainer; 0: not known */
    bool chief;       /* another trainer than this, and on this host */
};
enum status cluster_rank_local_peers(const struct cluster *cluster,
                                     cluster_getenv *lookup, void *context,
                                     struct cluster_local_peers *out,
                                     struct failure *why) MUST_CHECK;

/* This trainer's place among the trainers of its host, and how many those are,
 * 0: not known. */
uint32_t cluster_rank_on_host(const struct cluster_local_peers *local_peers,
                              bool chief_trains, uint32_t *count);

/* *RANK is NODE_RANK, else GROUP_RANK, else OMPI_COMM_WORLD_RANK divided by
 * OMPI_COMM_WORLD_LOCAL_SIZE, else SLURM_NODEID; -1 when none is set. Errors
 * as above. */
enum status cluster_rank_node(cluster_getenv *lookup, void *context,
                              int64_t *rank, struct failure *why) MUST_CHECK;

/* What is known of this trainer's rank before it has joined, and ", ": "rank 1,
 * ", or "rank 1 (2 if the chief trains), ". "" for who is no trainer. */
void cluster_rank_text(const struct cluster *cluster, char *text, size_t size);

#endif
