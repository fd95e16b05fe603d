/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/diagnostics.h"
#include "proto/cluster/chief_address.h"
#include "proto/cluster/cluster_input.h"
#include "proto/cluster/host_list.h"
#include "proto/cluster/ranks.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static bool torch_set(const struct cluster_input *input) {
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

static enum status torch_read(struct cluster *cluster,
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

const struct cluster_reader launcher_ranks_torch = {torch_set, torch_read};

static bool mpi_set(const struct cluster_input *input) {
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

static struct ranks ranks_of(const struct launcher_ranks *names,
                             const struct cluster_input *input) {
    return (struct ranks){
        .rank_name = names->rank,
        .size_name = names->size,
        .rank = cluster_input_variable(input, names->rank),
        .size = cluster_input_variable(input, names->size),
        .local_rank_name = names->local_rank,
        .local_size_name = names->local_size,
    };
}

/* Do RANKS describe more than one process and, with the environment, the
 * address of rank 0? A size that is no number counts as more than one. */
static bool tells_enough(const struct ranks *ranks,
                         const struct cluster_input *input) {
    const char *here =
        ranks->local_size_name
            ? cluster_input_variable(input, ranks->local_size_name)
            : NULL;
    struct chief_location location = {.one_node = here && ranks->size &&
                                                  !strcmp(here, ranks->size)};
    return ranks->rank && ranks->size && strcmp(ranks->size, "1") != 0 &&
           chief_address_is_known(&location, input);
}

bool launcher_ranks_set(const struct launcher_ranks *names,
                        const struct cluster_input *input) {
    struct ranks ranks = ranks_of(names, input);
    return tells_enough(&ranks, input);
}

enum status launcher_ranks_read(const struct launcher_ranks *names,
                                struct cluster *cluster,
                                const struct cluster_input *input,
                                struct failure *why) {
    struct ranks ranks = ranks_of(names, input);
    const char *job =
        names->job ? cluster_input_variable(input, names->job) : NULL;
    if (job)
        snprintf(cluster->key, sizeof cluster->key, "%s %s", names->job, job);
    return ranks_resolve(&ranks, cluster, input, why);
}

static enum status mpi_read(struct cluster *cluster,
                            const struct cluster_input *input,
                            struct failure *why) {
    static const struct launcher_ranks names = {
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL};
    set_mpi_key(cluster, input);
    return launcher_ranks_read(&names, cluster, input, why);
}

const struct cluster_reader launcher_ranks_mpi = {mpi_set, mpi_read};

static bool pmix_set(const struct cluster_input *input) {
    return cluster_input_variable(input, "PMIX_RANK");
}

static bool pmi_set(const struct cluster_input *input) {
    return cluster_input_variable(input, "PMI_RANK") ||
           (pmix_set(input) && (cluster_input_variable(input, "PMI_SIZE") ||
                                cluster_input_variable(input, "WORLD_SIZE")));
}

static enum status pmi_read(struct cluster *cluster,
                            const struct cluster_input *input,
                            struct failure *why) {
    bool pmi = cluster_input_variable(input, "PMI_RANK");
    bool size = pmi || cluster_input_variable(input, "PMI_SIZE");
    const struct launcher_ranks names = {
        pmi ? "PMI_RANK" : "PMIX_RANK", size ? "PMI_SIZE" : "WORLD_SIZE",
        "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL};
    set_mpi_key(cluster, input);
    return launcher_ranks_read(&names, cluster, input, why);
}

const struct cluster_reader launcher_ranks_pmi = {pmi_set, pmi_read};
const struct cluster_reader launcher_ranks_pmix = {pmix_set, pmi_read};

/* The script of a batch job also has task number 0. Its task count is the
 * number that srun may start, not the number of running tasks. */
static bool is_batch_script(const struct cluster_input *input) {
    const char *environment = cluster_input_variable(input, "ENVIRONMENT");
    return !cluster_input_variable(input, "SLURM_STEP_NUM_TASKS") &&
           environment && !strcmp(environment, "BATCH");
}

static bool slurm_set(const struct cluster_input *input) {
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

static enum status slurm_read(struct cluster *cluster,
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

const struct cluster_reader launcher_ranks_slurm = {slurm_set, slurm_read};

/* The hosts of a SageMaker job, a list of names, and this host's name; NULL:
 * not given, or not in this form. SM_RESOURCE_CONFIG has both. */
struct sagemaker {
    json_t *config, *list;
    const json_t *hosts;
    const char *here;
};

static struct sagemaker sagemaker_load(const struct cluster_input *input) {
    const char *list = cluster_input_variable(input, "SM_HOSTS");
    const char *config = cluster_input_variable(input, "SM_RESOURCE_CONFIG");
    struct sagemaker job = {
        .config = config ? json_loads(config, 0, NULL) : NULL,
        .list = list ? json_loads(list, 0, NULL) : NULL,
        .here = cluster_input_variable(input, "SM_CURRENT_HOST"),
    };
    job.hosts = list ? job.list : json_object_get(job.config, "hosts");
    if (!job.here)
        job.here =
            json_string_value(json_object_get(job.config, "current_host"));
    return job;
}

static void sagemaker_unload(struct sagemaker *job) {
    json_decref(job->config);
    json_decref(job->list);
}

static bool sagemaker_set(const struct cluster_input *input) {
    struct sagemaker job = sagemaker_load(input);
    bool set = job.here && json_array_size(job.hosts) > 1;
    sagemaker_unload(&job);
    return set;
}

/* Each host has one process, and its rank is its position in the list. */
static enum status sagemaker_read(struct cluster *cluster,
                                  const struct cluster_input *input,
                                  struct failure *why) {
    struct sagemaker job = sagemaker_load(input);
    char rank[24], size[24];
    size_t count = json_array_size(job.hosts), here = 0;
    const char *first = json_string_value(json_array_get(job.hosts, 0));
    struct ranks ranks = {.rank_name = "the position of SM_CURRENT_HOST",
                          .size_name = "the number of SM_HOSTS",
                          .rank = rank,
                          .size = size,
                          .first_host = first};
    for (const char *host; here < count; here++)
        if ((host = json_string_value(json_array_get(job.hosts, here))) &&
            !strcmp(host, job.here))
            break;
    snprintf(rank, sizeof rank, "%zu", here);
    snprintf(size, sizeof size, "%zu", count);
    enum status status =
        here < count && first
            ? ranks_resolve(&ranks, cluster, input, why)
            : status_fail(why, FAILURE_CLUSTER_INVALID,
                          "bad_node_list: SM_CURRENT_HOST is %s, which is not "
                          "one of the %zu names in SM_HOSTS. SageMaker sets "
                          "both; leave them as they are.",
                          diagnostics_quote_text(job.here).text, count);
    sagemaker_unload(&job);
    return status;
}

const struct cluster_reader launcher_ranks_sagemaker = {sagemaker_set,
                                                        sagemaker_read};
