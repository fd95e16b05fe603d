/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cluster/cluster_spec.h"

#include "proto/config/cluster/cluster_jobs.h"
#include "proto/config/cluster/cluster_self.h"
#include "proto/config/cluster/tf_config.h"
#include "proto/config/strict_json.h"

bool cluster_spec_set(const struct cluster_input *input) {
    return cluster_input_variable(input, "CLUSTER_SPEC") != NULL;
}

static bool is_bare_map(const json_t *root) {
    return !json_object_get(root, "cluster") &&
           !json_object_get(root, "sparseCluster") &&
           !json_object_get(root, "task");
}

static enum status read_bare_map(struct cluster *cluster, const json_t *root,
                                 const struct cluster_input *input,
                                 struct failure *why) {
    struct cluster_self self = {.names = ROLE_NAMES_VERTEX,
                                .location = "JOB_NAME and TASK_INDEX",
                                .type_location = "JOB_NAME",
                                .index_location = "TASK_INDEX"};
    enum status status =
        cluster_jobs_read(cluster, root, self.names, "CLUSTER_SPEC", why);
    if (status == STATUS_OK)
        status = cluster_self_from_text(
            &self, cluster_input_variable(input, "JOB_NAME"),
            cluster_input_variable(input, "TASK_INDEX"), why);
    return status ? status : cluster_self_resolve(&self, cluster, why);
}

enum status cluster_spec_read(struct cluster *cluster,
                              const struct cluster_input *input,
                              struct failure *why) {
    json_t *root;
    bool duplicate = false;
    enum status status =
        strict_json_object(&root, cluster_input_variable(input, "CLUSTER_SPEC"),
                           "CLUSTER_SPEC", &duplicate, why);
    if (status != STATUS_OK)
        return status;
    if (duplicate)
        cluster->warnings |= CLUSTER_DUPLICATE_KEY;
    if (is_bare_map(root))
        status = read_bare_map(cluster, root, input, why);
    else
        status = tf_config_read_object(cluster, root, "CLUSTER_SPEC",
                                       ROLE_NAMES_VERTEX, why);
    json_decref(root);
    return status;
}
