/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cluster/launcher_ranks.h"

#include "proto/config/cluster/host_list.h"
#include "proto/config/cluster/ranks.h"
#include "proto/config/diagnostics.h"

#include <stdio.h>
#include <string.h>

bool launcher_ranks_torch_set(const struct cluster_input *input) {
    return cluster_input_variable(input, "RANK") &&
           cluster_input_variable(input, "WORLD_SIZE");
}

/* On one host only one job can use the port, whether the agent or the chief
 * listens. */
static void set_torch_key(struct cluster *cluster,
                          const struct cluster_input *input) {
    const char *port = cluster_input_variable(input, "MASTER_PORT");
    const char *run = cluster_input_variable(input, "TORCHELASTIC_RUN_ID");
    snprintf(cluster->key, sizeof cluster->key, "torch %s %s", port ? port : "",
             run ? run : "");
}

enum status launcher_ranks_torch_read(struct cluster *cluster,
                                      const struct cluster_input *input,
                                      struct failure *why) {
    struct ranks ranks = {
        .rank_name = "RANK",
        .size_name = "WORLD_SIZE",
        .rank = cluster_input_variable(input, "RANK"),
        .size = cluster_input_variable(input, "WORLD_SIZE"),
        .local_rank_name = "LOCAL_RANK",
        .local_size_name = "LOCAL_WORLD_SIZE",
    };
    set_torch_key(cluster, input);
    return ranks_resolve(&ranks, cluster, input, why);
}

bool launcher_ranks_mpi_set(const struct cluster_input *input) {
    return cluster_input_variable(input, "OMPI_COMM_WORLD_RANK") ||
           cluster_input_variable(input, "OMPI_COMM_WORLD_SIZE");
}

/* Common to all processes of one mpirun. */
static void set_mpi_key(struct cluster *cluster,
                        const struct cluster_input *input) {
    const char *name = cluster_input_variable(input, "PMIX_NAMESPACE");
    if (!name)
        name = cluster_input_variable(input, "PMI_JOBID");
    if (name)
        snprintf(cluster->key, sizeof cluster->key, "mpi %s", name);
}

static enum status resolve_mpi(struct ranks *ranks, struct cluster *cluster,
                               const struct cluster_input *input,
                               struct failure *why) {
    ranks->rank = cluster_input_variable(input, ranks->rank_name);
    ranks->size = cluster_input_variable(input, ranks->size_name);
    set_mpi_key(cluster, input);
    return ranks_resolve(ranks, cluster, input, why);
}

enum status launcher_ranks_mpi_read(struct cluster *cluster,
                                    const struct cluster_input *input,
                                    struct failure *why) {
    struct ranks ranks = {
        .rank_name = "OMPI_COMM_WORLD_RANK",
        .size_name = "OMPI_COMM_WORLD_SIZE",
        .local_rank_name = "OMPI_COMM_WORLD_LOCAL_RANK",
        .local_size_name = "OMPI_COMM_WORLD_LOCAL_SIZE",
    };
    return resolve_mpi(&ranks, cluster, input, why);
}

bool launcher_ranks_pmi_set(const struct cluster_input *input) {
    return cluster_input_variable(input, "PMI_RANK") ||
           cluster_input_variable(input, "PMIX_RANK");
}

enum status launcher_ranks_pmi_read(struct cluster *cluster,
                                    const struct cluster_input *input,
                                    struct failure *why) {
    bool pmi = cluster_input_variable(input, "PMI_RANK");
    bool size = pmi || cluster_input_variable(input, "PMI_SIZE");
    struct ranks ranks = {
        .rank_name = pmi ? "PMI_RANK" : "PMIX_RANK",
        .size_name = size ? "PMI_SIZE" : "WORLD_SIZE",
        .local_rank_name = "MPI_LOCALRANKID",
        .local_size_name = "MPI_LOCALNRANKS",
    };
    return resolve_mpi(&ranks, cluster, input, why);
}

/* The script of a batch job also has task number 0. Its task count is the
 * number that srun may start, not the number of running tasks. */
static bool is_batch_script(const struct cluster_input *input) {
    const char *environment = cluster_input_variable(input, "ENVIRONMENT");
    return !cluster_input_variable(input, "SLURM_STEP_NUM_TASKS") &&
           environment && !strcmp(environment, "BATCH");
}

bool launcher_ranks_slurm_set(const struct cluster_input *input) {
    return cluster_input_variable(input, "SLURM_PROCID") &&
           !is_batch_script(input);
}

/* The first of NAMES that is set. */
static const char *first_set(const struct cluster_input *input,
                             const char *const *names) {
    while (names[1] && !cluster_input_variable(input, *names))
        names++;
    return *names;
}

static void set_slurm_key(struct cluster *cluster,
                          const struct cluster_input *input) {
    const char *job = cluster_input_variable(input, "SLURM_JOB_ID");
    const char *step = cluster_input_variable(input, "SLURM_STEP_ID");
    if (job)
        snprintf(cluster->key, sizeof cluster->key, "slurm %s.%s", job,
                 step ? step : "");
}

/* Checks that the step's counts match NODES nodes and SIZE tasks. */
static enum status check_slurm_counts(const struct cluster_input *input,
                                      uint32_t nodes, const char *size,
                                      struct failure *why) {
    static const char name[] = "SLURM_STEP_TASKS_PER_NODE";
    const char *text = cluster_input_variable(input, name);
    uint64_t count, sum;
    char total[24];
    if (!text || !size)
        return STATUS_OK;
    enum status status = host_list_counts(text, name, &count, &sum, why);
    if (status != STATUS_OK)
        return status;
    snprintf(total, sizeof total, "%ju", (uintmax_t)sum);
    if (count == nodes && !strcmp(total, size))
        return STATUS_OK;
    return status_fail(why, FAILURE_CLUSTER_INVALID,
                       "task_counts_differ: %s is %s, %ju tasks on %ju nodes, "
                       "but the step has %s tasks on %u nodes. Start the "
                       "processes with srun, which sets all of them.",
                       name, diagnostics_quote_text(text).text, (uintmax_t)sum,
                       (uintmax_t)count, diagnostics_quote_text(size).text,
                       nodes);
}

enum status launcher_ranks_slurm_read(struct cluster *cluster,
                                      const struct cluster_input *input,
                                      struct failure *why) {
    static const char *const sizes[] = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS",
                                        "SLURM_NPROCS", NULL};
    static const char *const lists[] = {
        "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST", NULL};
    const char *list_name = first_set(input, lists);
    const char *list = cluster_input_variable(input, list_name);
    struct host_list nodes = {0};
    struct ranks ranks = {
        .rank_name = "SLURM_PROCID",
        .size_name = first_set(input, sizes),
        .rank = cluster_input_variable(input, "SLURM_PROCID"),
        .local_rank_name = "SLURM_LOCALID",
    };
    if (!cluster_input_variable(input, ranks.size_name))
        ranks.size_name = sizes[0];
    ranks.size = cluster_input_variable(input, ranks.size_name);
    enum status status = STATUS_OK;
    if (list)
        status = host_list_parse(&nodes, list, list_name, why);
    if (status == STATUS_OK && list && list_name == lists[0])
        status = check_slurm_counts(input, nodes.count, ranks.size, why);
    ranks.first_host = nodes.count ? nodes.hosts[0] : NULL;
    ranks.one_node = nodes.count == 1;
    set_slurm_key(cluster, input);
    if (status == STATUS_OK)
        status = ranks_resolve(&ranks, cluster, input, why);
    host_list_free(&nodes);
    return status;
}
