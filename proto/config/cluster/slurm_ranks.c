/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cluster/slurm_ranks.h"

#include "proto/config/cluster/host_list.h"
#include "proto/config/cluster/ranks.h"
#include "proto/config/diagnostics.h"

#include <stdio.h>
#include <string.h>

/* The script of a batch job also has task number 0. Its task count is the
 * number that srun may start, not the number of running tasks. */
static bool is_batch_script(const struct cluster_input *input) {
    const char *environment = cluster_input_variable(input, "ENVIRONMENT");
    return !cluster_input_variable(input, "SLURM_STEP_NUM_TASKS") &&
           environment && !strcmp(environment, "BATCH");
}

bool slurm_ranks_set(const struct cluster_input *input) {
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

static void slurm_ranks_set_job_key(struct cluster *cluster,
                                    const struct cluster_input *input) {
    const char *job = cluster_input_variable(input, "SLURM_JOB_ID");
    const char *step = cluster_input_variable(input, "SLURM_STEP_ID");
    if (job)
        snprintf(cluster->key, sizeof cluster->key, "slurm %s.%s", job,
                 step ? step : "");
}

/* Checks that the step's counts match NODES nodes and SIZE tasks. */
static enum status check_counts(const struct cluster_input *input,
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
    return status_fail(why, STATUS_CONFIG,
                       "task_counts_differ: %s is %s, %ju tasks on %ju nodes, "
                       "but the step has %s tasks on %u nodes. Start the "
                       "processes with srun, which sets all of them.",
                       name, diagnostics_quote_text(text).text, (uintmax_t)sum,
                       (uintmax_t)count, diagnostics_quote_text(size).text,
                       nodes);
}

enum status slurm_ranks_read(struct cluster *cluster,
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
        status = check_counts(input, nodes.count, ranks.size, why);
    ranks.first_host = nodes.count ? nodes.hosts[0] : NULL;
    ranks.one_node = nodes.count == 1;
    slurm_ranks_set_job_key(cluster, input);
    if (status == STATUS_OK)
        status = ranks_resolve(&ranks, cluster, input, why);
    host_list_free(&nodes);
    return status;
}
