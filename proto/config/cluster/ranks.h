/* SPDX-License-Identifier: Apache-2.0 */
/* Clusters that a launcher describes by ranks: each process has a number, and
 * the address of number 0 is all that is known of the others. Rank 0 leads and
 * is worker 0, the next are workers by rank, and the last are ps as many as
 * --num-ps says. */
#ifndef CAPSTAN_RANKS_H
#define CAPSTAN_RANKS_H

#include "proto/config/cluster/cluster_input.h"

/* What a launcher told. */
struct ranks {
    const char *rank_name, *size_name; /* its variables */
    const char *rank, *size;           /* their texts, or NULL */
    const char *local_rank_name;       /* or NULL */
    const char *local_size_name;       /* processes on this host, or NULL */
    const char *first_host;            /* of rank 0, or NULL; a view */
    bool one_node;                     /* all are known to be on one host */
};

/* Variable NAME as a number up to 2^32-1; CLUSTER_UNKNOWN in *VALUE when it is
 * not set or NAME is NULL. Errors: bad_index. */
enum status ranks_read_number(const struct cluster_input *input,
                              const char *name, int64_t *value,
                              struct failure *why) MUST_CHECK;

/* Makes RANKS the CLUSTER, which is empty. A world of one is alone. Errors:
 * rank_missing, world_size_missing, bad_index, bad_world_size,
 * index_out_of_range, bad_num_ps, and those of chief_address.h. */
enum status ranks_resolve(struct ranks *ranks, struct cluster *cluster,
                          const struct cluster_input *input,
                          struct failure *why) MUST_CHECK;

/* For every source: --num-ps goes with ranks only (num_ps_given), and what
 * --local_rank says is what LOCAL_RANK says (local_rank_conflict, bad_index).
 * LOCAL_RANK, or the flag, becomes the cluster's; it is below the number of
 * ranks on this host where that is told (index_out_of_range). */
enum status ranks_check_flags(struct cluster *cluster,
                              const struct cluster_input *input,
                              struct failure *why) MUST_CHECK;

#endif
