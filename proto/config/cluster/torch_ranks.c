/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cluster/torch_ranks.h"

#include "proto/config/cluster/ranks.h"

#include <stdio.h>

bool torch_ranks_set(const struct cluster_input *input) {
    return cluster_input_variable(input, "RANK") &&
           cluster_input_variable(input, "WORLD_SIZE");
}

/* On one host only one job can use the port, whether the agent or the chief
 * listens. */
static void torch_ranks_set_job_key(struct cluster *cluster,
                                    const struct cluster_input *input) {
    const char *port = cluster_input_variable(input, "MASTER_PORT");
    const char *run = cluster_input_variable(input, "TORCHELASTIC_RUN_ID");
    snprintf(cluster->key, sizeof cluster->key, "torch %s %s", port ? port : "",
             run ? run : "");
}

enum status torch_ranks_read(struct cluster *cluster,
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
    torch_ranks_set_job_key(cluster, input);
    return ranks_resolve(&ranks, cluster, input, why);
}
