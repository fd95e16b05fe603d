/* SPDX-License-Identifier: Apache-2.0 */
/* Clusters described by ranks: each process has a number, and only the address
 * of rank 0 is known. Rank 0 leads and is worker 0. The next ranks are workers,
 * and the last --num-ps ranks are ps. */
#ifndef CAPSTAN_RANKS_H
#define CAPSTAN_RANKS_H

#include "proto/cluster/cluster_input.h"

/* The values from a launcher. */
struct ranks {
    const char *rank_name, *size_name; /* names of its variables */
    const char *rank, *size;           /* their values, or NULL */
    const char *local_rank_name;       /* or NULL */
    const char *local_size_name;       /* processes on this host, or NULL */
    const char *first_host;            /* of rank 0, or NULL; a view */
    bool one_node;                     /* all processes are on one host */
};

/* Reads variable NAME, a number up to 2^32-1; *VALUE is CLUSTER_UNKNOWN if it
 * is not set or NAME is NULL. Errors: bad_index. */
enum status ranks_read_number(const struct cluster_input *input,
                              const char *name, int64_t *value,
                              struct failure *why) MUST_CHECK;

/* Fills CLUSTER, which is empty, from RANKS. A world of one process is alone.
 * Errors: rank_missing, world_size_missing, bad_index, bad_world_size,
 * index_out_of_range, bad_num_ps, and those of chief_address.h. */
enum status ranks_resolve(struct ranks *ranks, struct cluster *cluster,
                          const struct cluster_input *input,
                          struct failure *why) MUST_CHECK;

/* Makes JOB, which is empty, one of COUNT tasks without addresses. */
enum status ranks_fill_tasks(struct cluster_job *job, uint32_t count,
                             struct failure *why) MUST_CHECK;

/* Checks that apply to every source: --num-ps needs ranks (num_ps_given), and
 * --local_rank must equal LOCAL_RANK (local_rank_conflict, bad_index). The
 * value becomes CLUSTER's; it must be below the number of ranks on this host if
 * that is known (index_out_of_range). */
enum status ranks_check_flags(struct cluster *cluster,
                              const struct cluster_input *input,
                              struct failure *why) MUST_CHECK;

#endif
