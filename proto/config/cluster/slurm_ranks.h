/* SPDX-License-Identifier: Apache-2.0 */
/* Variables of a task that srun has started: SLURM_PROCID,
 * SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE,
 * SLURM_LOCALID. */
#ifndef CAPSTAN_SLURM_RANKS_H
#define CAPSTAN_SLURM_RANKS_H

#include "proto/config/cluster/cluster_input.h"

/* True in a task of a step; false in the script of a batch job. */
bool slurm_ranks_set(const struct cluster_input *input);

/* Reads them into CLUSTER, which is empty. Errors: ranks.h, host_list.h,
 * and task_counts_differ. */
enum status slurm_ranks_read(struct cluster *cluster,
                             const struct cluster_input *input,
                             struct failure *why) MUST_CHECK;

#endif
