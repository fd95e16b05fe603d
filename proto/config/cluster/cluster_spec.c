/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cluster/cluster_spec.h"

#include "proto/config/cluster/own_task.h"
#include "proto/config/cluster/task_map.h"
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
    struct own_task own = {.names = ROLE_NAMES_VERTEX,
                           .place = "JOB_NAME and TASK_INDEX",
                           .type_place = "JOB_NAME",
                           .index_place = "TASK_INDEX"};
    enum status status =
        task_map_read(cluster, root, own.names, "CLUSTER_SPEC", why);
    if (status == STATUS_OK)
        status = own_task_from_text(
            &own, cluster_input_variable(input, "JOB_NAME"),
            cluster_input_variable(input, "TASK_INDEX"), why);
    return status ? status : own_task_settle(&own, cluster, why);
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
