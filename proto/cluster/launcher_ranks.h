/* SPDX-License-Identifier: Apache-2.0 */
/* The variables of launchers that number their processes. For each launcher: is
 * this process one of its, and what do its variables say? Each `_read` fills
 * CLUSTER, which is empty; errors: ranks.h. */
#ifndef CAPSTAN_LAUNCHER_RANKS_H
#define CAPSTAN_LAUNCHER_RANKS_H

#include "proto/cluster/cluster_input.h"

/* Names of a launcher's variables; only the first two are never NULL. */
struct launcher_ranks {
    const char *rank, *size;
    const char *local_rank, *local_size;
    const char *job; /* its value is common to all processes of a job */
};

/* A launcher with only these variables. True if they describe more than one
 * process and the address of rank 0 is known; a wrong value counts as set. */
bool launcher_ranks_set(const struct launcher_ranks *names,
                        const struct cluster_input *input);
enum status launcher_ranks_read(const struct launcher_ranks *names,
                                struct cluster *cluster,
                                const struct cluster_input *input,
                                struct failure *why) MUST_CHECK;

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
 * PMI_SIZE or WORLD_SIZE (PMIx has no variable for the size). pmi_set: PMI_RANK
 * is set, or PMIX_RANK with a size; pmix_set: PMIX_RANK, maybe alone. */
bool launcher_ranks_pmi_set(const struct cluster_input *input);
bool launcher_ranks_pmix_set(const struct cluster_input *input);
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

/* SageMaker's containers: SM_HOSTS and SM_CURRENT_HOST, else
 * SM_RESOURCE_CONFIG. True if they list more than one host. Further error:
 * bad_node_list. */
bool launcher_ranks_sagemaker_set(const struct cluster_input *input);
enum status launcher_ranks_sagemaker_read(struct cluster *cluster,
                                          const struct cluster_input *input,
                                          struct failure *why) MUST_CHECK;

#endif
