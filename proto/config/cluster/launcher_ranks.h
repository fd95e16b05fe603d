/* SPDX-License-Identifier: Apache-2.0 */
/* The variables of launchers that number their processes. For each launcher: is
 * this process one of its, and what do its variables say? Each `_read` fills
 * CLUSTER, which is empty; errors: ranks.h. */
#ifndef CAPSTAN_LAUNCHER_RANKS_H
#define CAPSTAN_LAUNCHER_RANKS_H

#include "proto/config/cluster/cluster_input.h"

/* torchrun and compatible launchers: RANK, WORLD_SIZE, MASTER_ADDR,
 * MASTER_PORT, LOCAL_RANK, LOCAL_WORLD_SIZE. True if RANK and WORLD_SIZE are
 * both set. */
bool launcher_ranks_torch_set(const struct cluster_input *input);
enum status launcher_ranks_torch_read(struct cluster *cluster,
                                      const struct cluster_input *input,
                                      struct failure *why) MUST_CHECK;

/* Open MPI's mpirun: OMPI_COMM_WORLD_*. True if ..._RANK or ..._SIZE is set. */
bool launcher_ranks_mpi_set(const struct cluster_input *input);
enum status launcher_ranks_mpi_read(struct cluster *cluster,
                                    const struct cluster_input *input,
                                    struct failure *why) MUST_CHECK;

/* Process managers of other MPIs: PMI_RANK and PMI_SIZE, else PMIX_RANK with
 * PMI_SIZE or WORLD_SIZE (PMIx has no variable for the size). True if PMI_RANK
 * or PMIX_RANK is set. */
bool launcher_ranks_pmi_set(const struct cluster_input *input);
enum status launcher_ranks_pmi_read(struct cluster *cluster,
                                    const struct cluster_input *input,
                                    struct failure *why) MUST_CHECK;

/* A task that srun has started: SLURM_PROCID, SLURM_STEP_NUM_TASKS,
 * SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE, SLURM_LOCALID. True in a task
 * of a step, false in the script of a batch job. Further errors: host_list.h,
 * task_counts_differ. */
bool launcher_ranks_slurm_set(const struct cluster_input *input);
enum status launcher_ranks_slurm_read(struct cluster *cluster,
                                      const struct cluster_input *input,
                                      struct failure *why) MUST_CHECK;

#endif
