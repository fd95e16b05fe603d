/* SPDX-License-Identifier: Apache-2.0 */
/* The input of a cluster description: command line and environment. Each source
 * reads only its own part. */
#ifndef CAPSTAN_CLUSTER_INPUT_H
#define CAPSTAN_CLUSTER_INPUT_H

#include "proto/cluster/cluster.h"

/* All borrowed. */
struct cluster_input {
    struct cluster_flags flags;
    cluster_getenv *lookup;
    void *context;
};

/* TEXT, or NULL if TEXT is NULL, empty or blank, which counts as not given. */
const char *cluster_input_text(const char *text);

/* The same for the environment variable NAME. */
const char *cluster_input_variable(const struct cluster_input *input,
                                   const char *name);

/* A source: do its variables describe a cluster of several processes and this
 * process's place in it, and what do they say? A wrong value counts as set.
 * CLUSTER is empty. */
struct cluster_reader {
    bool (*is_set)(const struct cluster_input *input);
    enum status (*read)(struct cluster *cluster,
                        const struct cluster_input *input, struct failure *why);
};

/* TF_CONFIG: {"cluster": {...}, "task": {"type": ..., "index": ...}}.
 *
 * CLUSTER_SPEC has two forms. Vertex AI: an object like TF_CONFIG's, with jobs
 * named workerpool0 (chief), workerpool1 (worker), workerpool2 (ps) and
 * workerpool3 (evaluator), or as in TF_CONFIG. TonY: only the map of jobs, with
 * JOB_NAME and TASK_INDEX as separate variables.
 *
 * Errors: cluster_not_object, bare_cluster_map, misspelt_key, model_dir_empty
 * and those of cluster_jobs.h and cluster_self.h. */
extern const struct cluster_reader tf_config, tf_config_spec;

/* Launchers that number their processes; errors: ranks.h.
 *
 * torchrun and compatible ones: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
 * LOCAL_RANK, LOCAL_WORLD_SIZE. Set: RANK and WORLD_SIZE. */
extern const struct cluster_reader launcher_ranks_torch;

/* Open MPI's mpirun: OMPI_COMM_WORLD_*. Set: ..._RANK or ..._SIZE. */
extern const struct cluster_reader launcher_ranks_mpi;

/* Process managers of other MPIs: PMI_RANK and PMI_SIZE, else PMIX_RANK with
 * PMI_SIZE or WORLD_SIZE (PMIx has no variable for the size). pmi: PMI_RANK is
 * set, or PMIX_RANK with a size; pmix: PMIX_RANK, maybe alone. */
extern const struct cluster_reader launcher_ranks_pmi, launcher_ranks_pmix;

/* A task that srun has started: SLURM_PROCID, SLURM_STEP_NUM_TASKS,
 * SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE, SLURM_LOCALID. Set: in a task
 * of a step, not in the script of a batch job. Further errors: host_list.h,
 * task_counts_differ. */
extern const struct cluster_reader launcher_ranks_slurm;

/* SageMaker's containers: SM_HOSTS and SM_CURRENT_HOST, else
 * SM_RESOURCE_CONFIG. Set: they list more than one host. Further error:
 * bad_node_list. */
extern const struct cluster_reader launcher_ranks_sagemaker;

/* Names of a launcher's variables; only the first two are never NULL. */
struct launcher_ranks {
    const char *rank, *size;
    const char *local_rank, *local_size;
    const char *job; /* its value is common to all processes of a job */
};

/* The same for a launcher with only these variables. Set: they describe more
 * than one process, and the address of rank 0 is known. */
bool launcher_ranks_set(const struct launcher_ranks *names,
                        const struct cluster_input *input);
enum status launcher_ranks_read(const struct launcher_ranks *names,
                                struct cluster *cluster,
                                const struct cluster_input *input,
                                struct failure *why) MUST_CHECK;

/* Launchers that give each process its role.
 *
 * ps-lite, MXNet and BytePS: DMLC_ROLE, DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT,
 * DMLC_NUM_WORKER, DMLC_NUM_SERVER, and the index: DMLC_WORKER_ID or
 * DMLC_SERVER_ID, else DMLC_RANK, else DMLC_TASK_ID, else 0 where there is one
 * such process. The scheduler is the chief, which only coordinates by default.
 * With BYTEPS_LOCAL_SIZE each of DMLC_NUM_WORKER machines has that many
 * workers. Errors: bad_index, bad_host, bad_port, bad_world_size and those of
 * cluster_self.h. */
extern const struct cluster_reader launcher_roles_dmlc;

/* Paddle: trainers in PADDLE_TRAINER_ENDPOINTS, else PADDLE_TRAINERS_NUM of
 * them, of which the first is at PADDLE_MASTER, else as in chief_address.h (on
 * one node if each ps is on localhost); ps in PADDLE_PSERVERS_IP_PORT_LIST.
 * TRAINING_ROLE is TRAINER (default) or PSERVER. A trainer is PADDLE_TRAINER_ID
 * or PADDLE_CURRENT_ENDPOINT, a ps POD_IP and PADDLE_PORT or
 * PADDLE_CURRENT_ENDPOINT. Errors: bad_world_size and those of chief_address.h,
 * cluster_jobs.h and cluster_self.h. */
extern const struct cluster_reader launcher_roles_paddle;

#endif
